// Schema check and normalisation of one chat row.
#include "data/conversation.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/format.h"
#include "base/suggest.h"
#include "text/chat_template.h"

namespace deltatune {
namespace {

using json::Array;
using json::Member;
using json::Object;
using json::Value;

struct Renamed {
  std::string_view from;
  std::string_view to;
};

const std::vector<std::string> known_roles = {"system", "user", "assistant", "tool"};
const std::vector<std::string> known_keys = {"role",       "content",      "reasoning_content",
                                             "tool_calls", "tool_call_id", "name"};

// What other programs call the same thing.
constexpr std::array role_names = {
    Renamed{"developer", "system"},  Renamed{"human", "user"},      Renamed{"gpt", "assistant"},
    Renamed{"bot", "assistant"},     Renamed{"model", "assistant"}, Renamed{"ai", "assistant"},
    Renamed{"chatgpt", "assistant"}, Renamed{"function", "tool"},   Renamed{"observation", "tool"},
    Renamed{"ipython", "tool"},      Renamed{"prompter", "user"}};
constexpr std::array key_names = {Renamed{"thinking", "reasoning_content"},
                                  Renamed{"reasoning", "reasoning_content"},
                                  Renamed{"thought", "reasoning_content"},
                                  Renamed{"thoughts", "reasoning_content"},
                                  Renamed{"think", "reasoning_content"},
                                  Renamed{"from", "role"},
                                  Renamed{"speaker", "role"},
                                  Renamed{"author", "role"},
                                  Renamed{"value", "content"},
                                  Renamed{"text", "content"},
                                  Renamed{"message", "content"},
                                  Renamed{"function_call", "tool_calls"},
                                  Renamed{"tools_calls", "tool_calls"},
                                  Renamed{"functions", "tool_calls"}};
constexpr std::array<std::string_view, 6> media_keys = {"image",  "images", "video",
                                                        "videos", "audio",  "audios"};

template <size_t n>
std::string renamed(std::string_view word, const std::array<Renamed, n>& table,
                    const std::vector<std::string>& known) {
  std::string lower(word);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  for (const Renamed& entry : table) {
    if (entry.from == lower) return std::string(entry.to);
  }
  return nearest(lower, known);
}

// At most 40 bytes of a text of the user's, cut between characters: messages stay readable.
std::string shortened(std::string_view text) {
  if (text.size() <= 40) return json::quote(text);
  size_t cut = 40;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return json::quote(text.substr(0, cut)) + "...";
}

std::string part_text(const Value& part, const std::string& where) {
  if (!part.is_object()) {
    throw RowError(RowProblem::content,
                   format("a content part is a JSON {}, not an object", part.type_name()), where,
                   "write parts as {\"type\": \"text\", \"text\": \"...\"}");
  }
  const Value* type = part.find("type");
  const std::string kind = type && type->is_string() ? type->as_string() : (type ? "" : "text");
  for (const std::string_view media :
       {"image", "image_url", "input_image", "video", "video_url", "audio", "input_audio", "audio_url"}) {
    if (kind == media) {
      throw RowError(RowProblem::image, format("content part of type \"{}\": only text is trained", media),
                     where, "remove rows with images, video or sound, or pass on_bad_row: skip");
    }
  }
  const Value* text = part.find("text");
  if (kind != "text" || !text || !text->is_string()) {
    throw RowError(RowProblem::content, "a content part is not text", where,
                   "write parts as {\"type\": \"text\", \"text\": \"...\"}");
  }
  return text->as_string();
}

// String, null and a list of text parts are the three forms of content.
std::string content_text(const Value* content, const std::string& where) {
  if (!content || content->is_null()) return {};
  if (content->is_string()) return content->as_string();
  if (!content->is_array()) {
    throw RowError(RowProblem::content, format("content is a JSON {}, not a text", content->type_name()),
                   where, "write content as a string or a list of text parts");
  }
  std::string text;
  for (const Value& part : content->as_array()) text += part_text(part, where);
  return text;
}

Value arguments_of(const Value* arguments, const std::string& where) {
  if (!arguments || arguments->is_null()) return Object{};
  if (arguments->is_object()) return *arguments;
  const std::string fix = "write arguments as an object, or as a string that holds a JSON object";
  if (!arguments->is_string()) {
    throw RowError(RowProblem::tool_call,
                   format("arguments of a tool call are a JSON {}", arguments->type_name()), where, fix);
  }
  Value parsed;
  try {
    parsed = json::parse(arguments->as_string(), "");
  } catch (const Error&) {
    throw RowError(RowProblem::tool_call,
                   "arguments of a tool call are not JSON: " + shortened(arguments->as_string()), where, fix);
  }
  if (!parsed.is_object()) {
    throw RowError(RowProblem::tool_call,
                   format("arguments of a tool call hold a JSON {}, not an object", parsed.type_name()),
                   where, fix);
  }
  return parsed;
}

// {"function": {"name", "arguments"}, ...} or {"name", "arguments"}: the same with arguments as an object.
Value tool_call_of(const Value& call, const std::string& where) {
  const Value* nested = call.find("function");
  const Value& inner = nested && !nested->is_null() ? *nested : call;
  const Value* name = inner.find("name");
  if (!name || !name->is_string() || name->as_string().empty()) {
    throw RowError(
        RowProblem::tool_call, "a tool call has no function name", where,
        "write it as {\"type\": \"function\", \"function\": {\"name\": ..., \"arguments\": {...}}}");
  }
  Value function(Object{});
  bool has_arguments = false;
  for (const auto& [key, value] : inner.as_object()) {
    if (value.is_null() && key != "arguments") continue;
    has_arguments = has_arguments || key == "arguments";
    function.set(key, key == "arguments" ? arguments_of(&value, where) : value);
  }
  if (!has_arguments) function.set("arguments", arguments_of(nullptr, where));
  if (&inner == &call) return function;
  Value out(Object{});
  for (const auto& [key, value] : call.as_object()) {
    if (value.is_null()) continue;
    out.set(key, key == "function" ? std::move(function) : value);
  }
  return out;
}

Value tool_calls_of(const Value& calls, const std::string& where) {
  if (!calls.is_array()) {
    throw RowError(RowProblem::tool_call, format("tool_calls is a JSON {}, not a list", calls.type_name()),
                   where, "write tool_calls as a list");
  }
  Array out;
  for (const Value& call : calls.as_array()) out.push_back(tool_call_of(call, where));
  return out;
}

void check_key(std::string_view key, const std::string& where) {
  if (std::find(known_keys.begin(), known_keys.end(), key) != known_keys.end()) return;
  if (std::find(media_keys.begin(), media_keys.end(), key) != media_keys.end()) {
    throw RowError(RowProblem::image, format("a message has {}: only text is trained", json::quote(key)),
                   where, "remove rows with images, video or sound, or pass on_bad_row: skip");
  }
  const std::string better = renamed(key, key_names, known_keys);
  throw RowError(RowProblem::unknown_key, "unknown message key " + shortened(key), where,
                 better.empty() ? "remove it; known keys: role, content, reasoning_content, tool_calls, "
                                  "tool_call_id, name"
                                : format("rename it to \"{}\", or remove it", better));
}

std::string role_of(const Value& message, const std::string& where) {
  const Value* role = message.find("role");
  if (!role || !role->is_string()) {
    // from/value rows get the better message of check_key.
    for (const auto& [key, value] : message.as_object()) {
      if (!value.is_null()) check_key(key, where);
    }
    throw RowError(RowProblem::role, "a message has no role", where,
                   "set role to system, user, assistant or tool");
  }
  const std::string& name = role->as_string();
  if (std::find(known_roles.begin(), known_roles.end(), name) != known_roles.end()) return name;
  const std::string better = renamed(name, role_names, known_roles);
  throw RowError(RowProblem::role, "unknown role " + shortened(name), where,
                 better.empty() ? "use system, user, assistant or tool" : format("use \"{}\"", better));
}

struct Checked {
  Value message;
  std::string role;
  bool empty = false;
};

Checked message_of(const Value& message, const std::string& where) {
  if (!message.is_object()) {
    throw RowError(RowProblem::messages, format("a message is a JSON {}, not an object", message.type_name()),
                   where, "write messages as {\"role\": ..., \"content\": ...}");
  }
  Checked out;
  out.role = role_of(message, where);
  const std::string content = content_text(message.find("content"), where);
  out.empty = content.empty();
  out.message = Value(Object{});
  out.message.set("role", out.role);
  out.message.set("content", content);
  for (const auto& [key, value] : message.as_object()) {
    if (value.is_null() || key == "role" || key == "content") continue;
    check_key(key, where);
    if (key == "tool_calls") {
      if (out.role != "assistant" && !(value.is_array() && value.as_array().empty())) {
        throw RowError(RowProblem::tool_call, format("tool_calls in a message of role {}", out.role), where,
                       "only assistant messages call tools");
      }
      Value calls = tool_calls_of(value, where);
      if (calls.as_array().empty()) continue;
      out.empty = false;
      out.message.set(key, std::move(calls));
      continue;
    }
    if (!value.is_string()) {
      throw RowError(RowProblem::content, format("{} is a JSON {}, not a text", key, value.type_name()),
                     where, format("write {} as a string", key));
    }
    if (key == "reasoning_content") {
      if (out.role != "assistant") {
        throw RowError(RowProblem::content, format("reasoning_content in a message of role {}", out.role),
                       where, "only assistant messages carry reasoning");
      }
      out.empty = out.empty && value.as_string().empty();
    }
    out.message.set(key, value);
  }
  return out;
}

void check_order(std::string_view role, std::string_view previous, const std::string& where) {
  if (role == "system" && !previous.empty()) {
    throw RowError(RowProblem::role, "a system message that is not the first message", where,
                   "merge system messages into the first one");
  }
  if (role == "tool" && previous != "assistant" && previous != "tool") {
    throw RowError(RowProblem::role, "a tool message that answers no assistant message", where,
                   "put it after the assistant message that calls the tool");
  }
}

Value tools_of(const Value* tools) {
  if (!tools || tools->is_null()) return {};
  const std::string fix = "write tools as a list of JSON schemas, or as a string that holds one";
  Value list = *tools;
  if (list.is_string()) {
    try {
      list = json::parse(tools->as_string(), "");
    } catch (const Error&) {
      throw RowError(RowProblem::tools, "tools is a string that is not JSON", "tools", fix);
    }
  }
  if (list.is_null()) return {};
  if (!list.is_array()) {
    throw RowError(RowProblem::tools, format("tools is a JSON {}, not a list", list.type_name()), "tools",
                   fix);
  }
  for (const Value& tool : list.as_array()) {
    if (!tool.is_object()) {
      throw RowError(RowProblem::tools, format("a tool is a JSON {}, not an object", tool.type_name()),
                     "tools", fix);
    }
  }
  return list.as_array().empty() ? Value() : list;
}

[[noreturn]] void unknown_schema(const Value& row, std::string_view messages_field) {
  std::string keys;
  int shown = 0;
  for (const auto& [key, value] : row.as_object()) {
    if (++shown > 6) {
      keys += ", ...";
      break;
    }
    keys += (keys.empty() ? "" : ", ") + shortened(key);
  }
  throw RowError(RowProblem::unknown_schema,
                 format("the row has neither {} nor \"input_ids\"", json::quote(messages_field)),
                 keys.empty() ? "an empty object" : "its keys: " + keys,
                 format("convert it to {{{}: [{{\"role\": ..., \"content\": ...}}, ...]}}",
                        json::quote(messages_field)));
}

}  // namespace

Conversation conversation_of(const json::Value& row, std::string_view messages_field) {
  const Value* messages = row.find(messages_field);
  if (!messages || messages->is_null()) unknown_schema(row, messages_field);
  if (!messages->is_array()) {
    throw RowError(RowProblem::messages, format("messages is a JSON {}, not a list", messages->type_name()),
                   "", "write messages as a list of {\"role\": ..., \"content\": ...}");
  }
  if (messages->as_array().empty()) {
    throw RowError(RowProblem::messages, "the row has no messages", "", "remove it");
  }
  Conversation out;
  Array checked;
  std::string previous;
  bool has_assistant = false;
  for (size_t i = 0; i < messages->as_array().size(); ++i) {
    const std::string where = format("message {}", i);
    Checked message = message_of(messages->as_array()[i], where);
    check_order(message.role, previous, where);
    previous = message.role;
    if (message.role == "assistant") {
      has_assistant = true;
      if (message.empty) ++out.empty_assistant_turns;
    }
    checked.push_back(std::move(message.message));
  }
  if (!has_assistant) {
    throw RowError(RowProblem::no_assistant, "the row has no assistant message: nothing to learn", "",
                   "add the answer, or remove the row");
  }
  out.messages = std::move(checked);
  out.tools = tools_of(row.find("tools"));
  if (const Value* options = row.find("chat_template_kwargs"); options && !options->is_null()) {
    if (!options->is_object()) {
      throw RowError(RowProblem::unknown_schema, "chat_template_kwargs is not an object",
                     "chat_template_kwargs", "write it as an object");
    }
    for (const auto& [name, value] : options->as_object()) {
      if (!is_reserved_variable(name)) continue;
      throw RowError(RowProblem::refused, format("'{}' cannot be set as a template variable", name),
                     "chat_template_kwargs", "remove it: it is set for every conversation");
    }
    out.template_options = *options;
  }
  return out;
}

}  // namespace deltatune
