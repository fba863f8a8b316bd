// yaml-cpp's event reader feeding our own tree, so that limits, duplicate keys and line numbers are ours.
#include "base/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/format.h"

namespace deltatune::yaml {
namespace {

constexpr size_t max_depth = 32;
constexpr size_t max_bytes = size_t{1} << 20;

// One open container; `key` is the pending key of a map.
struct Open {
  Node node;
  bool has_key = false;
  std::string key;
  int key_line = 0;
};

class Builder : public YAML::EventHandler {
 public:
  Builder(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1)
      fail(line_of(mark), "a second document starts here", "keep one document (no `---`)");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check_anchor(mark, anchor);
    put(node_at(Kind::null, mark));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_alias(line_of(mark)); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_anchor(mark, anchor);
    check_tag(mark, tag);
    Node node = node_at(Kind::scalar, mark);
    node.text = value;
    node.quoted = tag == "!";  // yaml-cpp: "?" for a plain scalar, "!" for a quoted one or a block
    if (node.quoted) check_quotes(mark);
    put(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Kind::sequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Kind::map, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

  Node take() { return std::move(root_); }

 private:
  [[noreturn]] void fail(int line, std::string what, std::string fix) const {
    throw Error(ErrorKind::usage, std::move(what), format("{}:{}", where_, line), std::move(fix));
  }
  [[noreturn]] void refuse_alias(int line) const {
    fail(line, "YAML anchors and aliases are not accepted", "write the value out where it is used");
  }
  static int line_of(const YAML::Mark& mark) { return mark.line + 1; }
  static Node node_at(Kind kind, const YAML::Mark& mark) {
    Node node;
    node.kind = kind;
    node.line = line_of(mark);
    return node;
  }
  void check_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != 0) refuse_alias(line_of(mark));
  }
  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!") {
      fail(line_of(mark), format("YAML tag {} is not accepted", tag), "remove the tag");
    }
  }
  // yaml-cpp takes a quote that is never closed as one that ends with the file, and the keys behind it are
  // lost.
  void check_quotes(const YAML::Mark& mark) const {
    size_t at = 0;
    for (int line = 0; line < mark.line && at < text_.size(); ++line) at = text_.find('\n', at) + 1;
    const std::string_view line = text_.substr(at, text_.find('\n', at) - at);
    const auto column = static_cast<size_t>(mark.column);
    // A block scalar (| or >) is no quote; a column that counts characters is found again by looking.
    const size_t start = column < line.size() && (line[column] == '\'' || line[column] == '"')
                             ? column
                             : line.find_first_of("'\"", 0);
    if (start == std::string_view::npos) return;
    const char quote = line[start];
    for (size_t i = start + 1; i < line.size(); ++i) {
      if (quote == '"' && line[i] == '\\') {
        ++i;
      } else if (line[i] == quote) {
        if (quote == '"' || i + 1 >= line.size() || line[i + 1] != quote) return;
        ++i;
      }
    }
    fail(line_of(mark), "a quoted value does not end on its line", format("close it with {}", quote));
  }
  void open(Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    check_anchor(mark, anchor);
    check_tag(mark, tag);
    if (stack_.size() >= max_depth) {
      fail(line_of(mark), format("more than {} levels of nesting", max_depth), "use fewer levels");
    }
    Open next;
    next.node = node_at(kind, mark);
    stack_.push_back(std::move(next));
  }
  void close() {
    Node done = std::move(stack_.back().node);
    stack_.pop_back();
    put(std::move(done));
  }
  void put(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& top = stack_.back();
    if (top.node.kind == Kind::sequence) {
      top.node.items.push_back(std::move(node));
    } else if (!top.has_key) {
      take_key(top, node);
    } else {
      node.line = top.key_line;
      top.node.map.emplace_back(std::move(top.key), std::move(node));
      top.has_key = false;
    }
  }
  void take_key(Open& top, const Node& node) const {
    if (node.kind != Kind::scalar)
      fail(node.line, format("a key must be a word, found {}", kind_name(node.kind)),
           "write lines like `learning_rate: 1e-5`");
    if (node.text == "<<" && !node.quoted)
      fail(node.line, "YAML merge keys (<<) are not accepted", "write the keys out");
    for (const auto& [key, value] : top.node.map) {
      if (key == node.text) {
        fail(node.line, format("key {} is given twice, first in line {}", key, value.line),
             "keep one of them");
      }
    }
    top.key = node.text;
    top.key_line = node.line;
    top.has_key = true;
  }

  std::string_view text_;
  std::string where_;
  int documents_ = 0;
  Node root_;
  std::vector<Open> stack_;
};

json::Value scalar_to_json(const Node& node) {
  const std::string& text = node.text;
  if (node.quoted) return json::Value(text);
  if (text == "true" || text == "True" || text == "TRUE") return json::Value(true);
  if (text == "false" || text == "False" || text == "FALSE") return json::Value(false);
  if (text == "null" || text == "Null" || text == "NULL" || text == "~" || text.empty()) return json::Value();
  const char* first = text.data() + (text[0] == '+' ? 1 : 0);
  const char* last = text.data() + text.size();
  int64_t integer = 0;
  if (auto [end, code] = std::from_chars(first, last, integer); code == std::errc() && end == last) {
    return json::Value(integer);
  }
  double number = 0;
  if (auto [end, code] = std::from_chars(first, last, number);
      code == std::errc() && end == last && std::isfinite(number)) {
    return json::Value(number);
  }
  return json::Value(text);
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::null:
      return "nothing";
    case Kind::scalar:
      return "a single value";
    case Kind::sequence:
      return "a list";
    case Kind::map:
      return "a map";
  }
  return "?";
}

Node parse(std::string_view text, std::string_view where) {
  if (text.size() > max_bytes) {
    throw Error(ErrorKind::usage, format("configuration file of {}", format_bytes(text.size())),
                std::string(where), "a configuration has at most 1 MiB; is this the right file?");
  }
  if (text.find('\0') != std::string_view::npos) {
    throw Error(ErrorKind::usage, "configuration file holds binary data", std::string(where),
                "give a YAML text file");
  }
  std::istringstream stream{std::string(text)};
  Builder builder(text, where);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& problem) {
    const int line = problem.mark.line < 0 ? 1 : problem.mark.line + 1;
    const bool tab =
        problem.msg.find("tab") != std::string::npos || text.find('\t') != std::string_view::npos;
    throw Error(ErrorKind::usage, format("not valid YAML: {}", problem.msg), format("{}:{}", where, line),
                tab ? "YAML does not allow tabs for indentation: use spaces" : "");
  }
  return builder.take();
}

json::Value to_json(const Node& node) {
  switch (node.kind) {
    case Kind::null:
      return {};
    case Kind::scalar:
      return scalar_to_json(node);
    case Kind::sequence: {
      json::Array array;
      for (const Node& item : node.items) array.push_back(to_json(item));
      return array;
    }
    case Kind::map: {
      json::Object object;
      for (const auto& [key, value] : node.map) object.emplace_back(key, to_json(value));
      return object;
    }
  }
  return {};
}

}  // namespace deltatune::yaml
