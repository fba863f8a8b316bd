// `deltatune data render`: conversations through the chat template alone.
//
// The rows of a dataset go through its schema, and print as text, or with --json as a line each.
// Conversations of --messages FILE are given to the template as they are (no assistant turn is needed, nulls
// stay, arguments that are JSON text stay text) and always give a JSON line each. A conversation that cannot
// be rendered gives
// {"error": ...} in its place; the others are rendered, and the exit code is 3.
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/dataset_rows.h"
#include "cli/input_text.h"
#include "cli/verbs.h"
#include "data/decompress.h"
#include "data/encode.h"
#include "data/jsonl.h"
#include "data/row_source.h"
#include "train/text_source.h"

namespace deltatune::cli {
namespace {

constexpr size_t most_bytes = size_t{1} << 30;  // of a file of conversations

// Byte offsets of the assistant turns, for programs that make masks of their own.
json::Value turns_json(const RenderedChat& chat) {
  json::Array turns;
  for (const RenderedChat::Turn& turn : chat.turns) {
    json::Value value(json::Object{});
    value.set("message", int64_t{turn.message});
    const auto set = [&](const char* key, size_t offset) { value.set(key, static_cast<int64_t>(offset)); };
    set("header_end", turn.header_end);
    set("gen_prompt_end", turn.gen_prompt_end);
    set("answer_start", turn.answer_start);
    set("im_end_end", turn.im_end_end);
    set("turn_end", turn.turn_end);
    turns.push_back(std::move(value));
  }
  return json::Value(std::move(turns));
}

json::Value spans_json(const RenderedChat& chat) {
  json::Array spans;
  for (const RenderedChat::Span& span : chat.spans) {
    spans.emplace_back(json::Array{json::Value(static_cast<int64_t>(span.begin)),
                                   json::Value(static_cast<int64_t>(span.end))});
  }
  return json::Value(std::move(spans));
}

class Renderer {
 public:
  explicit Renderer(const Config& config)
      : config_(config), template_(open_template(config)), options_(render_options(config)) {
    options_.add_generation_prompt = config.add_generation_prompt;
    options_.as_given = !config.render_messages.empty();
    warn_unread_variables(template_, config);
  }

  void row(const DatasetRow& row) {
    try {
      const Conversation parsed = conversation_of_row(row, config_, notices_);
      const RenderedChat chat = rendered(parsed, row.place());
      if (!config_.json) {
        std::fwrite(chat.marked.text.data(), 1, chat.marked.text.size(), stdout);
        if (!chat.marked.text.ends_with('\n')) std::printf("\n");
        return;
      }
      json::Value value = row.to_json();
      value.set("text", chat.marked.text);
      value.set("trained_bytes", spans_json(chat));
      if (!chat.turns.empty()) value.set("assistant_spans", turns_json(chat));
      print_json(value);
    } catch (const Error& error) {
      fail(error);
    }
  }

  // One conversation of --messages: {"messages", "tools", "chat_template_kwargs"}, or a list of messages.
  void conversation(const json::Value& given, const std::string& where) {
    if (config_.row >= 0 && config_.row != number_++) return;
    try {
      const Conversation chat = read(given, where);
      RenderOptions plain = options_;
      plain.train_on = "all";  // text without a search for turns: any template has it
      json::Value value;
      value.set("text", render_conversation(chat, template_, plain).marked.text);
      try {
        const RenderedChat marked = render_conversation(chat, template_, options_);
        value.set("assistant_spans", turns_json(marked));
        value.set("trained_bytes", spans_json(marked));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::data) throw;
        value.set("assistant_spans_error", error.what());
      }
      print_json(value);
    } catch (const Error& error) {
      fail(error.where().find(where) == std::string::npos ? error.within(where) : error);
    }
  }

  // A line or a document of --messages: one conversation, or a list of them.
  void value(const json::Value& value, const std::string& where) {
    const bool list = value.is_array() && !is_message_list(value);
    if (!list) return conversation(value, where);
    for (size_t i = 0; i < value.as_array().size(); ++i)
      conversation(value.as_array()[i], format("{}, conversation {}", where, i));
  }

  void line(const JsonlLine& line, const std::string& where) {
    std::optional<json::Value> parsed;
    try {
      parsed = json::parse(line.text, "");
    } catch (const Error& error) {
      const size_t column = error.where().rfind("column ");  // its line is that of a text of one line
      const std::string at = column == std::string::npos ? "" : ", " + error.where().substr(column);
      if (config_.row < 0 || config_.row == number_)
        fail(Error(ErrorKind::data, error.what(), where + at, error.fix()));
      ++number_;
    }
    if (parsed) value(*parsed, where);
  }

  int64_t conversations() const { return number_; }
  int exit_code() const { return failed_ ? deltatune::exit_code(ErrorKind::data) : 0; }

 private:
  static bool is_message_list(const json::Value& value) {
    const json::Array& items = value.as_array();
    return items.empty() || (items[0].is_object() && items[0].find("role") != nullptr);
  }

  static Conversation read(const json::Value& given, const std::string& where) {
    const json::Value* messages = given.is_object() ? given.find("messages") : &given;
    if (messages == nullptr || !messages->is_array()) {
      throw Error(ErrorKind::data, "no list of messages", where,
                  "write {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}, or the list alone");
    }
    Conversation out;
    out.messages = *messages;
    if (!given.is_object()) return out;
    if (const json::Value* tools = given.find("tools")) out.tools = *tools;
    if (const json::Value* options = given.find("chat_template_kwargs")) {
      if (!options->is_object() && !options->is_null()) {
        throw Error(ErrorKind::data, "chat_template_kwargs is no object", where,
                    "write {\"enable_thinking\": false}");
      }
      for (const auto& [name, value] : options->is_null() ? json::Object{} : options->as_object()) {
        if (!is_reserved_variable(name)) continue;
        throw Error(ErrorKind::data, format("'{}' cannot be set as a template variable", name), where,
                    "remove it from chat_template_kwargs: it is set for every conversation");
      }
      out.template_options = *options;
    }
    return out;
  }

  RenderedChat rendered(const Conversation& chat, const std::string& place) const {
    try {
      return render_conversation(chat, template_, options_);
    } catch (const Error& error) {
      throw error.within(place);
    }
  }

  // Only the row's fault is the row's.
  void fail(const Error& error) {
    if (error.kind() != ErrorKind::data) throw Error(error);
    failed_ = true;
    print_json(error_json(error));
  }

  const Config& config_;
  ChatTemplate template_;
  RenderOptions options_;
  SchemaNotices notices_;
  int64_t number_ = 0;  // of conversations that were seen
  bool failed_ = false;
};

// The bytes of FILE, decompressed where their start says so. Throws Error{data} above most_bytes.
std::string read_messages(const std::string& path) {
  std::string given = read_input(path, most_bytes);
  if (compression_of(given) == Compression::none) return given;
  OnePiece bytes(given);
  Decompressor source(bytes, input_name(path));
  std::string out;
  std::string piece(size_t{1} << 20, '\0');
  while (const size_t count = source.read(piece)) {
    out.append(piece, 0, count);
    if (out.size() <= most_bytes) continue;
    throw Error(ErrorKind::data, format("more than {} bytes when decompressed", most_bytes), input_name(path),
                "give it in several parts");
  }
  return out;
}

// One JSON value is a document; anything else is lines, unless its name says .json.
void render_messages(Renderer& renderer, const std::string& path) {
  const std::string text = read_messages(path);
  const std::string name = input_name(path);
  JsonlLines lines(text);
  JsonlLine line;
  if (!lines.next(line)) {
    throw Error(ErrorKind::data, "there is no conversation", name,
                "give {\"messages\": [...]} a line, or a JSON list of messages");
  }
  std::optional<json::Value> document;
  try {
    document = json::parse(std::string_view(text).substr(line.offset), name);
  } catch (const Error&) {
    if (without_compression(path).extension() == ".json") throw;
  }
  if (document) return renderer.value(*document, name);
  do renderer.line(line, format("{}, line {}", name, line.number));
  while (lines.next(line));
}

}  // namespace

int verb_data_render(const Invocation& call) {
  const Config& config = call.config();
  Renderer renderer(config);
  if (config.render_messages.empty()) {
    visit_wanted_rows(config, [&](const DatasetRow& row) { renderer.row(row); });
    return renderer.exit_code();
  }
  render_messages(renderer, config.render_messages);
  if (config.row >= renderer.conversations()) {
    throw Error(
        ErrorKind::usage, format("row {} does not exist", config.row),
        format("{} has {} conversations", input_name(config.render_messages), renderer.conversations()),
        "rows are numbered from 0");
  }
  return renderer.exit_code();
}

}  // namespace deltatune::cli
