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
  void all_reduce(Stream&, Tensor) override {}
};

class Null : public Communicator {
 public:
  explicit Null(int world_size) : world_size_(world_size) {}
  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  // A ring sends (n - 1) / n of the full buffer per rank for either half of an all-reduce.
  void all_gather(Stream&, Tensor full, CTensor) override {
    totals_.gather_bytes += static_cast<double>(full.bytes()) * share();
    ++totals_.calls;
  }
  void reduce_scatter_add(Stream&, Tensor, CTensor full) override {
    totals_.reduce_bytes += static_cast<double>(full.bytes()) * share();
    ++totals_.calls;
  }
  void all_reduce(Stream&, Tensor x) override {
    totals_.reduce_bytes += 2 * static_cast<double>(x.bytes()) * share();
    ++totals_.calls;
  }

 private:
  double share() const { return static_cast<double>(world_size_ - 1) / world_size_; }
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
