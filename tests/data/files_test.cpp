// data/files, data/dataset_folder: folders, patterns, splits by name and by README.md, what is named twice.
#include "data/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.h"
#include "data/dataset_folder.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

// Paths relative to the folder, in the order that rows are read.
std::string names(const ScratchFolder& folder, const std::vector<std::string>& entries,
                  const std::string& split = {}) {
  std::string out;
  for (const fs::path& path : dataset_files(entries, split)) {
    out += path.lexically_relative(folder.path()).string() + " ";
  }
  return out;
}

std::string of_split(const ScratchFolder& folder, const std::string& split) {
  return names(folder, {folder.path().string()}, split);
}

// What is wrong and where, in one text.
std::string refusal(const std::vector<std::string>& entries, const std::string& split = {}) {
  try {
    dataset_files(entries, split);
  } catch (const Error& e) {
    EXPECT_FALSE(e.fix().empty());
    return e.text();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Files, ExpandsFoldersAndPatternsInOrder) {
  const ScratchFolder folder;
  for (const char* name : {"b.jsonl", "a.json", "c.ndjson", ".hidden.jsonl", "notes.txt"})
    folder.write(name, "{}");
  const std::string base = folder.path().string();
  const auto names = [](const std::vector<fs::path>& paths) {
    std::string out;
    for (const fs::path& path : paths) out += path.filename().string() + " ";
    return out;
  };
  EXPECT_EQ(names(dataset_files({base})), "a.json b.jsonl c.ndjson ");
  EXPECT_EQ(names(dataset_files({base + "/[bc].*json*", base + "/a.json"})), "b.jsonl c.ndjson a.json ");
  const auto kind_of = [](const std::vector<std::string>& entries) {
    try {
      dataset_files(entries);
    } catch (const Error& e) {
      EXPECT_FALSE(e.fix().empty());
      return e.kind();
    }
    return ErrorKind::internal;
  };
  EXPECT_EQ(kind_of({}), ErrorKind::usage);
  EXPECT_EQ(kind_of({base, base + "/../" + folder.path().filename().string() + "/a.json"}), ErrorKind::usage);
  EXPECT_EQ(kind_of({base + "/none.jsonl"}), ErrorKind::data);
  EXPECT_EQ(kind_of({base + "/*.parquet"}), ErrorKind::data);
  EXPECT_EQ(kind_of({base + "/notes.txt"}), ErrorKind::data);
  const std::string pipe = base + "/pipe.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(kind_of({pipe}), ErrorKind::data) << "nobody writes into it: opening it would hang";
  const ScratchFolder empty;
  EXPECT_EQ(kind_of({empty.path().string()}), ErrorKind::data);
}

TEST(Files, SplitsByName) {
  const ScratchFolder hub;
  for (const char* split : {"train_sft", "test_sft", "train_gen"}) {
    for (const char* part : {"-00001-of-00002.jsonl.gz", "-00000-of-00002.jsonl.gz"}) {
      hub.write(std::string("data/") + split + part, "{}");
    }
  }
  hub.write("README.md", "# A card without front matter");
  EXPECT_EQ(of_split(hub, "train_sft"),
            "data/train_sft-00000-of-00002.jsonl.gz data/train_sft-00001-of-00002.jsonl.gz ");
  EXPECT_EQ(dataset_files({hub.path().string()}).size(), 6u) << "no split: all of them";
  EXPECT_EQ(names(hub, {hub.path().string() + "/data/*_gen-*"}, "train_sft").size(), 2 * 39u)
      << "a pattern is taken as it is";
  const std::string text = refusal({hub.path().string()}, "train");
  EXPECT_TRUE(has(text, "no split train; it has test_sft, train_gen, train_sft")) << text;
  EXPECT_TRUE(has(text, "dataset_train_split: train_gen")) << text << ": never a test split instead of train";

  const ScratchFolder words;
  for (const char* name :
       {"a.jsonl", "My-Test_2.json", "dev.jsonl.zst", "training.ndjson", "contest.jsonl"}) {
    words.write(name, "{}");
  }
  EXPECT_EQ(of_split(words, "train"), "a.jsonl contest.jsonl training.ndjson ");
  EXPECT_EQ(of_split(words, "test"), "My-Test_2.json ");
  EXPECT_EQ(of_split(words, "validation"), "dev.jsonl.zst ");
  EXPECT_EQ(of_split(words, "contest"), "contest.jsonl ");

  const ScratchFolder plain;
  plain.write("b.jsonl", "{}");
  plain.write("a.jsonl", "{}");
  EXPECT_EQ(of_split(plain, "test"), "a.jsonl b.jsonl ") << "no file names a split: there are none";

  const ScratchFolder nested;
  nested.write("data/test/x.jsonl", "{}");
  nested.write("data/train/x.jsonl", "{}");
  EXPECT_EQ(of_split(nested, "train"), "data/train/x.jsonl ");
}

TEST(Files, SplitsByReadme) {
  const ScratchFolder folder;
  for (const char* name :
       {"raw/b.jsonl", "raw/a.jsonl", "raw/deep/c.json", "raw/.d.json", "held/out.jsonl.gz"}) {
    folder.write(name, "{}");
  }
  const auto card = [&](const std::string& yaml) {
    folder.write("README.md", "---\nlicense: apache-2.0\n" + yaml + "\n---\n# Data\n---\n");
  };
  card(
      "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: raw/**/*.json*\n"
      "  - split: test\n    path:\n    - held/*");
  EXPECT_EQ(of_split(folder, "train"), "raw/a.jsonl raw/b.jsonl raw/deep/c.json ");
  EXPECT_EQ(of_split(folder, "test"), "held/out.jsonl.gz ");
  EXPECT_TRUE(has(refusal({folder.path().string()}, "dev"), "there is no split dev; there is test, train"));
  card(
      "configs:\n- config_name: x\n  data_files: held/*.gz\n- config_name: y\n  default: true\n"
      "  data_dir: raw");
  EXPECT_EQ(of_split(folder, "train"), "raw/a.jsonl raw/b.jsonl ");
  card("configs:\n- config_name: x\n  data_files: {train: raw/a.jsonl, test: raw/b.jsonl}");
  EXPECT_EQ(of_split(folder, "test"), "raw/b.jsonl ");
  card("configs:\n- config_name: x\n  data_files: a\n- config_name: y\n  data_files: b");
  EXPECT_TRUE(has(refusal({folder.path().string()}, "train"), "several configurations (x, y)"));
  card("configs:\n- config_name: x\n  data_files: ../*");
  const std::string missing = refusal({folder.path().string()}, "train");
  EXPECT_TRUE(has(missing, "matches no file") && has(missing, "README.md:"));
  EXPECT_FALSE(has(missing, "dataset_train_split")) << "no split is wrong here";
  EXPECT_FALSE(has(refusal({(folder.path() / "none.jsonl").string()}, "train"), "dataset_train_split"));
  card("configs: [&a x, *a]");
  EXPECT_TRUE(has(refusal({folder.path().string()}, "train"), "README.md"));
  card("configs:\n- config_name: x\n  data_files:\n  - split: train");
  EXPECT_TRUE(has(refusal({folder.path().string()}, "train"), "split train has no path"));
}

TEST(Files, AnyNumberOfFolders) {
  const ScratchFolder folder;
  for (const char* name : {"a.jsonl", "x/b.jsonl", "x/y/c.jsonl", "x/.z/d.jsonl", "x/y/e.txt"}) {
    folder.write(name, "{}");
  }
  const std::string base = folder.path().string();
  EXPECT_EQ(names(folder, {base + "/**/*.jsonl"}), "a.jsonl x/b.jsonl x/y/c.jsonl ");
  EXPECT_EQ(names(folder, {base + "/x/**/c*"}), "x/y/c.jsonl ");
  EXPECT_TRUE(has(refusal({base + "/**/*.parquet"}), "no such file"));
  EXPECT_TRUE(has(refusal({base + "/none/**"}), "no such file"));
}

TEST(Files, NamesWhatIsThereTwice) {
  const ScratchFolder folder;
  const std::string a = folder.write("a.jsonl", "{}");
  const std::string again = folder.path().string() + "/?.jsonl";
  const std::string text = refusal({a, again});
  EXPECT_TRUE(has(text, a + " is named twice")) << text;
  EXPECT_TRUE(has(text, "dataset: " + a + " and " + again)) << text;
  folder.write("a.jsonl.gz", "{}");
  EXPECT_TRUE(has(refusal({folder.path().string()}), "a.jsonl.gz look like the same rows twice"));
}

}  // namespace
}  // namespace deltatune
