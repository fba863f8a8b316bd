// The waits between the streams of a sharded step: with all of them ThreadSanitizer has nothing to say, and
// one that is left out is reported. Only in a ThreadSanitizer build.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "cpu/threaded_stream.h"
#include "ops/kernels.h"
#include "shard/rank_engine.h"

namespace deltatune {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

// Counts the waits for events of one stream, and leaves one out. The other streams dawdle behind each event,
// so that the one runs as far ahead as its waits let it: what it then does too early does not depend on the
// scheduler, who might else have put both in order by chance.
struct Waits {
  std::string stream;
  int leave_out = -1;
  int seen = 0;

  bool dawdles(const std::string& name) const { return !stream.empty() && name != stream; }
};

class ForgetfulStream final : public cpu::ThreadedStream {
 public:
  ForgetfulStream(Waits& waits, Device& device, const KernelChoice& choice, const std::string& name)
      : ThreadedStream(device, cpu_kernels(), choice, name), waits_(waits) {}
  void wait(const Event& event) override {
    if (event.native && name() == waits_.stream && waits_.seen++ == waits_.leave_out) return;
    ThreadedStream::wait(event);
  }
  void record(Event& event) override {
    ThreadedStream::record(event);
    if (waits_.dawdles(name())) run([] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
  }

 private:
  Waits& waits_;
};

class ForgetfulDevice final : public Device {
 public:
  explicit ForgetfulDevice(Waits& waits) : waits_(waits) {}
  const char* name() const override { return "forgetful"; }
  Target target() const override { return Target::cpu; }
  size_t available_bytes() const override { return size_t{1} << 30; }

 protected:
  std::unique_ptr<Stream> open_stream(std::string name, const KernelChoice& choice) override {
    return std::make_unique<ForgetfulStream>(waits_, *this, choice, name);
  }
  std::byte* allocate_raw(size_t bytes) override {
    return static_cast<std::byte*>(::operator new (bytes + 1, std::align_val_t{256}));
  }
  void free_raw(std::byte* data, size_t) noexcept override {
    ::operator delete (data, std::align_val_t{256});
  }

 private:
  Waits& waits_;
};

// One step of two ranks on streams that are threads, of which rank 0's `stream` leaves out a wait of the
// second step. Returns how many waits that step has on it.
int run_step(const std::string& stream, int leave_out) {
  int count = 0;
  run_ranks(2, [&](Communicator& comm) {
    Waits waits;
    if (comm.rank() == 0) waits.stream = stream;
    EngineOptions options = tiny_options(DType::bf16, 32);
    // A vocabulary of which rows are looked up.
    RankEngine rank(comm, options, false, std::make_unique<ForgetfulDevice>(waits), 130);
    EXPECT_TRUE(rank.engine.store().looks_up_rows());
    const Batch batch = packed_row({random_document(20, 1, 130, static_cast<uint64_t>(comm.rank()))}, 32);
    for (int step = 1; step <= 2; ++step) {
      waits.seen = 0;
      waits.leave_out = step == 2 ? leave_out : -1;
      rank.engine.begin_window();
      rank.engine.micro_step(batch);
      rank.engine.micro_step(batch);
      rank.engine.update(1e-3, step, 76);
    }
    if (comm.rank() == 0) count = waits.seen;
  });
  return count;
}

// The same in a process of its own; its exit code.
int run_apart(const std::string& stream, int leave_out) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("DELTATUNE_RACE_STREAM", stream.c_str(), 1);
    ::setenv("DELTATUNE_RACE_WAIT", std::to_string(leave_out).c_str(), 1);
    ::setenv("TSAN_OPTIONS", "exitcode=66:halt_on_error=1:log_path=/dev/null", 1);
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    if (std::freopen("/dev/null", "w", stdout) == nullptr ||
        std::freopen("/dev/null", "w", stderr) == nullptr)
      ::_exit(99);
    ::execl(program.c_str(), program.c_str(), "--gtest_also_run_disabled_tests",
            "--gtest_filter=RaceTest.DISABLED_OneRun", static_cast<char*>(nullptr));
    ::_exit(99);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(RaceTest, DISABLED_OneRun) {
  const char* stream = std::getenv("DELTATUNE_RACE_STREAM");
  const char* wait = std::getenv("DELTATUNE_RACE_WAIT");
  ASSERT_TRUE(stream != nullptr && wait != nullptr);
  EXPECT_GT(run_step(stream, std::atoi(wait)), 0);
}

TEST(RaceTest, AWaitLeftOutIsReported) {
  if (!sanitized) GTEST_SKIP() << "only under ThreadSanitizer (./dev tsan)";
  for (const std::string stream : {"compute", "comm"}) {
    EXPECT_EQ(run_apart(stream, -1), 0) << stream;
    const int count = run_step(stream, -1);
    // Most waits order what other waits and the meetings of the ranks order as well; a few are the only ones.
    constexpr int enough = 3;
    int reported = 0;
    std::string which;
    for (int i = 0; i < count && reported < enough; ++i) {
      const int code = run_apart(stream, i);
      ASSERT_TRUE(code == 0 || code == 66) << code;
      which += code == 66 ? 'x' : '.';
      reported += code == 66;
    }
    EXPECT_EQ(reported, enough) << "of " << count << " waits of " << stream << ": " << which;
  }
}

}  // namespace
}  // namespace deltatune
