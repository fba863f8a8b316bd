// Ranks as MPI processes.
//
// Every collective is a pairwise exchange of messages: each rank sends to each other what that one needs. Two
// properties need that: a rank adds the others' parts itself, in rank order, whatever the library would do;
// and when a deadline passes, the messages that are missing tell whose they are. Long buffers go in pieces
// through staging memory of fixed size. The thread polls while it waits, ever more slowly, because there may
// be more ranks than cores.
// Deliberately not done here: rings or trees. The number of CPU ranks is small.
#include "mpi_plugin/mpi_communicator.h"

#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "comm/ordered_sum.h"

namespace deltatune {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t staging_bytes = size_t{1} << 18;    // of each peer
constexpr size_t longest_message = size_t{1} << 30;  // counts are ints
constexpr int stream_tag = 1;
constexpr int host_tag = 2;

void check(int code, const char* call, const std::string& place) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(ErrorKind::distributed, format("MPI failed in {}: {}", call, text.data()), place,
              "see the messages of the other ranks; the last checkpoint is kept");
}

// Components of the library are opened by it later and look for its symbols among the global ones.
void make_library_global() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&MPI_Init_thread), &info) != 0 && info.dli_fname)
    ::dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

class Mpi final : public Communicator {
 public:
  explicit Mpi(milliseconds timeout) : timeout_(timeout) {
    make_library_global();
    int level = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread", "start");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup", "start");
    check(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", "start");
    check(MPI_Comm_rank(world_, &rank_), "MPI_Comm_rank", "start");
    check(MPI_Comm_size(world_, &world_size_), "MPI_Comm_size", "start");
    staging_.resize(staging_bytes * static_cast<size_t>(world_size_));
  }
  ~Mpi() override {
    if (std::uncaught_exceptions() > 0) return;
    MPI_Comm_free(&world_);
    MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  void all_gather(Stream& stream, Tensor full, CTensor chunk) override {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size_ && full.dtype == chunk.dtype);
    count_gather(full.bytes());
    run(stream, [&] {
      const size_t bytes = chunk.bytes();
      for (size_t begin = 0; begin < bytes; begin += longest_message) {
        const size_t piece = std::min(longest_message, bytes - begin);
        for (int peer = 0; peer < world_size_; ++peer) {
          if (peer == rank_) continue;
          receive(peer, full.data + static_cast<size_t>(peer) * bytes + begin, piece, stream_tag);
          send(peer, chunk.data + begin, piece, stream_tag);
        }
        finish("all_gather");
      }
      std::byte* const own = full.data + static_cast<size_t>(rank_) * bytes;
      if (bytes > 0 && own != chunk.data) std::memcpy(own, chunk.data, bytes);
    });
  }

  void reduce_scatter_add(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, "reduce_scatter_add", add_ordered);
  }
  void reduce_scatter(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, "reduce_scatter", sum_ordered);
  }

  void all_reduce(Stream& stream, Tensor x) override {
    count_reduce(x.bytes(), 2);
    run(stream, [&] {
      const Tensor flat = x.reshaped({x.count()});
      const auto most = static_cast<int64_t>(staging_bytes / size_of(x.dtype));
      for (int64_t begin = 0; begin < flat.count(); begin += most) {
        const Tensor piece = flat.slice(begin, std::min(most, flat.count() - begin));
        for (int peer = 0; peer < world_size_; ++peer) {
          if (peer == rank_) continue;
          receive(peer, staging(peer), piece.bytes(), stream_tag);
          send(peer, piece.data, piece.bytes(), stream_tag);
        }
        finish("all_reduce");
        sum_ordered(piece, parts(piece));
      }
    });
  }

  void broadcast(Stream& stream, Tensor x, int root) override {
    if (rank_ == root) totals_.gather_bytes += static_cast<double>(x.bytes()) * (world_size_ - 1);
    ++totals_.calls;
    run(stream, [&] {
      for (size_t begin = 0; begin < x.bytes(); begin += longest_message) {
        const size_t piece = std::min(longest_message, x.bytes() - begin);
        if (rank_ != root) receive(root, x.data + begin, piece, stream_tag);
        for (int peer = 0; rank_ == root && peer < world_size_; ++peer) {
          if (peer != root) send(peer, x.data + begin, piece, stream_tag);
        }
        finish("broadcast");
      }
    });
  }

  void barrier(Stream& stream) override {
    ++totals_.calls;
    run(stream, [&] {
      for (int peer = 0; peer < world_size_; ++peer) {
        if (peer == rank_) continue;
        receive(peer, staging(peer), 0, stream_tag);
        send(peer, staging(rank_), 0, stream_tag);
      }
      finish("barrier");
    });
  }

  std::vector<std::string> exchange(std::string_view mine) override {
    return texts(mine, "exchange", [](int, int) { return true; });
  }
  std::vector<std::string> collect(std::string_view mine) override {
    return texts(mine, "collect", [](int, int to) { return to == 0; });
  }

 private:
  // A short text goes with its length in one message; the rest of a longer one follows.
  static constexpr size_t first_bytes = 256;
  static constexpr size_t inline_bytes = first_bytes - sizeof(uint64_t);

  /// sends(from, to): whether that message exists.
  template <class F>
  std::vector<std::string> texts(std::string_view mine, const char* call, const F& sends) {
    std::vector<std::string> out(static_cast<size_t>(world_size_));
    std::vector<char> first(first_bytes * static_cast<size_t>(world_size_));
    const auto head = [&](int of) { return first.data() + first_bytes * static_cast<size_t>(of); };
    const uint64_t size = mine.size();
    std::memcpy(head(rank_), &size, sizeof size);
    std::memcpy(head(rank_) + sizeof size, mine.data(), std::min(inline_bytes, mine.size()));
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_) continue;
      if (sends(peer, rank_)) receive(peer, head(peer), first_bytes, host_tag);
      if (sends(rank_, peer)) send(peer, head(rank_), first_bytes, host_tag);
    }
    finish(call);
    for (int peer = 0; peer < world_size_; ++peer) {
      if (!sends(peer, rank_)) continue;
      uint64_t theirs = 0;
      std::memcpy(&theirs, head(peer), sizeof theirs);
      std::string& text = out[static_cast<size_t>(peer)];
      text.resize(theirs);
      std::memcpy(text.data(), head(peer) + sizeof theirs, std::min(inline_bytes, text.size()));
    }
    for (size_t begin = inline_bytes;; begin += longest_message) {
      const auto piece = [&](size_t of) { return of > begin ? std::min(longest_message, of - begin) : 0; };
      for (int peer = 0; peer < world_size_; ++peer) {
        std::string& text = out[static_cast<size_t>(peer)];
        if (peer == rank_) continue;
        if (sends(peer, rank_) && piece(text.size()) > 0)
          receive(peer, text.data() + begin, piece(text.size()), host_tag);
        if (sends(rank_, peer) && piece(mine.size()) > 0)
          send(peer, mine.data() + begin, piece(mine.size()), host_tag);
      }
      if (requests_.empty()) break;
      finish(call);
    }
    if (sends(rank_, rank_)) {
      out[static_cast<size_t>(rank_)] = mine;
    } else {
      out.clear();
    }
    return out;
  }

  template <class Sum>
  void scatter_sum(Stream& stream, Tensor chunk, CTensor full, const char* name, const Sum& sum) {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size_);
    count_reduce(full.bytes());
    run(stream, [&] {
      const auto most = static_cast<int64_t>(staging_bytes / size_of(full.dtype));
      for (int64_t begin = 0; begin < chunk.count(); begin += most) {
        const int64_t count = std::min(most, chunk.count() - begin);
        for (int peer = 0; peer < world_size_; ++peer) {
          if (peer == rank_) continue;
          const CTensor theirs = full.slice(peer * chunk.count() + begin, count);
          receive(peer, staging(peer), theirs.bytes(), stream_tag);
          send(peer, theirs.data, theirs.bytes(), stream_tag);
        }
        finish(name);
        const CTensor mine = full.slice(rank_ * chunk.count() + begin, count);
        sum(chunk.slice(begin, count), parts(mine));
      }
    });
  }

  template <class F>
  void run(Stream& stream, const F& work) {
    DELTATUNE_ASSERT(stream.runs_inline());
    stream.run(work);
  }
  std::byte* staging(int peer) { return staging_.data() + staging_bytes * static_cast<size_t>(peer); }
  // What came from each rank, with `mine` in this one's place.
  std::vector<CTensor> parts(CTensor mine) {
    std::vector<CTensor> out;
    for (int peer = 0; peer < world_size_; ++peer) {
      CTensor part = mine;
      if (peer != rank_) part.data = staging(peer);
      out.push_back(part);
    }
    return out;
  }

  void receive(int peer, void* to, size_t bytes, int tag) {
    requests_.emplace_back();
    peers_.push_back(peer);
    check(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, peer, tag, world_, &requests_.back()), "MPI_Irecv",
          place());
  }
  void send(int peer, const void* from, size_t bytes, int tag) {
    requests_.emplace_back();
    peers_.push_back(peer);
    check(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, peer, tag, world_, &requests_.back()),
          "MPI_Isend", place());
  }

  /// Returns when all messages have come and gone; throws at the deadline.
  void finish(const char* call) {
    const auto begin = steady_clock::now();
    for (int64_t round = 0;; ++round) {
      int done = 0;
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
            call, place());
      if (done != 0) break;
      if (steady_clock::now() - begin > timeout_) throw peers_missing(pending(), call, timeout_, place());
      // The peers may need this core.
      if (round < 1000) {
        ::sched_yield();
      } else {
        ::usleep(100);
      }
    }
    requests_.clear();
    peers_.clear();
  }
  std::vector<int> pending() {
    std::vector<int> out;
    for (size_t i = 0; i < requests_.size(); ++i) {
      int done = requests_[i] == MPI_REQUEST_NULL;
      if (!done) MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
      if (!done) out.push_back(peers_[i]);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  milliseconds timeout_;
  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0;
  int world_size_ = 1;
  std::vector<std::byte> staging_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;  ///< of each request
};

}  // namespace

std::unique_ptr<Communicator> make_mpi(milliseconds timeout) {
  return std::make_unique<Mpi>(timeout);
}

}  // namespace deltatune
