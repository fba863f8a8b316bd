// Opening tokenizer and template.
#include "train/text_source.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/suggest.h"
#include "io/model_path.h"
#include "model/config.h"

namespace deltatune {
namespace {

// {a:b} without a space is, in YAML, one name with a colon in it: a variable that no template reads.
const std::string& variable_name(const std::string& name, const char* where) {
  const auto letter = [](char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  bool good = !name.empty() && letter(name[0]);
  for (const char c : name) good = good && (letter(c) || (c >= '0' && c <= '9'));
  if (good) return name;
  throw Error(
      ErrorKind::usage, format("{} is no name of a template variable", json::quote(name)), where,
      "write {enable_thinking: false}, with a space behind the colon, or --set enable_thinking=false");
}

// The folder with tokenizer files; empty when the configuration names none.
fs::path tokenizer_folder(const Config& config) {
  const std::string& named =
      config.tokenizer_name_or_path.empty() ? config.model_name_or_path : config.tokenizer_name_or_path;
  return named.empty() ? fs::path() : resolve_model_path(named);
}

fs::path needed_folder(const Config& config) {
  const fs::path folder = tokenizer_folder(config);
  if (folder.empty()) {
    throw Error(ErrorKind::usage, "no model and no tokenizer is named",
                "model_name_or_path, tokenizer_name_or_path", "give the folder of a Hugging Face checkpoint");
  }
  return folder;
}

// bos_token and the like, which a template from a file of its own may print.
void add_token_variables(const fs::path& folder, json::Value& variables) {
  const fs::path path = folder / "tokenizer_config.json";
  std::error_code code;
  if (folder.empty() || !fs::exists(path, code)) return;
  const json::Value root = json::parse_file(path.string());
  if (!root.is_object()) return;
  for (const auto& [key, value] : root.as_object()) {
    const json::Value* text = value.is_object() ? value.find("content") : &value;
    if (key.ends_with("_token") && text != nullptr && text->is_string()) variables.set(key, *text);
  }
}

json::Value json_or_text(const std::string& text) {
  try {
    return json::parse(text, "value");
  } catch (const Error&) {
    return json::Value(text);
  }
}

}  // namespace

EncodeConversation TextSource::encoder() const {
  if (tokenizer == nullptr) return {};
  return make_encoder(*tokenizer, *chat_template, options, control_tokens_in_content);
}

std::string TextSource::fingerprint() const {
  if (tokenizer == nullptr) return {};
  Hasher hasher;
  hasher.update(tokenizer->fingerprint()).update(chat_template->fingerprint());
  hasher.update(json::dump(options.variables)).update(options.train_on).update(options.think_prefix);
  hasher.update(control_tokens_in_content ? "control tokens in content" : "content is text");
  return hasher.hex();
}

int32_t TextSource::pad_id() const {
  if (tokenizer == nullptr) return 0;
  return tokenizer->pad_id().value_or(tokenizer->eos_id().value_or(0));
}

ChatTemplate open_template(const Config& config) {
  if (config.chat_template == "from_model") return ChatTemplate::load(needed_folder(config));
  std::error_code code;
  const fs::path given = config.chat_template;
  if (fs::is_directory(given, code)) return ChatTemplate::load(given);
  const bool is_name = !given.has_parent_path() && !given.has_extension() && !fs::exists(given, code);
  if (is_name && !tokenizer_folder(config).empty())
    return ChatTemplate::load(tokenizer_folder(config), config.chat_template);
  return ChatTemplate::compile(read_file(given), config.chat_template);
}

void warn_unread_variables(const ChatTemplate& chat_template, const Config& config) {
  std::vector<std::string> given;
  for (const auto& [name, value] : config.chat_template_kwargs) given.push_back(name);
  for (const std::string& setting : config.set) given.push_back(setting.substr(0, setting.find('=')));
  if (given.empty()) return;
  const std::vector<std::string> read = chat_template.names_read();
  for (const std::string& name : given) {
    if (std::binary_search(read.begin(), read.end(), name)) continue;
    const std::string close = nearest(name, read);
    log::warn("the chat template never reads {}: setting it changes nothing{} ({})", name,
              close.empty() ? "" : format("; did you mean {}?", close), chat_template.where());
  }
}

Tokenizer open_tokenizer(const Config& config) {
  return Tokenizer::load(needed_folder(config));
}

RenderOptions render_options(const Config& config) {
  RenderOptions options;
  options.train_on = config.train_on;
  options.think_prefix = config.think_prefix;
  options.variables = json::Value(json::Object{});
  if (config.chat_template != "from_model") add_token_variables(tokenizer_folder(config), options.variables);
  for (const auto& [name, text] : config.chat_template_kwargs)
    options.variables.set(variable_name(name, "chat_template_kwargs"), json_or_text(text));
  for (const std::string& setting : config.set) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error(ErrorKind::usage, format("--set takes name=value, found {}", json::quote(setting)),
                  "command line", "for example --set enable_thinking=false");
    }
    options.variables.set(variable_name(setting.substr(0, equals), "--set"),
                          json_or_text(setting.substr(equals + 1)));
  }
  return options;
}

TextSource open_text(const Config& config, bool required) {
  TextSource source;
  source.control_tokens_in_content = config.parse_special_in_content;
  source.options = render_options(config);
  source.folder = needed_folder(config);
  std::error_code code;
  required = required || !config.tokenizer_name_or_path.empty();
  if (!required && !fs::exists(source.folder / "tokenizer.json", code)) return source;
  source.tokenizer = std::make_unique<const Tokenizer>(Tokenizer::load(source.folder));
  source.chat_template = std::make_unique<const ChatTemplate>(open_template(config));
  warn_unread_variables(*source.chat_template, config);
  source.chat_template->check(source.options);
  return source;
}

int64_t vocab_size_of(const Config& config, const TextSource& text) {
  std::error_code code;
  if (!config.model_name_or_path.empty()) {
    const fs::path path = resolve_model_path(config.model_name_or_path) / "config.json";
    if (fs::exists(path, code)) {
      return ModelConfig::from_json(json::parse_file(path.string()), path.string()).vocab_size;
    }
  }
  return text.tokenizer != nullptr ? text.tokenizer->vocab_size() : std::numeric_limits<int32_t>::max();
}

}  // namespace deltatune
