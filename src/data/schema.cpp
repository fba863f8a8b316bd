// Detection of the schema of a row, and one converter for each.
#include "data/schema.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/format.h"
#include "base/log.h"

namespace deltatune {
namespace {

using json::Array;
using json::Object;
using json::Value;

constexpr std::array schemas = {Schema::messages, Schema::sharegpt, Schema::alpaca,
                                Schema::prompt_completion};
constexpr std::string_view known_schemas =
    "known: messages; conversations; instruction and output; prompt and completion; input_ids and labels";
constexpr std::string_view answer_fix = "add the answer, or remove the row";

constexpr size_t most_named = 100;  // members that are not read; more than that are data, not names

struct Role {
  std::string_view from;
  std::string_view to;
};
constexpr std::string_view function_call = "function_call";  // value: a call, or a list of calls, as JSON
constexpr std::array sharegpt_roles = {Role{"human", "user"},
                                       Role{"user", "user"},
                                       Role{"gpt", "assistant"},
                                       Role{"assistant", "assistant"},
                                       Role{function_call, "assistant"},
                                       Role{"system", "system"},
                                       Role{"tool", "tool"},
                                       Role{"function", "tool"},
                                       Role{"observation", "tool"}};

/// Member of an object unless it is null.
const Value* present(const Value& object, std::string_view key) {
  const Value* value = object.find(key);
  return value && !value->is_null() ? value : nullptr;
}

std::string shortened(std::string_view text) {
  if (text.size() <= 40) return json::quote(text);
  size_t cut = 40;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return json::quote(text.substr(0, cut)) + "...";
}

std::string list_of(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i == 8) return out + ", ...";
    out += (i == 0 ? "" : ", ") + words[i];
  }
  return out;
}

Value message(std::string_view role, Value content) {
  return Object{{"role", Value(role)}, {"content", std::move(content)}};
}

/// The member as a text; nullptr when it is absent or null.
const std::string* text_of(const Value& row, std::string_view key) {
  const Value* value = present(row, key);
  if (!value) return nullptr;
  if (!value->is_string()) {
    throw RowError(RowProblem::content, format("{} is a JSON {}, not a text", key, value->type_name()),
                   std::string(key), format("write {} as a string", key));
  }
  return &value->as_string();
}

/// What a converter makes: the turns, and which members it read.
struct Converted {
  Array messages;
  std::vector<std::string> read;
  int first_trained = 0;
};

void add_system(const Value& row, Converted& out) {
  const std::string* system = text_of(row, "system");
  out.read.emplace_back("system");
  if (system && !system->empty()) out.messages.push_back(message("system", *system));
}

/// The calls in a function_call turn: an object or a list, mostly as JSON text.
Value calls_of(const Value* value, const std::string& where) {
  Value calls = value ? *value : Value();
  if (calls.is_string()) {
    try {
      calls = json::parse(calls.as_string(), "");
    } catch (const Error&) {
      throw RowError(RowProblem::tool_call,
                     "a function_call turn is not JSON: " + shortened(value->as_string()), where,
                     "write {\"name\": ..., \"arguments\": {...}}, or a list of them");
    }
  }
  if (calls.is_object()) return Array{std::move(calls)};
  if (calls.is_array() && !calls.as_array().empty()) return calls;
  throw RowError(RowProblem::tool_call,
                 format("a function_call turn holds a JSON {}{}",
                        calls.is_array() ? "array without calls" : calls.type_name(),
                        calls.is_array() ? "" : ", not a call"),
                 where, "write {\"name\": ..., \"arguments\": {...}}, or a list of them");
}

[[noreturn]] void twice(std::string_view a, std::string_view b, const std::string& where) {
  throw RowError(RowProblem::unknown_key, format("a turn has both \"{}\" and \"{}\"", a, b), where,
                 "keep one of them");
}

std::string known_roles() {
  std::string out;
  for (const Role& role : sharegpt_roles) out += format("{}{}", out.empty() ? "" : ", ", role.from);
  return out;
}

Value sharegpt_turn(const Value& turn, const std::string& where) {
  if (!turn.is_object()) {
    throw RowError(RowProblem::messages, format("a turn is a JSON {}, not an object", turn.type_name()),
                   where, "write turns as {\"from\": ..., \"value\": ...}");
  }
  const Value* from = present(turn, "from");
  const Value* value = present(turn, "value");
  if (from && present(turn, "role")) twice("from", "role", where);
  if (value && present(turn, "content")) twice("value", "content", where);
  if (!from || !from->is_string()) {
    throw RowError(RowProblem::role, from ? "from is not a text" : "a turn has no \"from\"", where,
                   "set it to one of " + known_roles());
  }
  const auto* role = std::find_if(sharegpt_roles.begin(), sharegpt_roles.end(),
                                  [&](const Role& r) { return r.from == from->as_string(); });
  if (role == sharegpt_roles.end()) {
    throw RowError(RowProblem::role, "unknown role " + shortened(from->as_string()), where,
                   "use one of " + known_roles());
  }
  Value out = message(role->to, value ? *value : (present(turn, "content") ? turn.at("content") : Value()));
  for (const auto& [key, member] : turn.as_object()) {
    if (key == "from" || key == "value" || key == "role" || key == "content") continue;
    if (!member.is_null()) out.set(key, member);
  }
  if (role->from == function_call) {
    if (present(out, "tool_calls")) twice("function_call", "tool_calls", where);
    out.set("tool_calls", calls_of(out.find("content"), where));
    out.set("content", "");
  }
  return out;
}

Converted from_sharegpt(const Value& row, const std::string& field) {
  Converted out;
  out.read.push_back(field);
  add_system(row, out);
  const Value& turns = row.at(field);
  if (!turns.is_array()) {
    throw RowError(RowProblem::messages, format("{} is a JSON {}, not a list", field, turns.type_name()), "",
                   "write it as a list of {\"from\": ..., \"value\": ...}");
  }
  if (turns.as_array().empty()) {
    throw RowError(RowProblem::messages, format("the row has no turns in {}", field), "", "remove it");
  }
  for (size_t i = 0; i < turns.as_array().size(); ++i) {
    Value turn = sharegpt_turn(turns.as_array()[i], format("turn {}", i));
    if (i == 0 && !out.messages.empty() && turn.at("role").as_string() == "system") {
      throw RowError(RowProblem::role, "the row has a system text and a system turn", "turn 0",
                     "keep one of them");
    }
    out.messages.push_back(std::move(turn));
  }
  return out;
}

/// Earlier turns of an Alpaca row: pairs of question and answer.
void add_history(const Value& row, Converted& out) {
  const Value* history = present(row, "history");
  if (!history) return;
  const auto refuse = [] {
    return RowError(RowProblem::messages, "history is not a list of pairs of texts", "history",
                    "write it as [[question, answer], ...]");
  };
  if (!history->is_array()) throw refuse();
  for (const Value& pair : history->as_array()) {
    if (!pair.is_array() || pair.as_array().size() != 2) throw refuse();
    const Array& texts = pair.as_array();
    if (!texts[0].is_string() || !texts[1].is_string()) throw refuse();
    out.messages.push_back(message("user", texts[0]));
    out.messages.push_back(message("assistant", texts[1]));
  }
}

Converted from_alpaca(const Value& row) {
  Converted out;
  out.read = {"instruction", "input", "output", "history"};
  const std::string* instruction = text_of(row, "instruction");
  const std::string* input = text_of(row, "input");
  const std::string* output = text_of(row, "output");
  if (!instruction) {
    throw RowError(RowProblem::unknown_schema, "the row has no instruction", "", "add it, or remove the row");
  }
  if (!output) {
    throw RowError(RowProblem::no_assistant, "the row has no output: nothing to learn", "",
                   std::string(answer_fix));
  }
  add_system(row, out);
  add_history(row, out);
  std::string question = *instruction;
  if (input && !input->empty()) question += (question.empty() ? "" : "\n") + *input;
  out.messages.push_back(message("user", std::move(question)));
  out.messages.push_back(message("assistant", *output));
  return out;
}

/// A text as one message of `role`, or a list of messages as it is.
void append_side(const Value& value, std::string_view key, std::string_view role, RowProblem when_empty,
                 Array& out) {
  if (value.is_string()) {
    out.push_back(message(role, value));
    return;
  }
  if (!value.is_array()) {
    throw RowError(RowProblem::content,
                   format("{} is a JSON {}, not a text or a list of messages", key, value.type_name()),
                   std::string(key), format("write {} as a string or a list of messages", key));
  }
  if (value.as_array().empty()) {
    throw RowError(when_empty, format("{} is an empty list", key), std::string(key),
                   format("fill {}, or remove the row", key));
  }
  out.insert(out.end(), value.as_array().begin(), value.as_array().end());
}

bool is_role(const Value& message, std::string_view role) {
  const Value* found = message.find("role");
  return found && found->is_string() && found->as_string() == role;
}

Converted from_prompt_completion(const Value& row) {
  Converted out;
  out.read = {"prompt", "completion"};
  const Value* prompt = present(row, "prompt");
  const Value* completion = present(row, "completion");
  if (!prompt) {
    throw RowError(RowProblem::unknown_schema, "the row has no prompt", "", "add it, or remove the row");
  }
  if (!completion) {
    throw RowError(RowProblem::no_assistant, "the row has no completion: nothing to learn", "",
                   std::string(answer_fix));
  }
  append_side(*prompt, "prompt", "user", RowProblem::messages, out.messages);
  const auto boundary = static_cast<ptrdiff_t>(out.messages.size());
  append_side(*completion, "completion", "assistant", RowProblem::no_assistant, out.messages);
  const auto assistant = [](const Value& m) { return is_role(m, "assistant"); };
  if (std::none_of(out.messages.begin() + boundary, out.messages.end(), assistant)) {
    throw RowError(RowProblem::no_assistant, "the completion has no assistant message: nothing to learn",
                   "completion", std::string(answer_fix));
  }
  if (std::any_of(out.messages.begin(), out.messages.begin() + boundary, assistant)) {
    out.first_trained = static_cast<int>(boundary);
  }
  return out;
}

/// True when a turn says `from` where `role` belongs.
bool has_from(const Value& turns) {
  if (!turns.is_array()) return false;
  return std::any_of(turns.as_array().begin(), turns.as_array().end(),
                     [](const Value& turn) { return present(turn, "from") && !present(turn, "role"); });
}

/// The member with the turns, or "".
std::string turns_field(const Value& row, const SchemaOptions& options) {
  if (!options.messages_field.empty())
    return present(row, options.messages_field) ? options.messages_field : "";
  const bool from = options.schema == Schema::sharegpt;
  for (const char* key : {from ? "conversations" : "messages", from ? "messages" : "conversations"}) {
    if (present(row, key)) return key;
  }
  return {};
}

[[noreturn]] void unknown_schema(const Value& row, const SchemaOptions& options) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.as_object()) keys.push_back(shortened(key));
  for (const std::string& key :
       {options.messages_field, std::string("messages"), std::string("conversations")}) {
    const Value* turns = key.empty() ? nullptr : row.find(key);
    if (turns == nullptr || !turns->is_null()) continue;
    throw RowError(RowProblem::unknown_schema,
                   format("{} is null: the row has no conversation", json::quote(key)),
                   "its keys: " + list_of(keys), "fill it, or remove the row");
  }
  const std::string what =
      !options.messages_field.empty()
          ? format("the row has neither {} nor \"input_ids\"", json::quote(options.messages_field))
      : options.schema ? format("the row is not of schema {}", name_of(*options.schema))
                       : std::string("the row is of no known schema");
  throw RowError(RowProblem::unknown_schema, what,
                 keys.empty() ? "an empty object" : "its keys: " + list_of(keys),
                 options.messages_field.empty() && !options.schema
                     ? format("{}; messages_field names another member", known_schemas)
                     : "correct messages_field and dataset_schema, or leave them out");
}

Schema schema_of(const Value& row, const SchemaOptions& options, const std::string& field) {
  const bool pair = present(row, "prompt") && present(row, "completion");
  if (options.schema) {
    const bool turns = *options.schema == Schema::messages || *options.schema == Schema::sharegpt;
    const bool fits = turns ? !field.empty()
                      : *options.schema == Schema::alpaca
                          ? present(row, "instruction") || present(row, "output")
                          : present(row, "prompt") || present(row, "completion");
    if (!fits) unknown_schema(row, options);
    return *options.schema;
  }
  if (!field.empty()) return has_from(row.at(field)) ? Schema::sharegpt : Schema::messages;
  if (!options.messages_field.empty()) unknown_schema(row, options);
  if (present(row, "instruction") && present(row, "output")) return Schema::alpaca;
  if (pair) return Schema::prompt_completion;
  if (present(row, "instruction")) return Schema::alpaca;
  if (present(row, "prompt")) return Schema::prompt_completion;
  unknown_schema(row, options);
}

void fill_note(const Value& row, Schema schema, const std::vector<std::string>& read, SchemaNote& note) {
  note.schema = schema;
  std::vector<std::string> members;
  for (const auto& [key, value] : row.as_object()) {
    if (value.is_null() || key == "tools" || key == "chat_template_kwargs") continue;
    (std::find(read.begin(), read.end(), key) != read.end() ? members : note.not_read).push_back(key);
  }
  note.members = list_of(members);
}

}  // namespace

const char* name_of(Schema schema) {
  switch (schema) {
    case Schema::messages:
      return "messages";
    case Schema::sharegpt:
      return "sharegpt";
    case Schema::alpaca:
      return "alpaca";
    case Schema::prompt_completion:
      return "prompt_completion";
  }
  return "?";
}

SchemaOptions schema_options(std::string_view dataset_schema, std::string messages_field) {
  SchemaOptions out{{}, std::move(messages_field)};
  for (const Schema schema : schemas) {
    if (dataset_schema == name_of(schema)) out.schema = schema;
  }
  if (!out.schema && dataset_schema != "auto") {
    throw Error(ErrorKind::usage, format("unknown schema {}", json::quote(dataset_schema)), "dataset_schema",
                "use auto, messages, sharegpt, alpaca or prompt_completion");
  }
  const bool turns = !out.schema || *out.schema == Schema::messages || *out.schema == Schema::sharegpt;
  if (!turns && !out.messages_field.empty()) {
    throw Error(ErrorKind::usage, format("schema {} has no list of messages", name_of(*out.schema)),
                "messages_field, dataset_schema", "leave one of them out");
  }
  return out;
}

Conversation read_conversation(const Value& row, const SchemaOptions& options, SchemaNote* note) {
  const std::string field = turns_field(row, options);
  const Schema schema = schema_of(row, options, field);
  if (schema == Schema::messages) {
    if (note) fill_note(row, schema, {field}, *note);
    return conversation_of(row, field);
  }
  Converted converted = schema == Schema::sharegpt ? from_sharegpt(row, field)
                        : schema == Schema::alpaca ? from_alpaca(row)
                                                   : from_prompt_completion(row);
  if (note) fill_note(row, schema, converted.read, *note);
  Value made(Object{});
  made.set("messages", std::move(converted.messages));
  for (const char* key : {"tools", "chat_template_kwargs"}) {
    if (const Value* value = present(row, key)) made.set(key, *value);
  }
  Conversation out = conversation_of(made);
  out.first_trained_message = converted.first_trained;
  return out;
}

void SchemaNotices::say(std::string line) {
  log::info("{}", line);
  lines_.push_back(std::move(line));
}

void SchemaNotices::see(const std::string& file, const SchemaNote& note) {
  if (said_.emplace(file, note.schema).second) {
    say(format("{}: rows are read as {} ({})", file, name_of(note.schema), note.members));
  }
  std::string fresh;
  for (const std::string& member : note.not_read) {
    if (named_.size() > most_named || !named_.insert(member).second) continue;
    fresh += fresh.empty() ? "" : ", ";
    fresh += named_.size() > most_named ? "and others" : shortened(member);
  }
  if (!fresh.empty()) say(format("{}: members of rows that are not read: {}", file, fresh));
}

}  // namespace deltatune
