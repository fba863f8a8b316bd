// Saving: the no-op that must change nothing, conversions, refusals, new checkpoints, side files, full disks.
#include "io/checkpoint_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <cstdlib>

#include "base/rng.h"
#include "io/finite.h"
#include "io/save_hf.h"
#include "io/test_files.h"

namespace deltatune {
namespace {

std::vector<TensorInfo> infos_of(const HfCheckpoint& checkpoint, const std::vector<std::string>& names) {
  std::vector<TensorInfo> out;
  for (const std::string& name : names) out.push_back(*checkpoint.find(name));
  return out;
}

// Every tensor byte-equal and in the same file, at the same place.
void expect_equal_weights(const HfCheckpoint& a, const HfCheckpoint& b) {
  ASSERT_EQ(a.files().size(), b.files().size());
  for (size_t i = 0; i < a.files().size(); ++i) {
    const SafetensorsFile& x = a.files()[i];
    const SafetensorsFile& y = b.files()[i];
    EXPECT_EQ(x.path().filename(), y.path().filename());
    ASSERT_EQ(x.all().size(), y.all().size());
    EXPECT_EQ(std::memcmp(x.all().data(), y.all().data(), x.all().size()), 0) << x.path();
  }
}

void save_untouched(const HfCheckpoint& source, const std::vector<std::string>& names, DType memory,
                    const fs::path& out) {
  MemorySource values;
  for (const std::string& name : names) {
    // A bf16 copy of an f16 or f32 tensor is no longer the tensor: those stay f32 in memory.
    values.put(source, name, source.find(name)->dtype == DType::bf16 ? memory : DType::f32);
  }
  save_hf(out, SaveMode::replace, &source, infos_of(source, names), values);
}

TEST(SaveHf, WithoutAStepEveryByteOfTheWeightsIsKept) {
  const TempFolder dir("save_noop");
  write_sharded_checkpoint(dir / "in");
  write_text(dir / "in" / "assets" / "figure.png", std::string("\0PNG", 4));
  const HfCheckpoint source(dir / "in");
  for (const DType memory : {DType::f32, DType::bf16, DType::f64}) {
    const fs::path out = dir / name_of(memory);
    save_untouched(source, trained_names(), memory, out);
    const HfCheckpoint saved(out);
    expect_equal_weights(source, saved);
    EXPECT_EQ(read_file(out / "config.json"), read_file(dir / "in" / "config.json"));
    EXPECT_EQ(read_file(out / "tokenizer.json"), "{ }");
    EXPECT_EQ(read_file(out / "assets" / "figure.png"), std::string("\0PNG", 4));
    EXPECT_FALSE(fs::exists(out.string() + ".tmp"));
    // The index: sizes right, names sorted, other metadata kept.
    int64_t total = 0;
    for (const SafetensorsFile& file : saved.files())
      total += static_cast<int64_t>(file.all().size() - file.head().size());
    EXPECT_EQ(saved.index().at("metadata").at("total_size").as_integer(), total);
    EXPECT_EQ(saved.index().at("metadata").at("note").as_string(), "kept");
    const json::Object& map = saved.index().at("weight_map").as_object();
    ASSERT_EQ(map.size(), 8u);
    for (size_t i = 1; i < map.size(); ++i) EXPECT_LT(map[i - 1].first, map[i].first);
    EXPECT_EQ(saved.index().at("weight_map").at("table").as_string(), "x.safetensors");
  }
}

TEST(SaveHf, GoldenCheckpointWithoutAStepIsByteEqual) {
  const fs::path golden = DELTATUNE_SOURCE_DIR "/../shared/golden/narrow_vlm/model";
  if (!fs::exists(golden)) GTEST_SKIP() << "no golden checkpoint at " << golden;
  const TempFolder dir("save_golden");
  const HfCheckpoint source(golden);
  source.check_trainable();
  std::vector<std::string> names;
  for (const std::string& name : source.names()) {
    if (!name.starts_with("mtp.") && !name.starts_with("model.visual.")) names.push_back(name);
  }
  ASSERT_GT(names.size(), 40u);
  check_finite(source, names);
  save_untouched(source, names, DType::f32, dir / "out");
  const HfCheckpoint saved(dir / "out");
  expect_equal_weights(source, saved);
  EXPECT_EQ(saved.index().at("metadata"), source.index().at("metadata"));
  const json::Object& map = saved.index().at("weight_map").as_object();
  EXPECT_EQ(map.size(), source.index().at("weight_map").as_object().size());
  for (const auto& [name, file] : map) EXPECT_EQ(file, source.index().at("weight_map").at(name)) << name;
  for (const char* side : {"config.json", "generation_config.json"}) {
    EXPECT_EQ(read_file(dir / "out" / side), read_file(golden / side));
  }
}

TEST(SaveHf, TrainedValuesAreRoundedToNearestEvenOthersUntouched) {
  const TempFolder dir("save_round");
  write_sharded_checkpoint(dir / "in");
  const HfCheckpoint source(dir / "in");
  MemorySource values;
  std::vector<float> b(15, 0.5f);
  b[0] = std::bit_cast<float>(0x3f808000u);  // halfway between two bf16, even below
  b[1] = std::bit_cast<float>(0x3f818000u);  // halfway, even above
  b[2] = std::bit_cast<float>(0x3f808001u);
  b[3] = -0.0f;
  values.put("model.b.weight", {3, 5}, b);
  values.put("model.a.weight", {7},
             {1.00048828125f, 1.00146484375f, 65504.0f, -65504.0f, 0x1p-24f, 0x1p-26f, 0.0f});
  const std::vector<TensorInfo> trained = infos_of(source, {"model.b.weight", "model.a.weight"});
  save_hf(dir / "out", SaveMode::replace, &source, trained, values);
  const HfCheckpoint saved(dir / "out");
  uint16_t bits[15];
  saved.read("model.b.weight", reinterpret_cast<std::byte*>(bits));
  EXPECT_EQ(bits[0], 0x3f80);
  EXPECT_EQ(bits[1], 0x3f82);
  EXPECT_EQ(bits[2], 0x3f81);
  EXPECT_EQ(bits[3], 0x8000);
  saved.read("model.a.weight", reinterpret_cast<std::byte*>(bits));
  const uint16_t halves[]{0x3c00, 0x3c02, 0x7bff, 0xfbff, 0x0001, 0x0000, 0x0000};
  EXPECT_EQ(std::memcmp(bits, halves, sizeof halves), 0);
  for (const std::string& name : source.names()) {
    if (name == "model.b.weight" || name == "model.a.weight") continue;
    const auto before = source.bytes(name);
    EXPECT_EQ(std::memcmp(before.data(), saved.bytes(name).data(), before.size()), 0) << name;
  }
}

TEST(SaveHf, NonFiniteValuesAndWrongTensorsAreRefusedAndNothingIsLeft) {
  const TempFolder dir("save_refuse");
  write_sharded_checkpoint(dir / "in");
  write_text(dir / "out" / "old", "old");
  const HfCheckpoint source(dir / "in");
  const auto save = [&](ErrorKind kind, const std::string& name, std::vector<int64_t> shape,
                        const std::vector<float>& v) {
    MemorySource values;
    values.put(name, shape, v);
    const std::vector<TensorInfo> trained{{name, DType::f32, shape}};
    try {
      save_hf(dir / "out", SaveMode::replace, &source, trained, values);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), kind) << e.text();
      EXPECT_EQ(read_file(dir / "out" / "old"), "old");
      EXPECT_FALSE(fs::exists(dir / "out.tmp"));
      return e.text();
    }
    return std::string();
  };
  const std::string overflow = save(ErrorKind::model, "model.a.weight", {7}, {0, 0, 70000.0f, 0, 0, 0, 0});
  EXPECT_TRUE(has(overflow, "\"model.a.weight\" has become 70000, which F16 cannot hold")) << overflow;
  EXPECT_TRUE(has(overflow, "element 2")) << overflow;
  EXPECT_TRUE(has(save(ErrorKind::model, "model.a.weight", {7}, {0, 0, 0, 0, 0, 0, 65520.0f}), "65520"));
  EXPECT_TRUE(has(save(ErrorKind::diverged, "model.a.weight", {7}, {NAN, 0, 0, 0, 0, 0, 0}), "NaN"));
  EXPECT_TRUE(has(save(ErrorKind::diverged, "model.A_log", {4}, {0, 0, 0, -INFINITY}), "infinite"));
  EXPECT_TRUE(
      has(save(ErrorKind::model, "model.new", {1}, {0}), "\"model.new\" is not in the input checkpoint"));
  EXPECT_TRUE(has(save(ErrorKind::model, "count", {}, {0}), "stored as I64"));
  EXPECT_TRUE(has(save(ErrorKind::internal, "model.A_log", {2, 2}, {0, 0, 0, 0}), "shape [2, 2]"));
}

TEST(SaveHf, NonFiniteValueInALaterBlockIsFoundAtItsPlace) {
  const TempFolder dir("save_blocks");
  const int64_t n = (1 << 20) + 100;
  write_text(dir / "in" / "config.json", "{}");
  write_tensors(dir / "in" / "model.safetensors", {{"w", "BF16", {n}}});
  const HfCheckpoint source(dir / "in");
  std::vector<float> v(static_cast<size_t>(n));
  Rng rng(3);
  for (float& x : v) x = static_cast<float>(rng.normal());
  MemorySource values;
  values.put("w", {n}, v);
  const std::vector<TensorInfo> trained = infos_of(source, {"w"});
  save_hf(dir / "out", SaveMode::replace, &source, trained, values);
  const auto saved = HfCheckpoint(dir / "out");
  for (const int64_t i : {int64_t{0}, int64_t{(1 << 20) - 1}, int64_t{1 << 20}, n - 1}) {
    uint16_t bits;
    std::memcpy(&bits, saved.bytes("w").data() + 2 * i, 2);
    EXPECT_EQ(bits, narrow<bf16>(v[static_cast<size_t>(i)]).bits);
  }
  v[(1 << 20) + 7] = NAN;
  values.put("w", {n}, v);
  EXPECT_TRUE(has(error_text(ErrorKind::diverged,
                             [&] { save_hf(dir / "out", SaveMode::replace, &source, trained, values); }),
                  "element 1048583"));
}

// Cuts of ranks fall inside rows and pages, and one file is larger than a block.
TEST(SaveHf, AnyNumberOfRanksWritesTheSameFiles) {
  const TempFolder dir("save_ranks");
  write_sharded_checkpoint(dir / "in");
  const auto n = static_cast<int64_t>(StagingLanes::block + 12345);
  write_tensors(dir / "in" / "x.safetensors",
                {{"lm_head.weight", "BF16", {n}}, {"table", "F8_E4M3", {5}}, {"odd", "U8", {3}}});
  fs::remove(dir / "in" / index_file_name);
  fs::remove(dir / "in" / "layers-22.safetensors");
  fs::remove(dir / "in" / "model.safetensors-00001-of-00002.safetensors");
  const HfCheckpoint source(dir / "in");
  std::vector<float> v(static_cast<size_t>(n));
  Rng rng(5);
  for (float& x : v) x = static_cast<float>(rng.normal());
  MemorySource values;
  values.put("lm_head.weight", {n}, v);
  const std::vector<TensorInfo> trained = infos_of(source, {"lm_head.weight"});
  SaveOptions options;
  std::string one;
  for (const int ranks : {1, 2, 3, 7}) {
    options.ranks = ranks;
    const std::vector<FileBlocks> blocks =
        save_hf(dir / "out", SaveMode::replace, &source, trained, values, options);
    const std::string bytes = read_file(dir / "out" / "x.safetensors");
    if (ranks == 1) one = bytes;
    ASSERT_EQ(bytes.size(), source.files()[0].all().size());
    EXPECT_TRUE(bytes == one) << ranks << " ranks";
    // Their blocks cover the file and fit it; a changed byte is found where it is.
    const HashedFile checked(dir / "out" / "x.safetensors", blocks[0]);
    std::vector<std::byte> back(bytes.size() - 20);
    checked.read(11, back);
    EXPECT_EQ(std::memcmp(back.data(), bytes.data() + 11, back.size()), 0);
  }
  uint16_t bits;
  std::memcpy(&bits, one.data() + source.files()[0].head().size() + 2 * static_cast<size_t>(n - 1), 2);
  EXPECT_EQ(bits, narrow<bf16>(v.back()).bits);
}

fs::path write_bare(const fs::path& folder) {
  write_text(folder / "config.json", "{\"bare\":1}");
  return folder;
}

TEST(SaveHf, WithoutASourceShardsAreCutAndNamed) {
  const TempFolder dir("save_new");
  write_text(dir / "side" / "tokenizer.json", "tok");
  write_text(dir / "side" / "config.json", "not this one");
  MemorySource values;
  values.put("model.a", {4}, {1, 2, 3, 4});
  values.put("model.b", {8}, std::vector<float>(8, 5));
  values.put("model.c", {2}, {6, 7});
  std::vector<TensorInfo> tensors = values.infos();
  tensors[2].dtype = DType::bf16;  // the dtype in the file
  SaveOptions options;
  options.config_text = "{\"model_type\":\"x\"}";
  options.side_files = dir / "side";
  save_hf(dir / "one", SaveMode::replace, nullptr, tensors, values, options);
  const HfCheckpoint one(dir / "one");
  EXPECT_FALSE(one.has_index());
  EXPECT_TRUE(fs::exists(dir / "one" / "model.safetensors"));
  EXPECT_EQ(one.files()[0].header().metadata, (Metadata{{"format", "pt"}}));
  EXPECT_EQ(one.find("model.c")->dtype, DType::bf16);
  EXPECT_EQ(read_file(dir / "one" / "config.json"), options.config_text);
  EXPECT_EQ(read_file(dir / "one" / "tokenizer.json"), "tok");

  options.max_shard_bytes = 20;  // a: 16 bytes; b: 32, more than a shard; c: 4
  save_hf(dir / "three", SaveMode::replace, nullptr, tensors, values, options);
  const HfCheckpoint three(dir / "three");
  ASSERT_EQ(three.files().size(), 3u);
  EXPECT_EQ(three.files()[0].path().filename(), "model-00001-of-00003.safetensors");
  EXPECT_EQ(three.files()[1].tensors()[0].name, "model.b");
  EXPECT_EQ(three.index().at("metadata").at("total_size").as_integer(), 52);
  EXPECT_EQ(three.index().at("weight_map").at("model.c").as_string(), "model-00003-of-00003.safetensors");

  // A source that has a configuration but no weights is the same case.
  const HfCheckpoint bare_source(write_bare(dir / "bare"));
  save_hf(dir / "four", SaveMode::replace, &bare_source, tensors, values);
  EXPECT_EQ(HfCheckpoint(dir / "four").names().size(), 3u);
  EXPECT_EQ(read_file(dir / "four" / "config.json"), "{\"bare\":1}");
}

TEST(SideFiles, WeightsOfAnyFormatAndRunFilesStayBehind) {
  const TempFolder dir("side_files");
  for (const char* name : {"config.json",
                           "tokenizer.json",
                           "README.md",
                           "LICENSE",
                           "chat_template.jinja",
                           "a.safetensors",
                           "pytorch_model.bin",
                           "pytorch_model.bin.index.json",
                           "model.safetensors.index.json",
                           "consolidated.00.pth",
                           "x.gguf",
                           "optimizer.pt",
                           "trainer_state.json",
                           "metrics.jsonl",
                           "half.tmp",
                           "vocab.json",
                           "assets/a.png",
                           "assets/deep/b.txt",
                           "assets/w.safetensors",
                           "deltatune/state.json",
                           "checkpoint-5/config.json",
                           "checkpoint-5.tmp/config.json",
                           "runs/events",
                           ".git/config",
                           ".gitattributes",
                           "original/params.json",
                           "out/run.json",
                           "out/config.json",
                           "deltatune-save.tmp/config.json"}) {
    write_text(dir / name, "x");
  }
  fs::create_symlink(dir / "absent", dir / "dangling.json");
  fs::create_symlink(dir / "LICENSE", dir / "linked.txt");
  fs::create_directory_symlink(dir.path(), dir / "loop");
  std::vector<std::string> found;
  for (const fs::path& file : side_files_of(dir.path())) found.push_back(file.string());
  EXPECT_EQ(found, (std::vector<std::string>{".gitattributes", "LICENSE", "README.md", "assets/a.png",
                                             "assets/deep/b.txt", "chat_template.jinja", "config.json",
                                             "linked.txt", "tokenizer.json", "vocab.json"}));
}

// A file size limit stands in for a full disk: write() fails in the middle of a file, no root needed.
TEST(SaveHf, FullDiskIsAnErrorAndTheOldCheckpointStays) {
  const TempFolder dir("save_full");
  write_text(dir / "in" / "config.json", "{}");
  write_tensors(dir / "in" / "model.safetensors", {{"w", "BF16", {200000}}});
  const HfCheckpoint source(dir / "in");
  write_text(dir / "out" / "config.json", "old");
  for (const SaveMode mode : {SaveMode::replace, SaveMode::merge}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{100000, 100000};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      try {
        save_hf(dir / "out", mode, &source, {}, MemorySource());
      } catch (const Error& e) {
        const std::string text = e.text();
        ::_exit(e.kind() == ErrorKind::resource && has(text, "cannot write") &&
                        has(text, "free some disk space")
                    ? 40
                    : 41);
      }
      ::_exit(42);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 40);
    EXPECT_EQ(read_file(dir / "out" / "config.json"), "old");
    EXPECT_FALSE(fs::exists(dir / "out.tmp"));
    EXPECT_EQ(std::distance(fs::directory_iterator(dir / "out"), fs::directory_iterator()), 1);
  }
}

// transformers' own library reads what we write. Runs where python3 (or $DELTATUNE_PYTHON) has
// safetensors.
TEST(SaveHf, TheSafetensorsLibraryReadsOurFiles) {
  const char* chosen = std::getenv("DELTATUNE_PYTHON");
  const std::string python = chosen ? chosen : "python3";
  if (std::system((python + " -c 'import safetensors' >/dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << python << " cannot import safetensors";
  }
  const TempFolder dir("save_python");
  MemorySource values;
  values.put("model.a", {2, 2}, {1, -2, 0.5f, 65504});
  values.put("model.b", {3}, {1, 2, 3});
  std::vector<TensorInfo> tensors = values.infos();
  tensors[0].dtype = DType::f16;
  tensors[1].dtype = DType::bf16;
  SaveOptions options;
  options.config_text = "{}";
  save_hf(dir / "out", SaveMode::replace, nullptr, tensors, values, options);
  write_text(dir / "check.py",
             "import json, struct, sys\n"
             "from safetensors import deserialize\n"
             "data = open(sys.argv[1], 'rb').read()\n"
             "head = json.loads(data[8:8 + struct.unpack('<Q', data[:8])[0]])\n"
             "assert head['__metadata__'] == {'format': 'pt'}, head\n"
             "tensors = dict(deserialize(data))\n"
             "assert sorted(tensors) == ['model.a', 'model.b'], tensors\n"
             "a, b = tensors['model.a'], tensors['model.b']\n"
             "assert (a['dtype'], a['shape']) == ('F16', [2, 2]), a\n"
             "assert struct.unpack('<4e', a['data']) == (1, -2, 0.5, 65504), a\n"
             "assert (b['dtype'], b['shape']) == ('BF16', [3]), b\n"
             "widened = b''.join(b'\\0\\0' + b['data'][i:i + 2] for i in (0, 2, 4))\n"
             "assert struct.unpack('<3f', widened) == (1, 2, 3), b\n");
  const std::string command =
      python + " " + (dir / "check.py").string() + " " + (dir / "out" / "model.safetensors").string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace deltatune
