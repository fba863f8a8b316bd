// Splits from file names and from README.md.
#include "data/dataset_folder.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "base/yaml.h"
#include "data/row_source.h"

namespace deltatune {
namespace {

constexpr const char* name_files = "name files or a pattern instead of the folder";

std::string choose_split(const std::string& name) {
  return format("dataset_train_split: {} (of eval_dataset: dataset_test_split), or {}", name, name_files);
}

std::string joined(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

// Paths within the tree, sorted.
std::vector<fs::path> row_files_in(const FileTree& tree, const fs::path& inner) {
  std::vector<fs::path> out;
  for (fs::path& file : tree.files_in(inner)) {
    if (is_row_file(file) && file.filename().string()[0] != '.') out.push_back(std::move(file));
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<fs::path> full_paths(const FileTree& tree, const std::vector<fs::path>& files) {
  std::vector<fs::path> out;
  for (const fs::path& file : files) out.push_back(tree.full(file));
  return out;
}

// The split that a word of a file name stands for; empty for other words.
std::string split_of_word(const std::string& word) {
  static const std::map<std::string, std::string> splits = {
      {"train", "train"},      {"training", "train"}, {"validation", "validation"},
      {"valid", "validation"}, {"val", "validation"}, {"dev", "validation"},
      {"test", "test"},        {"testing", "test"},   {"eval", "test"},
      {"evaluation", "test"}};
  const auto found = splits.find(word);
  return found == splits.end() ? std::string() : found->second;
}

struct NamedSplit {
  std::string name;   // of the split that the file is of; empty: names none
  std::string whole;  // the whole name without extensions, which may be asked for too
};

NamedSplit split_of(const fs::path& path) {
  const std::string stem = without_compression(path.filename()).stem().string();
  // <split>-NNNNN-of-NNNNN
  constexpr size_t tail = 15;
  if (stem.size() > tail && ::fnmatch("-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]",
                                      stem.c_str() + stem.size() - tail, 0) == 0) {
    const std::string split = stem.substr(0, stem.size() - tail);
    return {split, split};
  }
  std::string word;
  for (const char c : stem + ".") {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (std::string split = split_of_word(word); !split.empty()) return {std::move(split), stem};
    word.clear();
  }
  return {"", stem};
}

std::vector<fs::path> of_split(const std::string& folder, const std::vector<fs::path>& files,
                               const std::string& split) {
  if (split.empty()) return files;
  std::set<std::string> present;
  std::vector<fs::path> out;
  for (const fs::path& file : files) {
    const NamedSplit named = split_of(file);
    if (!named.name.empty()) present.insert(named.name);
    if (named.name == split || named.whole == split || (named.name.empty() && split == "train")) {
      out.push_back(file);
    }
  }
  if (present.empty()) return files;
  if (out.empty()) {
    const auto close = std::find_if(present.begin(), present.end(), [&](const std::string& name) {
      return name.find(split) != std::string::npos;
    });
    throw Error(ErrorKind::data, format("{} has no split {}; it has {}", folder, split, joined(present)),
                "dataset", choose_split(close == present.end() ? "NAME" : *close));
  }
  if (out.size() < files.size()) {
    log::info("{}: {} of {} {} of split {}", folder, out.size(),
              counted(static_cast<int64_t>(files.size()), "file"), out.size() == 1 ? "is" : "are", split);
  }
  return out;
}

// Those in folder `inner` of the tree.
std::vector<fs::path> files_by_name(const FileTree& tree, const fs::path& inner, const std::string& split) {
  std::vector<fs::path> found = row_files_in(tree, inner);
  for (const std::string& name : {std::string("data"), split, "data/" + split}) {
    if (!found.empty()) break;
    if (name.empty() || split.find('/') != std::string::npos || !tree.has_folder(inner / name)) continue;
    found = row_files_in(tree, inner / name);
    if (name != "data") return full_paths(tree, found);
  }
  const std::string folder = remote_name(tree.full(inner).string());
  if (found.empty()) {
    throw Error(
        ErrorKind::data,
        format("no .parquet, .jsonl, .ndjson or .json file (or .gz, .zst of the last three) in {}", folder),
        "dataset", "name the files, or a folder that holds them directly");
  }
  return full_paths(tree, of_split(folder, found, split));
}

const yaml::Node* member(const yaml::Node& map, const std::string& key) {
  for (const yaml::Member& entry : map.map) {
    if (entry.first == key) return &entry.second;
  }
  return nullptr;
}

std::string text_of(const yaml::Node* node) {
  return node && node->kind == yaml::Kind::scalar ? node->text : std::string();
}

// The YAML between the first two lines "---", or empty.
std::string front_matter(const std::string& text) {
  const size_t begin = text.rfind("---\n", 0) == 0 ? 4 : text.rfind("---\r\n", 0) == 0 ? 5 : 0;
  if (begin == 0) return {};
  const size_t end = text.find("\n---", begin - 1);
  return end == std::string::npos || end < begin ? std::string() : text.substr(begin, end + 1 - begin);
}

// One `configs` entry of a README.md.
class FolderConfig {
 public:
  FolderConfig(const FileTree& tree, const yaml::Node& node) : tree_(tree), node_(node) {}

  std::vector<fs::path> files(const std::string& split) const {
    const yaml::Node* data_files = member(node_, "data_files");
    if (!data_files) return files_by_name(tree_, text_of(member(node_, "data_dir")), split);
    const bool split_list = data_files->kind == yaml::Kind::sequence && !data_files->items.empty() &&
                            data_files->items[0].kind == yaml::Kind::map;
    if (data_files->kind != yaml::Kind::map && !split_list) return matches(*data_files);
    std::set<std::string> present;
    std::vector<fs::path> out;
    const auto take = [&](const std::string& name, const yaml::Node* patterns) {
      if (!patterns) refuse(format("split {} has no path", name));
      present.insert(name);
      if (!split.empty() && name != split) return;
      for (fs::path& file : matches(*patterns)) out.push_back(std::move(file));
    };
    for (const yaml::Node& item : data_files->items)
      take(text_of(member(item, "split")), member(item, "path"));
    for (const yaml::Member& entry : data_files->map) take(entry.first, &entry.second);
    if (!split.empty() && !present.count(split)) {
      refuse(format("there is no split {}; there is {}", split, joined(present)));
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::data, what, place(), choose_split("NAME"));
  }
  std::string place() const { return format("{}:{}", tree_.full("README.md").string(), node_.line); }
  std::vector<fs::path> matches(const yaml::Node& patterns) const {
    if (patterns.kind == yaml::Kind::sequence) {
      std::vector<fs::path> out;
      for (const yaml::Node& pattern : patterns.items) {
        for (fs::path& file : matches(pattern)) out.push_back(std::move(file));
      }
      return out;
    }
    const std::string base = text_of(member(node_, "data_dir"));
    std::vector<fs::path> out = files_matching(tree_, base, text_of(&patterns));
    if (out.empty()) {
      throw Error(ErrorKind::data, format("\"{}\" matches no file", text_of(&patterns)), place(),
                  format("copy the files to the folder, correct the front matter, or {}", name_files));
    }
    return out;
  }

  const FileTree& tree_;
  const yaml::Node& node_;
};

// nullptr when README.md names no configuration.
const yaml::Node* chosen_config(const yaml::Node& card, const fs::path& readme) {
  const yaml::Node* configs = member(card, "configs");
  if (!configs || configs->items.empty()) return nullptr;
  std::set<std::string> names;
  for (const yaml::Node& config : configs->items) {
    const std::string name = text_of(member(config, "config_name"));
    names.insert(name);
    if (configs->items.size() == 1 || name == "default" || text_of(member(config, "default")) == "true") {
      return &config;
    }
  }
  throw Error(ErrorKind::data,
              format("the folder has several configurations ({}), none of them the default", joined(names)),
              format("{}:{}", readme.string(), configs->line), name_files);
}

bool matches_components(const std::vector<std::string>& pattern, size_t p,
                        const std::vector<std::string>& path, size_t k) {
  if (p == pattern.size()) return k == path.size();
  if (pattern[p] == "**") {
    if (matches_components(pattern, p + 1, path, k)) return true;
    return k < path.size() && path[k][0] != '.' && matches_components(pattern, p, path, k + 1);
  }
  return k < path.size() && ::fnmatch(pattern[p].c_str(), path[k].c_str(), FNM_PERIOD) == 0 &&
         matches_components(pattern, p + 1, path, k + 1);
}

std::vector<std::string> components(const fs::path& path) {
  std::vector<std::string> out;
  for (const fs::path& part : path) {
    const std::string text = part.string();
    if (text.empty() || text == ".") continue;
    if (text == "**" && !out.empty() && out.back() == "**") continue;
    out.push_back(text);
  }
  return out;
}

}  // namespace

bool is_row_file(const fs::path& path) {
  const fs::path name = remote_name(path.string());
  const std::string extension = without_compression(name).extension().string();
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json" ||
         name.extension() == ".parquet";
}

std::vector<fs::path> files_matching(const FileTree& tree, const fs::path& base, const std::string& pattern) {
  const std::vector<std::string> wanted = components(pattern);
  std::vector<fs::path> out;
  for (const fs::path& file : tree.files_below(base)) {
    const fs::path relative = base.empty() ? file : file.lexically_relative(base);
    if (matches_components(wanted, 0, components(relative), 0)) out.push_back(tree.full(file));
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<fs::path> dataset_folder_files(const FileTree& folder, const std::string& split) {
  const fs::path readme = folder.full("README.md");
  const std::string matter = front_matter(folder.text("README.md"));
  if (matter.empty()) return files_by_name(folder, "", split);
  yaml::Node card;
  try {
    card = yaml::parse(matter, readme.string());
  } catch (const Error& e) {
    throw Error(ErrorKind::data, e.what(), e.where(), format("correct the front matter, or {}", name_files));
  }
  const yaml::Node* config = chosen_config(card, readme);
  return config ? FolderConfig(folder, *config).files(split) : files_by_name(folder, "", split);
}

}  // namespace deltatune
