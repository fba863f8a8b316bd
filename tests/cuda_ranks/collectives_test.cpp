// Collectives between GPUs against sums on the host, alone, many in a row and as a replayed graph; peers that
// do not come, are killed, or leave.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "comm/ordered_sum.h"
#include "cuda_ranks/gpu_ranks.h"

namespace deltatune {
namespace {

using gpu_ranks::GpuRanks;
using gpu_ranks::Rank;
using std::chrono::milliseconds;

// Element i of a rank's buffer; all ranks can make all of them.
std::vector<std::byte> values(int rank, uint64_t seed, DType dtype, int64_t count) {
  std::vector<float> plain(static_cast<size_t>(count));
  uint64_t state = seed * 1000003 + static_cast<uint64_t>(rank) * 7919 + 1;
  for (float& x : plain) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    // Magnitudes far apart: another order of summation shows.
    const int exponent = static_cast<int>(state >> 60) - 8;
    x = std::ldexp(static_cast<float>(static_cast<int32_t>(state >> 20)) * 0x1p-31F, exponent);
  }
  std::vector<std::byte> out(plain.size() * size_of(dtype));
  convert(out.data(), dtype, plain.data(), DType::f32, count);
  return out;
}

// Device memory between two sentinels.
class Guarded {
 public:
  Guarded(Device& device, Stream& stream, DType dtype, int64_t count)
      : stream_(stream),
        bytes_(static_cast<size_t>(count) * size_of(dtype)),
        memory_(device.allocate(bytes_ + 2 * guard, "buffer", "test", Lifetime::run)),
        view{memory_.data() + guard, dtype, {count}} {
    std::vector<std::byte> whole(memory_.size(), std::byte{0xa5});
    stream_.upload(all(), whole.data());
    stream_.sync();
    poison();
  }
  void set(const std::vector<std::byte>& bytes) {
    ASSERT_EQ(bytes.size(), bytes_);
    stream_.upload(view, bytes.data());
    stream_.sync();
  }
  void poison() { set(std::vector<std::byte>(bytes_, std::byte{0xff})); }
  std::vector<std::byte> get() {
    std::vector<std::byte> whole(memory_.size());
    stream_.download(whole.data(), all());
    stream_.sync();
    for (size_t i = 0; i < whole.size(); ++i) {
      if (i >= guard && i < guard + bytes_) continue;
      if (whole[i] != std::byte{0xa5}) {
        ADD_FAILURE() << "byte " << i << " outside of the buffer was written";
        break;
      }
    }
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(guard);
    return {begin, begin + static_cast<std::ptrdiff_t>(bytes_)};
  }

 private:
  static constexpr size_t guard = 256;
  Tensor all() const { return {memory_.data(), DType::u8, {static_cast<int64_t>(memory_.size())}}; }
  Stream& stream_;
  size_t bytes_;
  Buffer memory_;

 public:
  Tensor view;
};

struct Case {
  DType full, chunk;
  int64_t count;  // of the chunk
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const int64_t count : {0, 1, 63, 64, 65, 4099, 70000}) {
    out.push_back({DType::f32, DType::f32, count});
    out.push_back({DType::bf16, DType::f32, count});
    out.push_back({DType::f64, DType::f64, count});
  }
  // More than one piece of staging memory.
  out.push_back({DType::f32, DType::f32, (int64_t{33} << 20) / 4 + 3});
  return out;
}

using Values = std::vector<std::vector<std::byte>>;  // of each rank

Values all_values(int ranks, uint64_t seed, DType dtype, int64_t count) {
  Values out;
  for (int r = 0; r < ranks; ++r) out.push_back(values(r, seed, dtype, count));
  return out;
}

// The sum over ranks of their parts, in rank order, on the host.
std::vector<std::byte> expected_sum(const Values& fulls, const Case& c, int64_t full_count, int64_t begin,
                                    std::vector<std::byte> start, bool add) {
  std::vector<CTensor> parts;
  for (const auto& full : fulls) {
    const CTensor whole{full.data(), c.full, {full_count}};
    parts.push_back(whole.slice(begin, c.count));
  }
  const Tensor to{start.data(), c.chunk, {c.count}};
  if (c.count > 0) add ? add_ordered(to, parts) : sum_ordered(to, parts);
  return start;
}

TEST_P(GpuRanks, CollectivesAreThoseOfTheHost) {
  run([](Rank& self) {
    Communicator& comm = *self.comm;
    const int n = comm.world_size();
    const int me = comm.rank();
    const auto stream = self.device->make_stream("comm");
    uint64_t seed = 1;
    std::vector<std::unique_ptr<Guarded>> keep;  // memory that was seen lives on
    const auto buffer = [&](DType dtype, int64_t count) -> Guarded& {
      keep.push_back(std::make_unique<Guarded>(*self.device, *stream, dtype, count));
      return *keep.back();
    };
    for (const Case& c : cases()) {
      SCOPED_TRACE(testing::Message() << name_of(c.full) << " to " << name_of(c.chunk) << ", " << c.count);
      seed += 10;
      const int64_t whole = c.count * n;
      const auto own = static_cast<size_t>(me);
      const Values fulls = all_values(n, seed, c.full, whole);
      const Values chunks = all_values(n, seed + 1, c.full, c.count);
      const std::vector<std::byte> start = values(me, seed + 2, c.chunk, c.count);
      Guarded& full = buffer(c.full, whole);
      Guarded& chunk = buffer(c.chunk, c.count);
      Guarded& mine = buffer(c.full, c.count);
      for (const bool add : {true, false, true}) {
        full.set(fulls[own]);
        add ? chunk.set(start) : chunk.poison();
        add ? comm.reduce_scatter_add(*stream, chunk.view, full.view)
            : comm.reduce_scatter(*stream, chunk.view, full.view);
        EXPECT_TRUE(chunk.get() == expected_sum(fulls, c, whole, me * c.count, start, add)) << "add " << add;
        EXPECT_TRUE(full.get() == fulls[own]) << "the input has changed";
      }
      std::vector<std::byte> gathered;
      for (const auto& part : chunks) gathered.insert(gathered.end(), part.begin(), part.end());
      mine.set(chunks[own]);
      full.poison();
      comm.all_gather(*stream, full.view, mine.view);
      EXPECT_TRUE(full.get() == gathered) << "all_gather";
      // In place: the chunk lies in the full buffer.
      full.poison();
      const Tensor inside = full.view.slice(me * c.count, c.count);
      if (c.count > 0) stream->upload(inside, chunks[own].data());
      stream->sync();
      comm.all_gather(*stream, full.view, inside);
      EXPECT_TRUE(full.get() == gathered) << "all_gather in place";
      if (c.full != DType::bf16) {
        mine.set(chunks[own]);
        comm.all_reduce(*stream, mine.view);
        EXPECT_TRUE(mine.get() ==
                    expected_sum(chunks, {c.full, c.full, c.count}, c.count, 0, chunks[own], false))
            << "all_reduce";
      }
      for (int root = 0; root < n; ++root) {
        mine.set(chunks[own]);
        comm.broadcast(*stream, mine.view, root);
        EXPECT_TRUE(mine.get() == chunks[static_cast<size_t>(root)]) << "from " << root;
      }
    }
    comm.barrier(*stream);
    stream->sync();
    comm.check_peers();
    EXPECT_EQ(comm.exchange(std::to_string(me)).at(1), "1");
    EXPECT_EQ(comm.collect("x").size(), me == 0 ? static_cast<size_t>(n) : 0U);
  });
}

// A thousand calls behind each other without a wait, each on what the ones before have left.
void random_calls(Communicator& comm, Stream& stream, const std::vector<Guarded*>& full, Guarded& chunk,
                  Guarded& small, int calls, uint64_t seed) {
  std::mt19937_64 random(seed);  // the same on all ranks
  for (int i = 0; i < calls; ++i) {
    const Tensor whole = full[random() % full.size()]->view;
    const int64_t count = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(chunk.view.count()));
    const Tensor part = chunk.view.slice(0, count);
    switch (random() % 5) {
      case 0:
        comm.all_gather(stream, whole.slice(0, count * comm.world_size()), part);
        break;
      case 1:
        comm.reduce_scatter(stream, part, whole.slice(0, count * comm.world_size()));
        break;
      case 2:
        comm.all_reduce(stream, small.view);
        break;
      case 3:
        comm.broadcast(stream, part, static_cast<int>(random() % static_cast<uint64_t>(comm.world_size())));
        break;
      default:
        comm.barrier(stream);
    }
  }
}

struct Buffers {
  Buffers(Rank& self, Stream& stream)
      : full0(*self.device, stream, DType::f32, 5000 * self.comm->world_size()),
        full1(*self.device, stream, DType::f32, 5000 * self.comm->world_size()),
        chunk(*self.device, stream, DType::f32, 5000),
        small(*self.device, stream, DType::f64, 37),
        rank(self.comm->rank()) {}
  void start() {
    full0.set(values(rank, 1, DType::f32, full0.view.count()));
    full1.set(values(rank, 2, DType::f32, full1.view.count()));
    chunk.set(values(rank, 3, DType::f32, chunk.view.count()));
    small.set(values(rank, 4, DType::f64, small.view.count()));
  }
  std::vector<std::byte> bytes() {
    std::vector<std::byte> out;
    for (Guarded* g : {&full0, &full1, &chunk, &small}) {
      const std::vector<std::byte> part = g->get();
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }
  Guarded full0, full1, chunk, small;
  int rank;
};

// The same calls with a wait behind each on the host side of the test, through plain sums.
std::vector<std::byte> replayed_on_host(int ranks, int me, int calls, uint64_t seed) {
  struct State {
    std::vector<std::byte> full0, full1, chunk, small;
  };
  std::vector<State> all;
  for (int r = 0; r < ranks; ++r) {
    all.push_back({values(r, 1, DType::f32, 5000 * ranks), values(r, 2, DType::f32, 5000 * ranks),
                   values(r, 3, DType::f32, 5000), values(r, 4, DType::f64, 37)});
  }
  std::mt19937_64 random(seed);
  for (int i = 0; i < calls; ++i) {
    const bool second = random() % 2 == 1;
    const auto whole = [&](State& s) -> std::vector<std::byte>& { return second ? s.full1 : s.full0; };
    const int64_t count = 1 + static_cast<int64_t>(random() % 5000U);
    const auto bytes = static_cast<size_t>(count) * 4;
    switch (random() % 5) {
      case 0:
        for (State& to : all) {
          for (size_t r = 0; r < all.size(); ++r)
            std::memcpy(whole(to).data() + r * bytes, all[r].chunk.data(), bytes);
        }
        break;
      case 1: {
        std::vector<CTensor> fulls;
        for (State& s : all) fulls.push_back({whole(s).data(), DType::f32, {count * ranks}});
        for (int r = 0; r < ranks; ++r) {
          std::vector<CTensor> parts;
          for (const CTensor& full : fulls) parts.push_back(full.slice(r * count, count));
          sum_ordered({all[static_cast<size_t>(r)].chunk.data(), DType::f32, {count}}, parts);
        }
        break;
      }
      case 2: {
        std::vector<CTensor> parts;
        for (State& s : all) parts.push_back({s.small.data(), DType::f64, {37}});
        std::vector<std::byte> sum(37 * 8);
        sum_ordered({sum.data(), DType::f64, {37}}, parts);
        for (State& s : all) s.small = sum;
        break;
      }
      case 3: {
        const auto root = static_cast<size_t>(random() % static_cast<uint64_t>(ranks));
        for (State& s : all) std::memcpy(s.chunk.data(), all[root].chunk.data(), bytes);
        break;
      }
      default:
        break;
    }
  }
  const State& mine = all[static_cast<size_t>(me)];
  std::vector<std::byte> out;
  for (const auto* part : {&mine.full0, &mine.full1, &mine.chunk, &mine.small})
    out.insert(out.end(), part->begin(), part->end());
  return out;
}

TEST_P(GpuRanks, AThousandCallsInARow) {
  run([](Rank& self) {
    const auto stream = self.device->make_stream("comm");
    Buffers b(self, *stream);
    b.start();
    random_calls(*self.comm, *stream, {&b.full0, &b.full1}, b.chunk, b.small, 1000, 7);
    EXPECT_EQ(b.bytes() == replayed_on_host(self.comm->world_size(), self.comm->rank(), 1000, 7), true);
    self.comm->check_peers();
  });
}

TEST_P(GpuRanks, AGraphOfCallsReplays) {
  run([](Rank& self) {
    const auto stream = self.device->make_stream("comm");
    Buffers b(self, *stream);
    const auto calls = [&] {
      random_calls(*self.comm, *stream, {&b.full0, &b.full1}, b.chunk, b.small, 40, 11);
    };
    b.start();
    calls();  // what is seen for the first time cannot be captured
    stream->sync();
    stream->begin_capture();
    calls();
    const Graph graph = stream->end_capture();
    EXPECT_GT(graph.nodes, 80);
    const std::vector<std::byte> expected =
        replayed_on_host(self.comm->world_size(), self.comm->rank(), 40, 11);
    for (int replay = 0; replay < 20; ++replay) {
      b.start();
      stream->launch(graph);
      ASSERT_EQ(b.bytes() == expected, true) << "replay " << replay;
    }
    self.comm->check_peers();
  });
}

TEST_P(GpuRanks, APeerThatDoesNotComeIsNamed) {
  const auto codes = gpu_ranks::on_gpus(ranks, options(milliseconds(1500)), [](Rank& self) {
    const auto stream = self.device->make_stream("comm");
    Guarded x(*self.device, *stream, DType::f32, 64);
    self.comm->note(7, "backward");
    self.comm->all_reduce(*stream, x.view);
    stream->sync();
    self.comm->check_peers();
    if (self.comm->rank() == 1) {
      std::this_thread::sleep_for(milliseconds(4000));
      ::_exit(0);
    }
    const auto begin = std::chrono::steady_clock::now();
    self.comm->all_reduce(*stream, x.view);
    self.comm->all_reduce(*stream, x.view);
    stream->sync();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(2500));
    try {
      self.comm->check_peers();
      ADD_FAILURE() << "nothing was noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::distributed);
      EXPECT_STREQ(error.what(), "rank 1 did not take part in all_reduce within 1.5 s");
      EXPECT_EQ(error.where(), "rank " + std::to_string(self.comm->rank()) + ", step 7, backward");
      throw;
    }
  });
  for (int r = 0; r < ranks; ++r) EXPECT_EQ(codes[static_cast<size_t>(r)], r == 1 ? 0 : 104) << r;
}

TEST_P(GpuRanks, AKilledPeerIsNoticedSoon) {
  const auto codes = gpu_ranks::on_gpus(ranks, options(), [](Rank& self) {
    const auto stream = self.device->make_stream("comm");
    Guarded x(*self.device, *stream, DType::f32, 64);
    self.comm->all_reduce(*stream, x.view);
    stream->sync();
    if (self.comm->rank() == 1) ::raise(SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    self.comm->all_reduce(*stream, x.view);
    stream->sync();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "of a time-out of 60 s";
    self.comm->check_peers();
    ADD_FAILURE() << "nothing was noticed";
  });
  for (int r = 0; r < ranks; ++r) EXPECT_EQ(codes[static_cast<size_t>(r)], r == 1 ? -SIGKILL : 104) << r;
}

TEST_P(GpuRanks, APeerThatLeavesIsNotWaitedFor) {
  const auto codes = gpu_ranks::on_gpus(ranks, options(), [](Rank& self) {
    const std::unique_ptr<Communicator> comm = std::move(self.comm);  // ends with the exception on its way
    const auto stream = self.device->make_stream("comm");
    Guarded x(*self.device, *stream, DType::f32, 64);
    comm->all_reduce(*stream, x.view);
    stream->sync();
    if (comm->rank() == 1) throw Error(ErrorKind::data, "a bad row");
    comm->all_reduce(*stream, x.view);
    stream->sync();
    comm->check_peers();
    ADD_FAILURE() << "nothing was noticed";
  });
  for (int r = 0; r < ranks; ++r) EXPECT_EQ(codes[static_cast<size_t>(r)], r == 1 ? 101 : 104) << r;
}

TEST_P(GpuRanks, DifferentCallsAreAnError) {
  const auto codes = gpu_ranks::on_gpus(ranks, options(milliseconds(2000)), [](Rank& self) {
    const auto stream = self.device->make_stream("comm");
    const int n = self.comm->world_size();
    Guarded full(*self.device, *stream, DType::f32, 128 * n);
    Guarded chunk(*self.device, *stream, DType::f32, 128);
    const int64_t count = 64 + self.comm->rank();
    self.comm->all_gather(*stream, full.view.slice(0, count * n), chunk.view.slice(0, count));
    stream->sync();
    self.comm->check_peers();
  });
  // NCCL does not compare what ranks ask for; whoever gets less than it waits for notices.
  EXPECT_NE(codes, std::vector<int>(codes.size(), 0));
}

INSTANTIATE_TEST_SUITE_P(Transports, GpuRanks, testing::Values(CommTransport::peer, CommTransport::nccl),
                         gpu_ranks::name_of_transport);

}  // namespace
}  // namespace deltatune
