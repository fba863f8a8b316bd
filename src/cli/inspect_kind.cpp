// Telling files apart by their first bytes and the members of their object.
#include "cli/inspect_kind.h"

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "data/decompress.h"
#include "io/safetensors.h"

namespace deltatune::cli {
namespace {

constexpr size_t most_keys = 1000;
constexpr size_t longest_key = 64;
constexpr size_t longest_line = size_t{1} << 20;
constexpr size_t named_files = 8;

// One past the closing quote of the string that begins at `at`.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return text.size();
}

// Names of the root's members, up to one that tells a trace, whose list may be long. The text need not be
// sound: what is wrong with it is for its reader to say.
std::set<std::string, std::less<>> keys_of(std::string_view text) {
  std::set<std::string, std::less<>> out;
  int64_t depth = 0;
  for (size_t at = 0; at < text.size() && out.size() < most_keys;) {
    const char c = text[at];
    if (c != '"') {
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      ++at;
      continue;
    }
    const size_t end = end_of_string(text, at);
    const size_t next = text.find_first_not_of(" \t\r\n", end);
    if (depth == 1 && end - at <= longest_key && next != std::string_view::npos && text[next] == ':') {
      out.emplace(text.substr(at + 1, end - at - 2));
      if (out.contains("traceEvents")) break;
    }
    at = end;
  }
  return out;
}

// Whether the first line is an event of metrics.jsonl.
bool begins_with_event(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  if (line.size() > longest_line) return false;
  try {
    const json::Value event = json::parse(line, "");
    const json::Value* name = event.find("event");
    return name != nullptr && name->is_string();
  } catch (const Error&) {
    return false;  // an object of several lines, or no JSON
  }
}

// A safetensors file begins with the length of its header, 8 bytes of which the last is always zero.
bool is_object(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{' &&
         text.substr(0, 8).find('\0') == std::string_view::npos;
}

}  // namespace

InspectKind inspect_kind(const std::string& path) {
  if (path.ends_with(".json.gz")) return InspectKind::trace;
  const MappedFile file{fs::path(path)};
  const std::string_view text = file.text();
  if (compression_of(text.substr(0, 4)) != Compression::none) return InspectKind::trace;
  if (is_object(text)) {
    if (begins_with_event(text)) return InspectKind::metrics;
    if (path.ends_with(".jsonl")) return InspectKind::rows;
    const auto keys = keys_of(text);
    if (keys.contains("traceEvents")) return InspectKind::trace;
    if (keys.contains("format") && keys.contains("ops")) return InspectKind::profile;
  }
  return path.ends_with(".json") ? InspectKind::config : InspectKind::safetensors;
}

void refuse_run_folder(const fs::path& folder) {
  std::error_code code;
  if (!fs::is_directory(folder, code) || fs::exists(folder / "config.json", code)) return;
  std::vector<std::string> names;
  for (const char* part : {"", "trace"}) {
    std::error_code failed;
    for (fs::directory_iterator it(folder / part, failed), end; !failed && it != end; it.increment(failed)) {
      const std::string name = it->path().filename().string();
      const bool profile = name.starts_with("profile") && name.ends_with(".json");
      if (name.ends_with(".json.gz") || profile || name == "metrics.jsonl")
        names.push_back((fs::path(part) / name).string());
    }
  }
  if (names.empty()) return;
  std::sort(names.begin(), names.end());
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), named_files); ++i)
    list += (i == 0 ? "" : ", ") + shown(names[i]);
  if (names.size() > named_files) list += format(" and {} more", names.size() - named_files);
  throw Error(ErrorKind::data, "no model: there is no config.json, but " + list, folder.string(),
              "give one of these files; a run's folder is read by `deltatune report` and `deltatune advise`");
}

}  // namespace deltatune::cli
