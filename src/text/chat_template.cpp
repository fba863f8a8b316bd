// Loading a chat template, preparing messages, and turning a render into loss spans; see chat_template.h.
#include "text/chat_template.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/suggest.h"
#include "text/written_text.h"

namespace deltatune {
namespace {

using jinja::Rendered;
using Span = RenderedChat::Span;
using Turn = RenderedChat::Turn;

/// A tool call's arguments as a mapping: text is parsed, anything else stays.
void parse_arguments(json::Value& call, const std::string& where) {
  if (!call.is_object()) return;
  if (const json::Value* function = call.find("function"); function && function->is_object()) {
    json::Value inner = *function;
    parse_arguments(inner, where);
    call.set("function", std::move(inner));
    return;
  }
  const json::Value* arguments = call.find("arguments");
  if (!arguments || !arguments->is_string()) return;
  json::Value parsed = json::parse(arguments->as_string(), where + ", tool call arguments");
  if (!parsed.is_object()) {
    throw Error(ErrorKind::data,
                format("the arguments of a tool call are an {}, not an object", parsed.type_name()), where,
                "write the arguments as a JSON object");
  }
  call.set("arguments", std::move(parsed));
}

json::Value prepare_message(const json::Value& message, const std::string& where) {
  if (!message.is_object()) {
    throw Error(ErrorKind::data, format("a message must be an object, found {}", message.type_name()), where,
                "write each message as {\"role\": ..., \"content\": ...}");
  }
  json::Object members;
  for (const auto& [key, value] : message.as_object()) {
    if (!value.is_null()) members.emplace_back(key, value);
  }
  json::Value made(std::move(members));
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const json::Value* reasoning = made.find(name);
    if (!reasoning) continue;
    const json::Value value = *reasoning;
    if (!made.find("thinking")) made.as_object().insert(made.as_object().begin(), {"thinking", value});
    made.set("reasoning_content", value);
    break;
  }
  if (const json::Value* calls = made.find("tool_calls"); calls && calls->is_array()) {
    json::Value parsed = *calls;
    for (json::Value& call : parsed.as_array()) parse_arguments(call, where);
    made.set("tool_calls", std::move(parsed));
  }
  return made;
}

json::Value prepare(const json::Value& messages, bool as_given) {
  if (!messages.is_array()) {
    throw Error(ErrorKind::data, format("messages must be an array, found {}", messages.type_name()),
                "messages", "write a conversation as a list of messages");
  }
  if (as_given) return messages;
  json::Array made;
  for (const json::Value& message : messages.as_array()) {
    made.push_back(prepare_message(message, format("message {}", made.size())));
  }
  return json::Value(std::move(made));
}

bool is_assistant(const json::Value& message) {
  const json::Value* role = message.is_object() ? message.find("role") : nullptr;
  return role && role->is_string() && role->as_string() == "assistant";
}

std::vector<int> assistant_messages(const json::Value& messages) {
  std::vector<int> list;
  const json::Array& items = messages.as_array();
  for (size_t i = 0; i < items.size(); ++i) {
    if (is_assistant(items[i])) list.push_back(static_cast<int>(i));
  }
  return list;
}

/// Longest common prefix, cut back to a whole character.
std::string common_prefix(std::string_view a, std::string_view b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  while (n > 0 && n < a.size() && (static_cast<unsigned char>(a[n]) & 0xC0u) == 0x80u) --n;
  return std::string(a.substr(0, n));
}

/// `value` is one of `choices`, or a usage error that names the option.
void check_choice(const char* name, const std::string& value, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  const std::string near = nearest(value, choices);
  throw Error(ErrorKind::usage, format("unknown {} '{}'", name, value), name,
              near.empty() ? format("use {}, {} or {}", choices[0], choices[1], choices[2])
                           : format("did you mean '{}'?", near));
}

json::Value token_variable(const json::Value& entry) {
  const json::Value* content = entry.is_object() ? entry.find("content") : nullptr;
  return content ? *content : entry;
}

/// Named templates of "chat_template" in tokenizer_config.json; one without a name is "default".
std::map<std::string, std::string> templates_of(const json::Value& config) {
  std::map<std::string, std::string> out;
  const json::Value* entry = config.find("chat_template");
  if (entry && entry->is_string()) out["default"] = entry->as_string();
  if (!entry || !entry->is_array()) return out;
  for (const json::Value& item : entry->as_array()) {
    const json::Value* name = item.find("name");
    const json::Value* source = item.find("template");
    if (name && name->is_string() && source && source->is_string())
      out.emplace(name->as_string(), source->as_string());
  }
  return out;
}

/// The files of a checkpoint folder that hold a template each, by name.
std::map<std::string, fs::path> template_files(const fs::path& folder) {
  std::map<std::string, fs::path> out;
  std::error_code code;
  if (fs::exists(folder / "chat_template.jinja", code)) out["default"] = folder / "chat_template.jinja";
  for (fs::directory_iterator it(folder / "additional_chat_templates", code), end; !code && it != end;
       it.increment(code)) {
    if (it->path().extension() == ".jinja") out.emplace(it->path().stem().string(), it->path());
  }
  return out;
}

Error no_template(const std::string& name, const std::vector<std::string>& present, const fs::path& folder) {
  std::string list;
  for (const std::string& other : present) list += (list.empty() ? "" : ", ") + other;
  if (list.empty()) {
    return Error(ErrorKind::data, "the checkpoint has no chat template", folder.string(),
                 "take the instruct checkpoint's chat_template.jinja, or set chat_template: file.jinja");
  }
  return Error(ErrorKind::data, format("the checkpoint has no chat template named {}", json::quote(name)),
               folder.string(),
               format("its templates are {}; or give a file: chat_template: file.jinja", list));
}

}  // namespace

/// What an assistant turn looks like in this template with these variables.
struct ChatTemplate::Shape {
  std::string header;  ///< "<|im_start|>assistant\n"
  std::string rest;    ///< what the generation prompt has behind the header: "<think>\n" or nothing
  std::string end;     ///< "<|im_end|>"
};

struct ChatTemplate::Cache {
  std::mutex mutex;
  std::map<std::string, Shape> shapes;           ///< by variables
  std::map<std::string, std::string> end_marks;  ///< by variables, for generation blocks
};

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate::ChatTemplate(jinja::Template parsed, std::string source, std::vector<jinja::Variable> tokens)
    : template_(std::move(parsed)), tokens_(std::move(tokens)), cache_(std::make_unique<Cache>()) {
  Hasher hasher;
  hasher.update(std::string_view("chat template, spans 2")).update(std::string_view(source));
  for (const jinja::Variable& token : tokens_) {
    hasher.update(std::string_view(token.name)).update(std::string_view(json::dump(token.value)));
  }
  fingerprint_ = hasher.hex();
  names_time_ = source.find("strftime_now") != std::string::npos;
}

ChatTemplate ChatTemplate::compile(std::string source, std::string_view where) {
  jinja::Template parsed = jinja::Template::compile(source, std::string(where));
  return ChatTemplate(std::move(parsed), std::move(source), {});
}

ChatTemplate ChatTemplate::load(const fs::path& folder, const std::string& name) {
  const fs::path config_path = folder / "tokenizer_config.json";
  json::Value config{json::Object{}};
  if (fs::exists(config_path)) config = json::parse_file(config_path.string());
  const std::map<std::string, fs::path> files = template_files(folder);
  const std::map<std::string, std::string> entries = templates_of(config);
  fs::path where = config_path;
  std::string source;
  if (const auto file = files.find(name); file != files.end()) {
    where = file->second;
    source = read_file(where);
  } else if (const auto entry = entries.find(name); entry != entries.end()) {
    source = entry->second;
  }
  if (source.empty()) {
    std::vector<std::string> present;
    for (const auto& [other, path] : files) present.push_back(other);
    for (const auto& [other, text] : entries) {
      if (files.count(other) == 0) present.push_back(other);
    }
    std::erase(present, name);  // an empty one
    throw no_template(name, present, folder);
  }
  std::vector<jinja::Variable> tokens;
  for (const auto& [key, value] : config.is_object() ? config.as_object() : json::Object{}) {
    json::Value token = token_variable(value);
    if (key.ends_with("_token") && token.is_string()) tokens.push_back({key, std::move(token), true});
  }
  jinja::Template parsed = jinja::Template::compile(source, where.string());
  return ChatTemplate(std::move(parsed), std::move(source), std::move(tokens));
}

bool is_reserved_variable(std::string_view name) {
  return name == "messages" || name == "tools" || name == "documents" || name == "add_generation_prompt";
}

Rendered ChatTemplate::run(const json::Value& messages, const json::Value* tools,
                           const RenderOptions& options) const {
  std::vector<jinja::Variable> variables = tokens_;
  variables.push_back({"tools", tools ? *tools : json::Value(), false});
  variables.push_back({"documents", json::Value(), false});
  variables.push_back({"add_generation_prompt", json::Value(options.add_generation_prompt), false});
  if (!options.variables.is_null()) {
    for (const auto& [name, value] : options.variables.as_object()) {
      if (is_reserved_variable(name)) {
        throw Error(ErrorKind::usage, format("'{}' cannot be set as a template variable", name),
                    "template variables", "remove it: the engine sets it for every conversation");
      }
      variables.push_back({name, value, name.ends_with("_token")});
    }
  }
  return template_.render(messages, variables);
}

ChatTemplate::Shape ChatTemplate::learn_shape(const RenderOptions& given) const {
  const auto refuse = [&](std::string_view why) {
    return Error(
        ErrorKind::data, format("assistant turns cannot be recognised: {}", why), template_.where(),
        "put {% generation %} ... {% endgeneration %} around what the assistant writes in the template");
  };
  const auto message = [](const char* role, const char* content) {
    return json::Value(json::Object{{"role", json::Value(role)}, {"content", json::Value(content)}});
  };
  RenderOptions options = given;
  options.add_generation_prompt = false;
  const json::Value question(json::Array{message("user", "qzU1")});
  const jinja::Text asked = run(question, nullptr, options).text;
  const jinja::Text talk =
      run(json::Value(json::Array{message("user", "qzU1"), message("assistant", "qzA1"),
                                  message("user", "qzU2"), message("assistant", "qzA2")}),
          nullptr, options)
          .text;
  options.add_generation_prompt = true;
  const jinja::Text prompted = run(question, nullptr, options).text;
  if (prompted.size() <= asked.size() || !prompted.bytes.starts_with(asked.bytes)) {
    throw refuse("add_generation_prompt adds nothing at the end");
  }
  if (!talk.bytes.starts_with(asked.bytes)) throw refuse("a user turn changes when an answer follows");
  const size_t a1 = talk.bytes.find("qzA1");
  const size_t u2 = talk.bytes.find("qzU2");
  const size_t a2 = talk.bytes.find("qzA2");
  if (a1 == std::string::npos || u2 == std::string::npos || a2 == std::string::npos || a1 < asked.size() ||
      u2 < a1 || a2 < u2) {
    throw refuse("the turns do not appear once each and in order");
  }
  const std::string_view prompt = jinja::written_prefix(prompted, asked.size(), prompted.size());
  if (prompt.size() != prompted.size() - asked.size())
    throw refuse("the generation prompt is not template text");
  Shape shape;
  // A template may open a think block in every turn: that is no part of the header.
  const std::string_view before_think = prompt.substr(0, prompt.find("<think>"));
  shape.header = common_prefix(before_think, jinja::written_prefix(talk, asked.size(), a1));
  shape.rest = prompt.substr(shape.header.size());
  shape.end = common_prefix(jinja::written_prefix(talk, a1 + 4, u2),
                            jinja::written_prefix(talk, a2 + 4, talk.size()));
  shape.end = jinja::strip(jinja::Text(shape.end, jinja::from_template), nullptr, false, true).bytes;
  const auto blank = [](const std::string& text) {
    return jinja::strip(jinja::Text(text, jinja::from_template), nullptr, true, true).empty();
  };
  if (blank(shape.header)) throw refuse("they do not start like the generation prompt");
  if (blank(shape.end)) throw refuse("they have no end mark");
  if (jinja::find_written(asked, shape.header, 0) != std::string::npos)
    throw refuse("user turns have the same header");
  return shape;
}

const ChatTemplate::Shape& ChatTemplate::shape(const RenderOptions& options) const {
  const std::string key = json::dump(options.variables);
  const std::lock_guard lock(cache_->mutex);
  const auto found = cache_->shapes.find(key);
  if (found != cache_->shapes.end()) return found->second;
  return cache_->shapes.emplace(key, learn_shape(options)).first->second;
}

void ChatTemplate::check(const RenderOptions& options) const {
  if (!template_.has_generation()) shape(options);
}

/// Of templates with generation blocks: the learnt end mark, else eos_token, else nothing.
const std::string& ChatTemplate::end_mark(const RenderOptions& options) const {
  const std::string key = json::dump(options.variables);
  const std::lock_guard lock(cache_->mutex);
  const auto found = cache_->end_marks.find(key);
  if (found != cache_->end_marks.end()) return found->second;
  std::string mark;
  for (const jinja::Variable& token : tokens_) {
    if (token.name == "eos_token") mark = token.value.as_string();
  }
  const json::Value* given = options.variables.find("eos_token");
  if (given != nullptr && given->is_string()) mark = given->as_string();
  try {
    mark = learn_shape(options).end;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
  }
  return cache_->end_marks.emplace(key, std::move(mark)).first->second;
}

std::vector<Span> ChatTemplate::block_spans(const Rendered& rendered, const RenderOptions& options) const {
  const std::string& mark = end_mark(options);
  std::vector<Span> spans;
  for (const jinja::GenerationSpan& block : rendered.spans) {
    Span span{block.begin, block.end, block.message};
    if (!mark.empty()) span.end = jinja::skip_written(rendered.text, mark, span.end);
    if (options.think_prefix == "skip_empty") {
      const jinja::ThinkBlock think = jinja::think_block(rendered.text, span.begin, span.end);
      if (think.opening_end == think.end) span.begin = think.end;
    }
    if (span.begin < span.end) spans.push_back(span);
  }
  return spans;
}

std::vector<Turn> ChatTemplate::find_turns(const Rendered& rendered, const json::Value& messages,
                                           const RenderOptions& options) const {
  const Shape& shape = this->shape(options);
  const jinja::Text& text = rendered.text;
  const std::vector<int> assistants = assistant_messages(messages);
  const auto refuse = [&](const std::string& why) {
    return Error(
        ErrorKind::data,
        format("the assistant turns in the rendered text do not match the messages: {}", why),
        template_.where(),
        "put {% generation %} ... {% endgeneration %} around what the assistant writes in the template");
  };
  std::vector<Turn> turns;
  auto mark = rendered.message_marks.begin();
  int message = -1;
  for (size_t at = jinja::find_written(text, shape.header, 0); at != std::string::npos;) {
    Turn turn;
    turn.header_end = at + shape.header.size();
    turn.prompt_end = jinja::skip_written(text, shape.rest, turn.header_end);
    const size_t end = jinja::find_written(text, shape.end, turn.prompt_end);
    if (end == std::string::npos) {
      const std::string_view behind = std::string_view(text.bytes).substr(turn.header_end);
      if (options.add_generation_prompt && behind == shape.rest) break;
      throw refuse("the last turn has no end mark");
    }
    const jinja::ThinkBlock think = jinja::think_block(text, turn.header_end, end);
    turn.gen_prompt_end = think.opening_end;
    turn.answer_start = think.end;
    turn.im_end_end = end + shape.end.size();
    turn.turn_end = jinja::skip_written_space(text, turn.im_end_end);
    for (; mark != rendered.message_marks.end() && mark->first <= at; ++mark) message = mark->second;
    if (turns.size() >= assistants.size()) throw refuse("there are more turns than assistant messages");
    turn.message = assistants[turns.size()];
    if (message >= 0 && message != turn.message) throw refuse("a turn was written by another message");
    turns.push_back(turn);
    at = jinja::find_written(text, shape.header, turn.im_end_end);
  }
  if (turns.size() != assistants.size()) {
    throw refuse(format("{} turns for {} assistant messages", turns.size(), assistants.size()));
  }
  return turns;
}

RenderedChat ChatTemplate::render(const json::Value& messages, const json::Value* tools,
                                  const RenderOptions& options) const {
  check_choice("train_on", options.train_on, {"assistant", "last", "all"});
  check_choice("think_prefix", options.think_prefix, {"generated", "all", "skip_empty"});
  const json::Value prepared = prepare(messages, options.as_given);
  Rendered rendered = run(prepared, tools, options);
  RenderedChat result;
  if (!template_.has_generation() && options.train_on != "all")
    result.turns = find_turns(rendered, prepared, options);
  if (options.train_on == "all") {
    if (!rendered.text.empty()) result.spans.push_back({0, rendered.text.size(), -1});
  } else if (template_.has_generation()) {
    result.spans = block_spans(rendered, options);
  }
  for (const Turn& turn : result.turns) {
    size_t begin = options.think_prefix == "all" ? turn.header_end : turn.prompt_end;
    const bool empty_block = turn.gen_prompt_end == turn.answer_start;
    if (options.think_prefix == "skip_empty" && empty_block) begin = std::max(begin, turn.answer_start);
    result.spans.push_back({begin, turn.im_end_end, turn.message});
  }
  if (options.train_on != "all" && options.first_trained_message > 0) {
    std::erase_if(result.spans, [&](const Span& span) {
      if (span.message < 0) {
        throw Error(ErrorKind::data, "the turns of prompt and completion cannot be told apart",
                    template_.where(), "write the template as a loop over messages");
      }
      return span.message < options.first_trained_message;
    });
  }
  if (options.train_on == "last" && !result.spans.empty()) {
    const int last = result.spans.back().message;
    const auto earlier = [&](const Span& s) {
      return last < 0 ? s.end != result.spans.back().end : s.message != last;
    };
    result.spans.erase(std::remove_if(result.spans.begin(), result.spans.end() - 1, earlier),
                       result.spans.end() - 1);
  }
  result.marked.text = std::move(rendered.text.bytes);
  result.marked.flags.assign(rendered.text.flags.begin(), rendered.text.flags.end());
  for (const Span& span : result.spans) {
    for (size_t i = span.begin; i < span.end; ++i) result.marked.flags[i] |= mark_supervised;
  }
  return result;
}

}  // namespace deltatune
