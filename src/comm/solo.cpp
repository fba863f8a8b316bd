// The communicators that move nothing: one rank, and the pretended world of `plan`.
#include "base/error.h"
#include "comm/communicator.h"

namespace deltatune {
namespace {

class Solo : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  void all_gather(Stream&, Tensor, CTensor) override {
    DELTATUNE_ASSERT(false && "one rank gathers nothing");
  }
  void reduce_scatter_add(Stream&, Tensor, CTensor) override {
    DELTATUNE_ASSERT(false && "one rank reduces nothing");
  }
  void reduce_scatter(Stream&, Tensor, CTensor) override {
    DELTATUNE_ASSERT(false && "one rank reduces nothing");
  }
  void all_reduce(Stream&, Tensor) override {}
  void broadcast(Stream&, Tensor, int) override {}
  void barrier(Stream&) override {}
  std::vector<std::string> exchange(std::string_view mine) override { return {std::string(mine)}; }
  std::vector<std::string> collect(std::string_view mine) override { return {std::string(mine)}; }
};

class Null : public Communicator {
 public:
  explicit Null(int world_size) : world_size_(world_size) {}
  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  // A ring sends (n - 1) / n of the full buffer per rank for either half of an all-reduce.
  void all_gather(Stream&, Tensor full, CTensor) override { count_gather(full.bytes()); }
  void reduce_scatter_add(Stream&, Tensor, CTensor full) override { count_reduce(full.bytes()); }
  void reduce_scatter(Stream&, Tensor, CTensor full) override { count_reduce(full.bytes()); }
  void all_reduce(Stream&, Tensor x) override { count_reduce(x.bytes(), 2); }
  void broadcast(Stream&, Tensor, int) override {}
  void barrier(Stream&) override {}
  // The others say what this rank says.
  std::vector<std::string> exchange(std::string_view mine) override {
    return std::vector<std::string>(static_cast<size_t>(world_size_), std::string(mine));
  }
  std::vector<std::string> collect(std::string_view mine) override { return exchange(mine); }

 private:
  int world_size_;
};

}  // namespace

std::unique_ptr<Communicator> make_solo_communicator() {
  return std::make_unique<Solo>();
}
std::unique_ptr<Communicator> make_null_communicator(int world_size) {
  if (world_size == 1) return make_solo_communicator();
  return std::make_unique<Null>(world_size);
}

}  // namespace deltatune
