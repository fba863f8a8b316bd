// `deltatune inspect PATH`: what a safetensors file, a config.json, a checkpoint or one of our own
// checkpoints holds, and what is wrong with it. Reads headers only, never the weights. A trace
// (trace/rank0000.json.gz) is read whole: inspect_trace.cpp. Of a profile.json and a metrics.jsonl it says
// which verb reads them.
#include <cstdio>
#include <map>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/inspect_kind.h"
#include "cli/inspect_trace.h"
#include "cli/verbs.h"
#include "io/checkpoint_reader.h"
#include "io/model_path.h"
#include "io/resume.h"
#include "observe/profile.h"
#include "train/model_source.h"

namespace deltatune::cli {
namespace {

struct Sum {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
};

struct Inspection {
  std::string kind;
  std::string path;
  std::vector<std::string> facts;
  std::vector<std::pair<std::string, std::vector<StoredTensor>>> files;  // name, tensors
  std::vector<std::string> problems;
};

std::string part_of(const std::string& name) {
  if (name.starts_with("mtp.")) return "mtp";
  if (name.starts_with("model.visual.") || name.starts_with("visual.")) return "visual";
  if (name.starts_with("lm_head.")) return "lm_head";
  return name.starts_with("model.") ? "text" : "other";
}

// From the size, which the reader has checked, because a product of untrusted sizes may overflow.
int64_t elements_of(const StoredTensor& tensor) {
  return static_cast<int64_t>(tensor.size * 8 / static_cast<size_t>(dtype_bits(tensor.dtype)));
}

void add(Sum& sum, const StoredTensor& tensor) {
  ++sum.tensors;
  sum.elements += elements_of(tensor);
  sum.bytes += static_cast<int64_t>(tensor.size);
}

// "model.layers.17.mlp" -> "model.layers.*.mlp": numbers between dots.
std::string pattern_of(const std::string& name) {
  std::string pattern;
  size_t start = 0;
  while (start <= name.size()) {
    const size_t end = std::min(name.find('.', start), name.size());
    const std::string word = name.substr(start, end - start);
    const bool number = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    pattern += (start == 0 ? "" : ".") + (number ? "*" : word);
    start = end + 1;
  }
  return pattern;
}

void describe_config(Inspection& result, const json::Value& root, const std::string& where) {
  try {
    const ModelConfig config = ModelConfig::from_json(root, where);
    int64_t attention = 0;
    for (const bool full : config.full_attention) attention += full ? 1 : 0;
    result.facts.push_back(format("model       {}, {} ({} delta, {} attention)", config.model_type,
                                  counted(config.layers(), "block"), config.layers() - attention, attention));
    result.facts.push_back(format("sizes       hidden {}, ffn {}, vocabulary {}", config.hidden_size,
                                  config.intermediate_size, config.vocab_size));
    const int64_t count = make_params(config, decide_tied(config, nullptr)).table.element_count();
    result.facts.push_back(format("parameters  {} in the text model, head {}", format_count(count),
                                  config.tie_word_embeddings ? "tied" : "untied"));
    if (config.tie_flags_disagree) {
      result.facts.push_back(
          "note        tie_word_embeddings differs between config.json and its text_config");
    }
  } catch (const Error& error) {
    result.problems.push_back(error.text());
  }
}

// What training would refuse, and shapes that do not fit the config.
void check_trainable(Inspection& result, const fs::path& folder, const HfCheckpoint& checkpoint) {
  try {
    const ModelSource source =
        open_model(folder.string(), checkpoint.has_weights() ? "pretrained" : "random");
    const ModelParams params = make_params(source.config, source.tied);
    for (const Param& param : params.table.params) {
      for (const ParamSlice& slice : param.slices) {
        const StoredTensor* tensor = checkpoint.stored(slice.hf_name);
        if (tensor == nullptr || tensor->shape == slice.hf_shape) continue;
        result.problems.push_back(format("error: {} has shape {}, config.json asks for {}", slice.hf_name,
                                         shown(tensor->shape), shown(slice.hf_shape)));
      }
    }
  } catch (const Error& error) {
    result.problems.push_back(error.text());
  }
}

void describe_resume(Inspection& result, const fs::path& folder) {
  std::error_code code;
  if (!fs::exists(folder / resume_folder_name, code)) return;
  try {
    const ResumeState resume(folder);
    result.kind = "checkpoint of a deltatune run";
    const json::Value* step = resume.state().find("step");
    result.facts.push_back(
        format("resume      written by {}{}", counted(resume.world_size(), "rank"),
               step != nullptr && step->is_integer() ? format(", step {}", step->as_integer()) : ""));
  } catch (const Error& error) {
    result.problems.push_back(error.text());
  }
}

Inspection inspect_folder(const fs::path& folder) {
  Inspection result;
  result.kind = "checkpoint";
  result.path = folder.string();
  const HfCheckpoint checkpoint(folder);
  if (!checkpoint.has_weights()) result.kind = "configuration without weights";
  for (const SafetensorsFile& file : checkpoint.files()) {
    result.files.emplace_back(file.path().filename().string(), file.tensors());
  }
  describe_config(result, checkpoint.config(), (folder / "config.json").string());
  describe_resume(result, folder);
  if (result.problems.empty()) check_trainable(result, folder, checkpoint);
  return result;
}

void describe_profile(Inspection& result, const std::string& path) {
  result.kind = "profile";
  try {
    const Profile profile = Profile::from_json(json::parse_file(path));
    result.facts.push_back(
        format("profile     {}, rank {} of {}", shown(profile.device), profile.rank, profile.world));
    result.facts.push_back(format("steps       {}, {:.6g} ms each, the device busy {:.6g} ms",
                                  counted(profile.steps, "step"), profile.step_ms, profile.busy_ms));
    result.facts.push_back(
        format("ops         {}", counted(static_cast<int64_t>(profile.ops.size()), "row")));
    result.facts.emplace_back(
        "note        `deltatune report` and `deltatune advise` read it: give them its folder");
  } catch (const Error& error) {
    result.problems.push_back(error.within(path).text());
  }
}

bool is_trace(const std::string& path) {
  if (path.ends_with(".json.gz")) return true;  // one that is missing, too
  std::error_code code;
  return fs::is_regular_file(path, code) && inspect_kind(path) == InspectKind::trace;
}

Inspection inspect_path(const std::string& path) {
  std::error_code code;
  Inspection result;
  result.path = path;
  if (!fs::is_regular_file(path, code)) {
    refuse_run_folder(path);
    return inspect_folder(resolve_model_path(path));
  }
  switch (inspect_kind(path)) {
    case InspectKind::config:
      result.kind = "config";
      describe_config(result, json::parse_file(path), path);
      return result;
    case InspectKind::profile:
      describe_profile(result, path);
      return result;
    case InspectKind::metrics:
      result.kind = "metrics of a run";
      result.facts.emplace_back(
          "note        `deltatune report` draws it, `deltatune advise` says what it shows: give them its "
          "folder");
      return result;
    case InspectKind::rows:
      throw Error(ErrorKind::data, "no model, configuration or trace: these are JSON Lines", path,
                  "rows of a data set are read by `deltatune data show` and `deltatune data check`");
    default:
      break;  // traces went another way
  }
  result.kind = "safetensors file";
  const SafetensorsFile file{fs::path(path)};
  for (const auto& [key, value] : file.header().metadata)
    result.facts.push_back(format("metadata    {}: {}", key, shown(value)));
  result.files.emplace_back(file.path().filename().string(), file.tensors());
  return result;
}

json::Value sums_json(const std::map<std::string, Sum>& sums) {
  json::Value value{json::Object{}};
  for (const auto& [name, sum] : sums) {
    json::Value entry;
    entry.set("tensors", sum.tensors);
    entry.set("parameters", sum.elements);
    entry.set("bytes", sum.bytes);
    value.set(name, std::move(entry));
  }
  return value;
}

void print_json(const Inspection& result, const std::map<std::string, Sum>& parts,
                const std::map<std::string, Sum>& dtypes) {
  json::Array tensors;
  for (const auto& [file, list] : result.files) {
    for (const StoredTensor& tensor : list) {
      json::Value entry;
      entry.set("name", tensor.name);
      entry.set("dtype", tensor.dtype);
      entry.set("shape", json::Array(tensor.shape.begin(), tensor.shape.end()));
      entry.set("file", file);
      tensors.push_back(std::move(entry));
    }
  }
  json::Value root;
  root.set("path", result.path);
  root.set("kind", result.kind);
  root.set("facts", json::Array(result.facts.begin(), result.facts.end()));
  root.set("parts", sums_json(parts));
  root.set("dtypes", sums_json(dtypes));
  root.set("problems", json::Array(result.problems.begin(), result.problems.end()));
  root.set("tensors", std::move(tensors));
  std::printf("%s\n", json::dump(root, 2).c_str());
}

void print_sums(const char* title, const std::map<std::string, Sum>& sums) {
  std::printf("\n%-11s %8s %18s %12s\n", title, "tensors", "parameters", "size");
  for (const auto& [name, sum] : sums) {
    std::printf("%-11s %8lld %18s %12s\n", name.c_str(), static_cast<long long>(sum.tensors),
                format_count(sum.elements).c_str(), format_bytes(static_cast<uint64_t>(sum.bytes)).c_str());
  }
}

// Tensors that differ only in numbers of their name stand in one line, unless all are wanted.
void print_tensors(const Inspection& result, bool all) {
  struct Line {
    std::string text;
    int64_t count = 0;
  };
  std::vector<Line> lines;
  std::map<std::string, size_t> known;
  for (const auto& [file, list] : result.files) {
    for (const StoredTensor& tensor : list) {
      const std::string name = all ? tensor.name : pattern_of(tensor.name);
      const std::string text = format("{:<8} {:<18} {}", tensor.dtype, shown(tensor.shape), shown(name));
      const auto [at, added] = known.try_emplace(text, lines.size());
      if (added) lines.push_back({text, 0});
      ++lines[at->second].count;
    }
  }
  if (!lines.empty()) std::printf("\n%5s  %-8s %-18s %s\n", "times", "dtype", "shape", "tensor");
  for (const Line& line : lines)
    std::printf("%5lld  %s\n", static_cast<long long>(line.count), line.text.c_str());
}

}  // namespace

int verb_inspect(const Invocation& call) {
  if (is_trace(call.arguments[0])) return inspect_trace(call.arguments[0], call.config().json);
  const Inspection result = inspect_path(call.arguments[0]);
  std::map<std::string, Sum> parts, dtypes;
  for (const auto& [file, list] : result.files) {
    for (const StoredTensor& tensor : list) {
      add(parts[part_of(tensor.name)], tensor);
      add(parts["total"], tensor);
      add(dtypes[tensor.dtype], tensor);
    }
  }
  const int code = result.problems.empty() ? 0 : exit_code(ErrorKind::model);
  if (call.config().json) {
    print_json(result, parts, dtypes);
    return code;
  }
  std::printf("%-11s %s\n", "path", result.path.c_str());
  std::printf("%-11s %s\n", "kind", result.kind.c_str());
  for (const std::string& fact : result.facts) std::printf("%s\n", fact.c_str());
  for (const auto& [file, list] : result.files) {
    std::printf("%-11s %s, %s\n", "file", file.c_str(),
                counted(static_cast<int64_t>(list.size()), "tensor").c_str());
  }
  if (!parts.empty()) print_sums("part", parts);
  if (!dtypes.empty()) print_sums("dtype", dtypes);
  print_tensors(result, call.config().verbose);
  std::printf("\nproblems    %s\n", result.problems.empty() ? "none" : "");
  for (const std::string& problem : result.problems) std::printf("%s\n", problem.c_str());
  return code;
}

}  // namespace deltatune::cli
