// The meeting of ranks on the host, as threads: what calls give, who is blamed for what, that nobody waits
// for ever, and that the end is orderly.
#include "comm/host_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "base/error.h"
#include "comm/host_star.h"

namespace deltatune {
namespace {

using std::chrono::milliseconds;
using Body = std::function<void(HostGroup&)>;
using Errors = std::vector<std::optional<Error>>;

Errors on_ranks(int world_size, milliseconds timeout, const Body& body) {
  auto groups = make_threads_host_groups(world_size, timeout);
  Errors errors(groups.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < groups.size(); ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<HostGroup> group = std::move(groups[r]);
      try {
        body(*group);
      } catch (const Error& error) {
        errors[r] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::string text_of(int rank, int call, size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<char>(rank * 31 + call * 7 + static_cast<int>(i % 251));
  return out;
}

void expect_all(const Errors& errors, const std::vector<int>& ranks, const std::string& what) {
  for (const int r : ranks) {
    const auto& error = errors[static_cast<size_t>(r)];
    ASSERT_TRUE(error.has_value()) << "rank " << r;
    EXPECT_EQ(error->kind(), ErrorKind::distributed);
    EXPECT_EQ(std::string(error->what()), what) << "rank " << r;
  }
}

TEST(HostGroupTest, CallsGiveWhatTheySay) {
  for (const int world : {1, 2, 3, 8}) {
    const Errors errors = on_ranks(world, std::chrono::seconds(60), [&](HostGroup& group) {
      EXPECT_EQ(group.world_size(), world);
      EXPECT_EQ(group.local_world_size(), world);
      EXPECT_EQ(group.local_rank(), group.rank());
      for (int call = 0; call < 200; ++call) {
        const size_t bytes = static_cast<size_t>(call * (group.rank() + 1)) % 1000;
        const auto all = call % 3 == 0 ? group.collect(text_of(group.rank(), call, bytes))
                                       : group.exchange(text_of(group.rank(), call, bytes));
        if (call % 3 == 0 && group.rank() != 0) {
          EXPECT_TRUE(all.empty());
          continue;
        }
        ASSERT_EQ(all.size(), static_cast<size_t>(world));
        for (int r = 0; r < world; ++r)
          ASSERT_EQ(all[static_cast<size_t>(r)],
                    text_of(r, call, static_cast<size_t>(call * (r + 1)) % 1000));
        group.check();
      }
      group.leave();
    });
    for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->text();
  }
}

TEST(HostGroupTest, LongTextsPass) {
  constexpr size_t bytes = 20'000'000;  // far more than sockets hold
  const Errors errors = on_ranks(3, std::chrono::seconds(60), [&](HostGroup& group) {
    const auto all = group.exchange(text_of(group.rank(), 1, bytes));
    for (int r = 0; r < 3; ++r) EXPECT_TRUE(all[static_cast<size_t>(r)] == text_of(r, 1, bytes)) << r;
    const auto collected = group.collect(text_of(group.rank(), 2, bytes));
    EXPECT_EQ(collected.size(), group.rank() == 0 ? 3u : 0u);
    group.leave();
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->text();
}

TEST(HostGroupTest, MissingRanksAreNamedByAll) {
  std::atomic<int> waiting = 3;
  const Errors errors = on_ranks(5, milliseconds(300), [&](HostGroup& group) {
    if (group.rank() == 2 || group.rank() == 4) {
      while (waiting > 0) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    try {
      group.exchange("here", group.rank() == 1 ? "rank 1, step 7, backward" : "");
    } catch (const Error&) {
      --waiting;
      throw;
    }
  });
  expect_all(errors, {0, 1, 3}, "ranks 2 and 4 did not take part in exchange within 0.3 s");
  EXPECT_EQ(errors[1]->where(), "rank 1, step 7, backward");
  EXPECT_EQ(errors[3]->where(), "rank 3");
}

TEST(HostGroupTest, AMissingRank0IsNamed) {
  std::atomic<int> waiting = 2;
  const Errors errors = on_ranks(3, milliseconds(200), [&](HostGroup& group) {
    if (group.rank() == 0) {
      while (waiting > 0) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    try {
      group.exchange("here");
    } catch (const Error&) {
      --waiting;
      throw;
    }
  });
  expect_all(errors, {1, 2}, "rank 0 did not take part in exchange within 0.2 s");
}

TEST(HostGroupTest, ARankThatIsGoneIsNoticedAtOnce) {
  for (const int lost : {0, 2}) {
    const auto begin = std::chrono::steady_clock::now();
    const Errors errors = on_ranks(4, std::chrono::seconds(60), [&](HostGroup& group) {
      group.exchange("all");
      if (group.rank() == lost) throw Error(ErrorKind::data, "a bad row");
      for (;;) group.exchange("others");
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    EXPECT_EQ(errors[static_cast<size_t>(lost)]->kind(), ErrorKind::data);
    for (int r = 0; r < 4; ++r) {
      if (r != lost)
        expect_all(errors, {r}, "rank " + std::to_string(lost) + " is gone: its connection has closed");
    }
  }
}

// A host that waits for a device looks now and then whether the others are alive.
TEST(HostGroupTest, CheckSeesALostRank) {
  const Errors errors = on_ranks(3, std::chrono::seconds(60), [&](HostGroup& group) {
    group.exchange("all");
    if (group.rank() == 1) throw Error(ErrorKind::data, "a bad row");
    for (int i = 0; i < 4000; ++i) {
      group.check("rank " + std::to_string(group.rank()) + ", step 3, update");
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  expect_all(errors, {0, 2}, "rank 1 is gone: its connection has closed");
  EXPECT_EQ(errors[2]->where(), "rank 2, step 3, update");
}

TEST(HostGroupTest, AfterLeavingARankIsNotWaitedFor) {
  const Errors errors = on_ranks(2, std::chrono::seconds(60), [&](HostGroup& group) {
    group.exchange("all");
    if (group.rank() == 1) return group.leave();
    group.exchange("more");
  });
  expect_all(errors, {0}, "rank 1 has left the run");
  EXPECT_FALSE(errors[1].has_value());
}

TEST(HostGroupTest, DifferentCallsAreAnError) {
  const Errors errors = on_ranks(2, std::chrono::seconds(60), [&](HostGroup& group) {
    if (group.rank() == 0) {
      group.exchange("a");
    } else {
      group.collect("a");
      group.exchange("b");
    }
  });
  expect_all(errors, {0, 1}, "rank 1 and rank 0 are at different calls (exchange)");
}

TEST(HostGroupTest, AFailureIsForEver) {
  const Errors errors = on_ranks(2, milliseconds(100), [&](HostGroup& group) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(500));
      group.exchange("late");
      return;
    }
    for (int i = 0; i < 3; ++i) EXPECT_THROW(group.exchange("a"), Error);
    group.exchange("a");
  });
  expect_all(errors, {0, 1}, "rank 1 did not take part in exchange within 0.1 s");
}

TEST(HostGroupTest, DamagedTextsAreRefused) {
  const std::string good = pack_texts({"one", "", "three"});
  EXPECT_EQ(unpack_texts(good, 3), (std::vector<std::string>{"one", "", "three"}));
  for (size_t cut = 0; cut < good.size(); ++cut)
    EXPECT_THROW(unpack_texts(good.substr(0, cut), 3), Error) << cut;
  EXPECT_THROW(unpack_texts(good, 2), Error);
  EXPECT_THROW(unpack_texts(good + "x", 3), Error);
  std::string huge = good;
  huge.replace(0, 8, 8, '\xff');
  EXPECT_THROW(unpack_texts(huge, 3), Error);
  EXPECT_STREQ(unpack_failure(pack_failure(Error(ErrorKind::distributed, "w", "p", "f"))).what(), "w");
  EXPECT_EQ(unpack_failure("nonsense").kind(), ErrorKind::distributed);
}

}  // namespace
}  // namespace deltatune
