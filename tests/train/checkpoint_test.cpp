// Saving and loading by the ranks of a run: the same model files from any number of ranks, the state of one
// number of ranks into another, copies that later steps do not touch, and errors that all ranks hear of.
#include "train/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "comm/thread_ranks.h"
#include "io/resume.h"
#include "io/test_files.h"
#include "shard/rank_engine.h"
#include "train/checkpoint_saver.h"
#include "train/output_folder.h"

namespace deltatune {
namespace {

struct Layout {
  const char* name;
  DType storage, moments;
  bool master;
};
constexpr Layout layouts[] = {{"f32", DType::f32, DType::f32, true},
                              {"bf16 with masters", DType::bf16, DType::f32, true},
                              {"bf16 alone", DType::bf16, DType::bf16, false},
                              {"bf16 and 8 bits", DType::bf16, DType::u8, false}};

EngineOptions options_of(const Layout& layout) {
  EngineOptions out = tiny_options(layout.storage);
  out.moments.dtype = layout.moments;
  out.master_weights = layout.master;
  return out;
}

struct Saving : testing::Test {
  TempFolder dir{"saver"};
  ModelSource source;

  void SetUp() override {
    write_text(dir / "model" / "config.json", "{}");
    write_text(dir / "model" / "tokenizer.json", "tok");
    source.folder = dir / "model";
    source.checkpoint = std::make_unique<HfCheckpoint>(source.folder);
    source.config = hybrid_config(false);
    source.random = true;
  }
  CheckpointOptions save_options(const std::string& name, const Layout& layout, bool copies) const {
    CheckpointOptions out;
    out.output_dir = dir / name;
    out.storage = layout.storage;
    out.max_shard_bytes = 3000;  // several files
    out.copies = copies;
    return out;
  }
  static json::Value state() { return json::Object{{"cursor", 7}}; }
};

// Moments are zero after initialise(): gives each a value of its own, the same for any world. Weights keep
// theirs, with zeros between them.
void fill_moments(ParamStore& store) {
  for (const StateTensor& tensor : store.state()) {
    if (tensor.name.ends_with(".weights")) continue;
    const auto phase =
        static_cast<double>(std::hash<std::string>{}(tensor.name) % 97 + static_cast<size_t>(tensor.begin));
    if (tensor.data.dtype == DType::u8) {  // codes
      for (int64_t i = 0; i < tensor.data.count(); ++i)
        tensor.data.data[i] = static_cast<std::byte>((static_cast<int64_t>(phase) + i) * 37);
      continue;
    }
    std::vector<float> values(static_cast<size_t>(tensor.data.count()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(std::sin(phase + static_cast<double>(i)));
    convert(tensor.data.data, tensor.data.dtype, values.data(), DType::f32, tensor.data.count());
  }
}

// The buffers of all ranks as one.
using Whole = std::map<std::string, std::vector<std::byte>>;
std::mutex collect_mutex;
void collect(const ParamStore& store, Whole& into) {
  const std::lock_guard<std::mutex> lock(collect_mutex);
  for (const StateTensor& tensor : store.state()) {
    std::vector<std::byte>& all = into[tensor.name];
    const size_t at = static_cast<size_t>(tensor.begin) * size_of(tensor.data.dtype);
    all.resize(std::max(all.size(), at + tensor.data.bytes()));
    std::memcpy(all.data() + at, tensor.data.data, tensor.data.bytes());
  }
}
// Up to the padding at the end, whose length depends on the world.
void expect_equal(const Whole& a, const Whole& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, bytes] : a) {
    const size_t shorter = std::min(bytes.size(), b.at(name).size());
    EXPECT_GT(shorter, 0u);
    EXPECT_EQ(std::memcmp(bytes.data(), b.at(name).data(), shorter), 0) << name;
  }
}

TEST_F(Saving, AnyWorldWritesTheSameModelAndGoesOnFromAnyOther) {
  for (const Layout& layout : layouts) {
    std::map<std::string, std::string> one;  // file -> bytes
    for (const int world : {1, 2, 3}) {
      const std::string name = std::string("out") + std::to_string(world) + layout.name;
      Whole saved;
      run_ranks(world, [&](Communicator& comm) {
        RankEngine rank(comm, options_of(layout), false);
        fill_moments(rank.engine.store());
        collect(rank.engine.store(), saved);
        CheckpointSaver saver(rank.engine, source, save_options(name, layout, true));
        EXPECT_TRUE(saver.start(4, state(), {}));
        const SaveReport report = saver.finish();
        EXPECT_TRUE(report.background);
        EXPECT_FALSE(saver.pending());
      });
      const fs::path folder = dir / name / "checkpoint-4";
      EXPECT_EQ(read_file(folder / "tokenizer.json"), "tok");
      std::map<std::string, std::string> files;
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (entry.is_regular_file()) files[entry.path().filename().string()] = read_file(entry.path());
      }
      EXPECT_GT(files.size(), 5u);
      if (world == 1) one = files;
      EXPECT_TRUE(files == one) << layout.name << ", " << world << " ranks";
      // Values that the model's files hold exactly are stored once.
      const ResumeState resume(folder);
      EXPECT_EQ(RankFile(resume, 0).find("embedding.weights") != nullptr,
                layout.storage == DType::bf16 && layout.master);
      for (const int other : {1, 2, 3, 4}) {
        Whole loaded;
        run_ranks(other, [&](Communicator& comm) {
          RankEngine rank(comm, options_of(layout), false);
          EXPECT_EQ(load_checkpoint(folder, rank.engine).at("cursor").as_integer(), 7);
          collect(rank.engine.store(), loaded);
        });
        expect_equal(saved, loaded);
      }
    }
  }
}

TEST_F(Saving, WhatChangesAfterTheStartIsNotSaved) {
  for (const Layout& layout : layouts) {
    for (const bool copies : {true, false}) {
      const std::string name = std::string(layout.name) + (copies ? " copied" : "");
      Whole before, loaded;
      run_ranks(2, [&](Communicator& comm) {
        RankEngine rank(comm, options_of(layout), false);
        fill_moments(rank.engine.store());
        collect(rank.engine.store(), before);
        CheckpointSaver saver(rank.engine, source, save_options(name, layout, copies));
        EXPECT_EQ(saver.start(1, state(), {}), copies);
        const auto change = [&] { rank.engine.store().initialise(rank.engine.stream(), 12, 1); };
        if (copies) change();
        int64_t polls = 0;
        if (copies) {
          while (!saver.poll()) ++polls;
        } else {
          EXPECT_FALSE(saver.finish().background);
        }
        change();
      });
      run_ranks(2, [&](Communicator& comm) {
        RankEngine rank(comm, options_of(layout), false);
        load_checkpoint(dir / name / "checkpoint-1", rank.engine);
        collect(rank.engine.store(), loaded);
      });
      expect_equal(before, loaded);
    }
  }
}

TEST_F(Saving, OneRanksErrorIsEveryRanksAndTheOldCheckpointStays) {
  const Layout& layout = layouts[0];
  std::vector<ErrorKind> kinds(3, ErrorKind::internal);
  run_ranks(3, [&](Communicator& comm) {
    RankEngine rank(comm, options_of(layout), false);
    CheckpointOptions options = save_options("out", layout, true);
    options.save_total_limit = 1;
    CheckpointSaver saver(rank.engine, source, options);
    saver.start(1, state(), {});
    saver.finish();
    if (comm.rank() == 1) {
      for (const StateTensor& tensor : rank.engine.store().state()) {
        if (tensor.name == "embedding.weights") tensor.data.as<float>()[3] = NAN;
      }
    }
    saver.start(2, state(), {});
    try {
      saver.finish();
    } catch (const Error& error) {
      kinds[static_cast<size_t>(comm.rank())] = error.kind();
      EXPECT_NE(error.text().find("is NaN"), std::string::npos) << error.text();
    }
    EXPECT_FALSE(saver.pending());
  });
  EXPECT_EQ(kinds,
            (std::vector<ErrorKind>{ErrorKind::distributed, ErrorKind::diverged, ErrorKind::distributed}));
  EXPECT_EQ(latest_complete_checkpoint(dir / "out")->step, 1);
  EXPECT_FALSE(fs::exists(dir / "out" / "checkpoint-2"));
  EXPECT_FALSE(fs::exists(dir / "out" / "checkpoint-2.tmp"));
}

TEST_F(Saving, ARunThatEndsDuringASaveLeavesNothingOfIt) {
  const Layout& layout = layouts[0];
  run_ranks(1, [&](Communicator& comm) {
    RankEngine rank(comm, options_of(layout), false);
    {
      CheckpointSaver saver(rank.engine, source, save_options("out", layout, true));
      saver.start(1, state(), {});
    }
    EXPECT_TRUE(fs::is_empty(dir / "out"));
  });
}

TEST_F(Saving, OnlyTheModelWhenOnlyThatIsWanted) {
  const Layout& layout = layouts[2];
  run_ranks(2, [&](Communicator& comm) {
    RankEngine rank(comm, options_of(layout), false);
    CheckpointOptions options = save_options("out", layout, true);
    options.only_model = true;
    CheckpointSaver saver(rank.engine, source, options);
    saver.start(1, state(), {});
    const SaveReport report = saver.finish();
    saver.save_model({});
    if (comm.rank() != 0) return;
    EXPECT_FALSE(fs::exists(dir / "out" / "checkpoint-1" / resume_folder_name));
    int64_t bytes = 0;
    const HfCheckpoint written(dir / "out" / "checkpoint-1");
    for (const SafetensorsFile& file : written.files()) {
      bytes += static_cast<int64_t>(file.all().size());
      EXPECT_EQ(read_file(file.path()), read_file(dir / "out" / file.path().filename()));
    }
    EXPECT_EQ(report.bytes, bytes);
  });
}

// A changed byte in a part that a rank reads is found; in a part that it does not read it does not matter.
TEST_F(Saving, ARankChecksWhatItReads) {
  const Layout& layout = layouts[1];
  run_ranks(2, [&](Communicator& comm) {
    RankEngine rank(comm, options_of(layout), false);
    CheckpointSaver saver(rank.engine, source, save_options("out", layout, true));
    saver.start(1, state(), {});
    saver.finish();
  });
  const fs::path folder = dir / "out" / "checkpoint-1";
  const fs::path path = rank_file_path(folder, 1, 2);
  std::string bytes = read_file(path);
  bytes[bytes.size() - 1000] = static_cast<char>(bytes[bytes.size() - 1000] ^ 1);
  write_text(path, bytes);
  const RankErrors errors = on_ranks(2, [&](Communicator& comm) {
    RankEngine rank(comm, options_of(layout), false);
    load_checkpoint(folder, rank.engine);
  });
  EXPECT_FALSE(errors[0].has_value());
  ASSERT_TRUE(errors[1].has_value());
  EXPECT_EQ(errors[1]->kind(), ErrorKind::model);
  EXPECT_NE(errors[1]->text().find("rank-00001-of-00002.safetensors was altered"), std::string::npos);
}

TEST(SharedFolder, ARankThatSeesAnotherFolderIsNamed) {
  const TempFolder dir("shared");
  fs::create_directories(dir / "a");
  fs::create_directories(dir / "b");
  run_ranks(3, [&](Communicator& comm) { check_shared_folder(comm, dir / "a"); });
  EXPECT_TRUE(fs::is_empty(dir / "a"));
  const RankErrors errors = on_ranks(
      3, [&](Communicator& comm) { check_shared_folder(comm, dir / (comm.rank() == 2 ? "b" : "a")); });
  for (const std::optional<Error>& error : errors) ASSERT_TRUE(error.has_value());
  EXPECT_EQ(errors[2]->kind(), ErrorKind::resource);
  EXPECT_NE(errors[2]->text().find("rank 2 does not see"), std::string::npos) << errors[2]->text();
  EXPECT_EQ(errors[0]->kind(), ErrorKind::distributed);
  EXPECT_TRUE(fs::is_empty(dir / "a"));
}

}  // namespace
}  // namespace deltatune
