// The communicator of ranks that are threads: what each collective leaves, in which order it adds, what is
// counted, and that nobody waits for ever. On direct streams and on streams that are threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>

#include "comm/exchange.h"
#include "comm/thread_ranks.h"
#include "cpu/device.h"

namespace deltatune {
namespace {

using std::chrono::milliseconds;

template <class T>
Tensor view(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), dtype_of<T>, {static_cast<int64_t>(values.size())}};
}

float value_of(int rank, int64_t i) {
  return std::sin(static_cast<float>(rank * 1000 + i)) * static_cast<float>(1 + i % 7);
}

class Threads : public testing::TestWithParam<std::tuple<StreamMode, int>> {
 protected:
  StreamMode mode() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
};

TEST_P(Threads, CollectivesLeaveWhatTheySay) {
  constexpr int64_t count = 2500;
  run_ranks(world(), [&](Communicator& comm) {
    const auto device = make_cpu_device(mode());
    const auto stream = device->make_stream("comm");
    const int n = comm.world_size();
    std::vector<float> chunk(count), full(static_cast<size_t>(n * count)), sum(count, 0.5f);
    std::vector<double> total = {1.0 + comm.rank(), 0.1 * comm.rank()};
    std::vector<float> told(3, static_cast<float>(comm.rank()));
    for (int64_t i = 0; i < count; ++i) chunk[static_cast<size_t>(i)] = value_of(comm.rank(), i);
    comm.all_gather(*stream, view(full), view(chunk));
    comm.reduce_scatter_add(*stream, view(sum), view(full));
    comm.all_reduce(*stream, view(total));
    comm.broadcast(*stream, view(told), n - 1);
    comm.barrier(*stream);
    stream->sync();
    std::vector<float> parts(static_cast<size_t>(n * count));
    for (int r = 0; r < n; ++r) {
      for (int64_t i = 0; i < count; ++i) parts[static_cast<size_t>(r * count + i)] = value_of(r, i);
    }
    EXPECT_EQ(full, parts);
    // Every rank gave the same full buffer: n times this rank's part, added up in order.
    for (int64_t i = 0; i < count; ++i) {
      float expected = value_of(comm.rank(), i);
      for (int r = 1; r < n; ++r) expected += value_of(comm.rank(), i);
      ASSERT_EQ(sum[static_cast<size_t>(i)], 0.5f + expected) << i;
    }
    double ones = 0, tenths = 0;
    for (int r = 0; r < n; ++r) {
      ones += 1.0 + r;
      tenths = r == 0 ? 0.1 * r : tenths + 0.1 * r;
    }
    EXPECT_EQ(total, (std::vector<double>{ones, tenths}));
    EXPECT_EQ(told, std::vector<float>(3, static_cast<float>(n - 1)));
    const double share = static_cast<double>(n - 1) / n;
    EXPECT_DOUBLE_EQ(comm.totals().reduce_bytes, share * (4.0 * n * count + 2 * 16));
    EXPECT_EQ(comm.totals().calls, 5);
  });
}

TEST_P(Threads, SumsAreInRankOrder) {
  // Values whose sum depends on the order: large ones that cancel around a small one.
  const std::vector<float> of_rank = {1e8f, 1.0f, -1e8f, 1.0f, 3e7f, -3e7f, 0.25f, 1.0f};
  float expected = of_rank[0];
  for (int r = 1; r < world(); ++r) expected += of_rank[static_cast<size_t>(r)];
  run_ranks(world(), [&](Communicator& comm) {
    const auto device = make_cpu_device(mode());
    const auto stream = device->make_stream("comm");
    std::vector<float> full(static_cast<size_t>(comm.world_size()),
                            of_rank[static_cast<size_t>(comm.rank())]);
    std::vector<float> chunk(1), x = {of_rank[static_cast<size_t>(comm.rank())]};
    comm.reduce_scatter_add(*stream, view(chunk), view(full));
    comm.all_reduce(*stream, view(x));
    stream->sync();
    EXPECT_EQ(chunk[0], expected);
    EXPECT_EQ(x[0], expected);
  });
}

TEST_P(Threads, HostsExchange) {
  run_ranks(world(), [&](Communicator& comm) {
    const int n = comm.world_size();
    const std::string mine(static_cast<size_t>(comm.rank()), 'x');
    const std::vector<std::string> all = comm.exchange(mine);
    ASSERT_EQ(all.size(), static_cast<size_t>(n));
    for (int r = 0; r < n; ++r) EXPECT_EQ(all[static_cast<size_t>(r)].size(), static_cast<size_t>(r));
    EXPECT_EQ(comm.collect(mine).size(), comm.rank() == 0 ? static_cast<size_t>(n) : 0u);
    int64_t a = comm.rank(), b = 1;
    sum_over_ranks(comm, {&a, &b});
    EXPECT_EQ(a, n * (n - 1) / 2);
    EXPECT_EQ(b, n);
    EXPECT_EQ(max_over_ranks(comm, comm.rank()), n - 1);
    EXPECT_EQ(min_over_ranks(comm, 5 - comm.rank()), 6 - n);
    EXPECT_EQ(from_rank_0(comm, comm.rank() == 0 ? "zero" : "other"), "zero");
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Threads,
                         testing::Combine(testing::Values(StreamMode::direct, StreamMode::threaded),
                                          testing::Values(1, 2, 3, 8)));

TEST(ThreadsTest, AMissingRankIsAnErrorOnAllOthers) {
  for (const StreamMode mode : {StreamMode::direct, StreamMode::threaded}) {
    std::atomic<int> waiting = 3;
    const RankErrors errors = on_ranks(
        4,
        [&](Communicator& comm) {
          comm.note(7, "backward");
          const auto device = make_cpu_device(mode);
          const auto stream = device->make_stream("comm");
          if (comm.rank() == 2) {
            while (waiting > 0) std::this_thread::sleep_for(milliseconds(5));
            return;
          }
          std::vector<float> x(1);
          try {
            comm.all_reduce(*stream, view(x));
            stream->sync();
          } catch (const Error&) {
            --waiting;
            throw;
          }
        },
        milliseconds(100));
    for (const int r : {0, 1, 3}) {
      const auto& error = errors[static_cast<size_t>(r)];
      ASSERT_TRUE(error.has_value()) << r;
      EXPECT_EQ(error->kind(), ErrorKind::distributed);
      EXPECT_STREQ(error->what(), "rank 2 did not take part in all_reduce within 0.1 s");
      EXPECT_EQ(error->where(), "rank " + std::to_string(r) + ", step 7, backward");
    }
    EXPECT_FALSE(errors[2].has_value());
  }
}

TEST(ThreadsTest, ARankThatLeavesIsNotWaitedFor) {
  const auto begin = std::chrono::steady_clock::now();
  const RankErrors errors = on_ranks(3, [](Communicator& comm) {
    if (comm.rank() == 1) throw Error(ErrorKind::data, "a bad row");
    comm.exchange("here");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(errors[1]->kind(), ErrorKind::data);
  for (const size_t r : {0u, 2u}) {
    ASSERT_TRUE(errors[r].has_value());
    EXPECT_EQ(errors[r]->kind(), ErrorKind::distributed);
    EXPECT_STREQ(errors[r]->what(), "rank 1 has left the run");
  }
}

TEST(ThreadsTest, DifferentCallsAreAnError) {
  const auto device = make_cpu_device();
  const RankErrors errors = on_ranks(2, [&](Communicator& comm) {
    const auto stream = device->make_stream("comm");
    std::vector<float> x(static_cast<size_t>(2 + comm.rank()));
    comm.all_reduce(*stream, view(x));
  });
  for (const auto& error : errors) ASSERT_TRUE(error.has_value());
}

TEST(ThreadsTest, ALateRankFailsToo) {
  const RankErrors errors = on_ranks(
      2,
      [](Communicator& comm) {
        if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(300));
        comm.exchange("");
      },
      milliseconds(50));
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), ErrorKind::distributed);
  }
}

}  // namespace
}  // namespace deltatune
