// Kill -9 at any moment of a save leaves the old content or the new one.
//
// The moments are exact: the saving child is traced and killed at its n-th system call, for n over the whole
// save.
#include "io/save_folder.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <csignal>
#include <functional>
#include <set>

#include "base/log.h"
#include "base/rng.h"
#include "io/resume.h"
#include "io/save_hf.h"
#include "io/test_files.h"

namespace deltatune {
namespace {

enum class Outcome { finished, killed, failed, cannot_trace };

// Runs `work` in a child process; kills it at its stops-th stop (each system call has two: entry and exit).
Outcome run_and_kill(const std::function<void()>& work, int64_t stops, int64_t* seen = nullptr) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    try {
      work();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  for (int64_t n = 0; WIFSTOPPED(status) && n < stops; ++n) {
    if (seen) *seen = n;
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
  }
  if (WIFSTOPPED(status)) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return Outcome::killed;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return Outcome::cannot_trace;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? Outcome::finished : Outcome::failed;
}

// A save by one thread: each of its system calls is seen.
void copy_model(const HfCheckpoint& model, const fs::path& out, SaveMode mode) {
  SaveFolder folder(out, mode);
  for (const SafetensorsFile& file : model.files())
    copy_file_synced(file.path(), folder.path() / file.path().filename());
  if (model.has_index()) copy_file_synced(model.folder() / index_file_name, folder.path() / index_file_name);
  copy_side_files(model.folder(), folder.path(), "");
  folder.commit();
}

// fsync on a real disk would make hundreds of saves slow; what is tested is the order of operations.
fs::path fast_folder() {
  std::error_code ignored;
  const fs::path memory("/dev/shm");
  const fs::path base = fs::is_directory(memory, ignored) && ::access(memory.c_str(), W_OK) == 0
                            ? memory
                            : fs::path(testing::TempDir());
  return base / ("dt_kill_" + std::to_string(::getpid()));
}

// Which of the two checkpoints a folder holds: 1 or 2; 0 when it is neither, or a mixture.
int generation_of(const fs::path& folder, const fs::path& one, const fs::path& two) {
  const auto equals = [&](const fs::path& other) {
    const HfCheckpoint a(folder);
    const HfCheckpoint b(other);
    if (a.names() != b.names() || read_file(folder / "config.json") != read_file(other / "config.json"))
      return false;
    for (const std::string& name : a.names()) {
      if (a.bytes(name).size() != b.bytes(name).size()) return false;
      if (std::memcmp(a.bytes(name).data(), b.bytes(name).data(), a.bytes(name).size()) != 0) return false;
    }
    return true;
  };
  return equals(one) ? 1 : equals(two) ? 2 : 0;
}

// What a program that knows nothing of interrupted saves sees: through the index, or model.safetensors.
bool is_mixture(const fs::path& folder, const std::vector<fs::path>& generations) {
  if (!fs::exists(folder / index_file_name)) return false;
  for (const fs::path& generation : generations) {
    bool same = true;
    for (const auto& entry : fs::directory_iterator(generation)) {
      const fs::path name = entry.path().filename();
      if (name.extension() != ".safetensors") continue;
      same = same && fs::exists(folder / name) && read_file(folder / name) == read_file(entry.path());
    }
    if (same) return false;
  }
  return true;
}

struct Kill : testing::Test {
  fs::path dir = fast_folder();
  log::Level level = log::level();
  void SetUp() override {
    log::set_level(log::Level::error);  // hundreds of "finishing a save that was interrupted"
    fs::remove_all(dir);
    write_sharded_checkpoint(dir / "one", 1);
    write_sharded_checkpoint(dir / "two", 50);
    write_text(dir / "two" / "assets" / "new.txt", "new");
  }
  void TearDown() override {
    fs::remove_all(dir);
    log::set_level(level);
  }

  // Saves "two" over what prepare() makes, killed at each moment; check(killed) judges what is left.
  void at_every_moment(SaveMode mode, const fs::path& out, const std::function<void()>& prepare,
                       const std::function<void(bool)>& check) {
    const HfCheckpoint two(dir / "two");
    const auto save = [&] { copy_model(two, out, mode); };
    prepare();
    int64_t total = 0;
    const Outcome whole = run_and_kill(save, INT64_MAX, &total);
    if (whole == Outcome::cannot_trace) GTEST_SKIP() << "ptrace is not allowed here";
    ASSERT_EQ(whole, Outcome::finished);
    ASSERT_GT(total, 100);
    check(false);
    // Odd stops are entries; the exit from one call is the same moment as the entry to the next.
    for (int64_t n = 1; n <= total; n += 2) {
      prepare();
      const Outcome outcome = run_and_kill(save, n);
      ASSERT_NE(outcome, Outcome::failed) << n;
      // Sanitizers make calls of their own, not the same number each time: the last kills may come too late.
      ASSERT_TRUE(outcome == Outcome::killed || n > total * 9 / 10) << n;
      check(outcome == Outcome::killed);
      if (HasFailure()) FAIL() << "killed at stop " << n << " of " << total;
    }
  }
};

TEST_F(Kill, WhileReplacingACheckpoint) {
  const fs::path out = dir / "run" / "checkpoint-10";
  std::set<int> seen;
  at_every_moment(
      SaveMode::replace, out,
      [&] {
        fs::remove_all(dir / "run");
        fs::create_directories(dir / "run");
        fs::copy(dir / "one", out, fs::copy_options::recursive);
        write_text(out / "left.txt", "of the old checkpoint");
      },
      [&](bool killed) {
        EXPECT_FALSE(is_mixture(out, {dir / "one", dir / "two"}));
        const int generation = generation_of(out, dir / "one", dir / "two");
        seen.insert(generation);
        EXPECT_NE(generation, 0);
        EXPECT_TRUE(killed || generation == 2);
        EXPECT_EQ(fs::exists(out / "left.txt"), generation == 1);
        // The next save cleans up.
        { SaveFolder next(dir / "run" / "checkpoint-20", SaveMode::replace); }
        EXPECT_EQ(std::distance(fs::directory_iterator(dir / "run"), fs::directory_iterator()), 1);
      });
  EXPECT_EQ(seen, (std::set<int>{1, 2}));
}

TEST_F(Kill, WhileWritingANewCheckpoint) {
  const fs::path out = dir / "run" / "checkpoint-10";
  std::set<bool> seen;
  at_every_moment(
      SaveMode::replace, out, [&] { fs::remove_all(dir / "run"); },
      [&](bool) {
        seen.insert(fs::exists(out));
        EXPECT_TRUE(!fs::exists(out) || generation_of(out, dir / "one", dir / "two") == 2);
      });
  EXPECT_EQ(seen, (std::set<bool>{false, true}));
}

TEST_F(Kill, WhileTheFinalModelGoesIntoTheOutputFolder) {
  const fs::path out = dir / "run";
  std::set<int> seen;
  at_every_moment(
      SaveMode::merge, out,
      [&] {
        fs::remove_all(out);
        fs::copy(dir / "one", out, fs::copy_options::recursive);
        write_text(out / "metrics.jsonl", "kept");
      },
      [&](bool killed) {
        EXPECT_FALSE(is_mixture(out, {dir / "one", dir / "two"}));
        const int generation = generation_of(out, dir / "one", dir / "two");
        seen.insert(generation);
        EXPECT_NE(generation, 0);
        EXPECT_TRUE(killed || generation == 2);
        EXPECT_EQ(fs::exists(out / "assets" / "new.txt"), generation == 2);
        EXPECT_EQ(read_file(out / "metrics.jsonl"), "kept");
        EXPECT_FALSE(fs::exists(out / "deltatune-save.commit"));  // opening the checkpoint finished the save
        { SaveFolder next(out, SaveMode::merge); }
        EXPECT_FALSE(fs::exists(out / "deltatune-save.tmp"));
      });
  EXPECT_EQ(seen, (std::set<int>{1, 2}));
}

// Killed again while the recovery of an earlier kill runs.
TEST_F(Kill, WhileAnInterruptedSaveIsFinished) {
  const fs::path out = dir / "run";
  const HfCheckpoint two(dir / "two");
  const auto save = [&] { copy_model(two, out, SaveMode::merge); };
  const auto prepare = [&](int64_t stops) {
    fs::remove_all(out);
    fs::copy(dir / "one", out, fs::copy_options::recursive);
    return run_and_kill(save, stops);
  };
  // The first stop after which the commit is under way.
  int64_t total = 0;
  fs::copy(dir / "one", out, fs::copy_options::recursive);
  if (run_and_kill(save, INT64_MAX, &total) == Outcome::cannot_trace)
    GTEST_SKIP() << "ptrace is not allowed here";
  Rng rng(11);
  int interrupted = 0;
  for (int64_t n = total; n > 0; n -= 3) {
    if (prepare(n) != Outcome::killed) continue;
    if (!fs::exists(out / "deltatune-save.commit")) {
      if (interrupted > 0) break;
      continue;
    }
    ++interrupted;
    run_and_kill([&] { finish_interrupted_save(out); }, 1 + static_cast<int64_t>(rng.below(60)));
    EXPECT_EQ(generation_of(out, dir / "one", dir / "two"), 2) << n;
  }
  EXPECT_GT(interrupted, 5);
}

TEST(SaveFolder, NewModelWithOtherFileNamesLeavesNoOldWeights) {
  const TempFolder dir("merge_names");
  write_sharded_checkpoint(dir / "sharded");
  write_text(dir / "single" / "config.json", "{}");
  write_tensors(dir / "single" / "model.safetensors", {{"w", "F32", {2}}});
  const HfCheckpoint sharded(dir / "sharded");
  const HfCheckpoint single(dir / "single");
  const fs::path out = dir / "out";
  write_text(out / "vectors.safetensors", "somebody else's file");
  save_hf(out, SaveMode::merge, &sharded, {}, MemorySource());
  EXPECT_EQ(HfCheckpoint(out).names().size(), 8u);
  save_hf(out, SaveMode::merge, &single, {}, MemorySource());
  EXPECT_EQ(HfCheckpoint(out).names(), (std::vector<std::string>{"w"}));
  EXPECT_FALSE(fs::exists(out / index_file_name));
  EXPECT_FALSE(fs::exists(out / "layers-22.safetensors"));
  save_hf(out, SaveMode::merge, &sharded, {}, MemorySource());
  EXPECT_EQ(HfCheckpoint(out).names().size(), 8u);
  EXPECT_FALSE(fs::exists(out / "model.safetensors"));  // transformers would prefer it to the index
  EXPECT_EQ(read_file(out / "vectors.safetensors"), "somebody else's file");
}

TEST(SaveFolder, TheSourceItselfCanBeSavedOver) {
  const TempFolder dir("merge_self");
  write_sharded_checkpoint(dir / "m");
  const HfCheckpoint source(dir / "m");
  MemorySource values;
  values.put("model.A_log", {4}, {1, 2, 3, 4});
  const std::vector<TensorInfo> trained = values.infos();
  for (const SaveMode mode : {SaveMode::merge, SaveMode::replace}) {
    save_hf(dir / "m", mode, &source, trained, values);
    const HfCheckpoint saved(dir / "m");
    const float expected[]{1, 2, 3, 4};
    EXPECT_EQ(std::memcmp(saved.bytes("model.A_log").data(), expected, sizeof expected), 0);
    EXPECT_EQ(saved.names().size(), 8u);
    EXPECT_EQ(read_file(dir / "m" / "tokenizer.json"), "{ }");
  }
}

TEST(SaveFolder, LeftoversOfKilledSavesGo) {
  const TempFolder dir("stale");
  write_text(dir / "checkpoint-5.tmp" / "x", "stale");
  write_text(dir / "checkpoint-7" / "x", "good");
  write_text(dir / "notes.tmp", "not ours");
  write_text(dir / "checkpoint-9.old.tmp" / "x", "the only copy: its replacement was never renamed");
  SaveFolder folder(dir / "checkpoint-10", SaveMode::replace);
  EXPECT_FALSE(fs::exists(dir / "checkpoint-5.tmp"));
  EXPECT_TRUE(fs::exists(dir / "checkpoint-7"));
  EXPECT_TRUE(fs::exists(dir / "notes.tmp"));
  EXPECT_TRUE(fs::exists(dir / "checkpoint-9" / "x"));
  write_text(folder.path() / "x", "new");
  EXPECT_FALSE(fs::exists(dir / "checkpoint-10"));
  folder.commit();
  EXPECT_EQ(read_file(dir / "checkpoint-10" / "x"), "new");
}

TEST(SaveFolder, ACheckpointBetweenTwoRenamesIsPutBack) {
  const TempFolder dir("between");
  write_text(dir / "checkpoint-5.old.tmp" / "config.json", "{}");
  EXPECT_EQ(HfCheckpoint(dir / "checkpoint-5").config(), json::Value(json::Object{}));
  fs::rename(dir / "checkpoint-5", dir / "checkpoint-5.old.tmp");
  finish_interrupted_save(dir.path());
  EXPECT_TRUE(fs::exists(dir / "checkpoint-5" / "config.json"));
}

TEST(SaveFolder, UnwritablePlacesAreResourceErrors) {
  const TempFolder dir("unwritable");
  write_text(dir / "file", "x");
  EXPECT_TRUE(has(
      error_text(ErrorKind::resource, [&] { SaveFolder(dir / "file" / "checkpoint-1", SaveMode::replace); }),
      "cannot create"));
  EXPECT_TRUE(has(error_text(ErrorKind::resource, [&] { SaveFolder(dir / "file", SaveMode::merge); }),
                  "cannot create"));
}

TEST(CheckpointNames, OnlyDigitsAfterThePrefix) {
  int64_t step = 0;
  EXPECT_TRUE(is_checkpoint_name("checkpoint-500", &step));
  EXPECT_EQ(step, 500);
  for (const char* name :
       {"checkpoint-", "checkpoint-5.tmp", "checkpoint--5", "checkpoint-+5", "xcheckpoint-5", "checkpoint-5 ",
        "checkpoint-99999999999999999999", "Checkpoint-5"}) {
    EXPECT_FALSE(is_checkpoint_name(name)) << name;
  }
}

}  // namespace
}  // namespace deltatune
