// Loading tokenizer, template and datasets as the configuration says.
#include "train/run_data.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "io/model_path.h"
#include "train/engine.h"

namespace deltatune {
namespace {

json::Value template_variables(const Config& config) {
  json::Value out{json::Object{}};
  for (const auto& [name, text] : config.chat_template_kwargs) {
    out.set(name, json::parse(text, "chat_template_kwargs." + name));
  }
  return out;
}

void check_vocabulary(const Tokenizer& tokenizer, const ModelSource& source, const fs::path& folder) {
  if (tokenizer.vocab_size() <= source.config.vocab_size) return;
  throw Error(ErrorKind::model,
              format("the tokenizer has {} ids, the model's embedding only {} rows", tokenizer.vocab_size(),
                     source.config.vocab_size),
              folder.string(), "take the tokenizer that belongs to the model");
}

bool has_template(const fs::path& folder) {
  if (fs::exists(folder / "chat_template.jinja")) return true;
  const fs::path config = folder / "tokenizer_config.json";
  return fs::exists(config) && json::parse_file(config.string()).find("chat_template") != nullptr;
}

OnBadRow on_bad_row(const Config& config) {
  return config.on_bad_row == "skip" ? OnBadRow::skip : OnBadRow::error;
}

Overflow overflow(const Config& config) {
  if (config.overflow == "drop") return Overflow::drop;
  return config.overflow == "split" ? Overflow::split : Overflow::truncate;
}

}  // namespace

EncodeConversation TextTools::encoder(bool control_tokens_in_content) const {
  if (!tokenizer || !chat_template) return {};
  return make_encoder(*tokenizer, *chat_template, render, control_tokens_in_content);
}

int32_t TextTools::pad_id() const {
  if (!tokenizer) return 0;
  return tokenizer->pad_id().value_or(tokenizer->eos_id().value_or(0));
}

std::vector<int32_t> TextTools::stop_ids(const ModelSource& source) const {
  std::vector<int32_t> out;
  const auto add = [&](int64_t id) {
    if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(static_cast<int32_t>(id));
  };
  if (tokenizer && tokenizer->eos_id()) add(*tokenizer->eos_id());
  for (const int64_t id : source.config.eos_token_ids) add(id);
  const fs::path path = source.folder / "generation_config.json";
  if (fs::exists(path)) {
    const json::Value config = json::parse_file(path.string());
    const json::Value* eos = config.find("eos_token_id");
    if (eos && eos->is_integer()) add(eos->as_integer());
    if (eos && eos->is_array()) {
      for (const json::Value& id : eos->as_array()) add(id.as_integer());
    }
  }
  return out;
}

TextTools load_text_tools(const Config& config, const ModelSource& source, bool required) {
  TextTools tools;
  tools.folder = config.tokenizer_name_or_path.empty() ? source.folder
                                                       : resolve_model_path(config.tokenizer_name_or_path);
  tools.render.train_on = config.train_on;
  tools.render.variables = template_variables(config);
  if (required || fs::exists(tools.folder / "tokenizer.json")) {
    tools.tokenizer = std::make_unique<Tokenizer>(Tokenizer::load(tools.folder));
    check_vocabulary(*tools.tokenizer, source, tools.folder);
  }
  if (config.chat_template != "from_model") {
    tools.chat_template = std::make_unique<ChatTemplate>(
        ChatTemplate::compile(read_file(config.chat_template), config.chat_template));
  } else if (required || has_template(tools.folder)) {
    tools.chat_template = std::make_unique<ChatTemplate>(ChatTemplate::load(tools.folder));
  }
  return tools;
}

TokenizedSet load_set(const std::vector<std::string>& entries, const Config& config,
                      const ModelSource& source, const TextTools& tools) {
  DatasetOptions options;
  options.on_bad_row = on_bad_row(config);
  options.overflow = overflow(config);
  options.max_length = std::min(config.max_length, config.max_tokens);
  if (options.max_length < config.max_length) {
    log::info("conversations are limited to {} tokens, the slots of a row (max_tokens); max_length is {}",
              config.max_tokens, config.max_length);
  }
  options.max_tokens = config.max_tokens;
  options.vocab_size = source.config.vocab_size;
  if (!config.messages_field.empty()) options.messages_field = config.messages_field;
  return load_dataset(entries, options, tools.encoder(config.parse_special_in_content));
}

int64_t max_documents(const Config& config) {
  const int64_t wish =
      config.max_documents > 0 ? config.max_documents : default_max_documents(config.max_tokens);
  return std::min(wish, config.max_tokens);
}

StreamOptions stream_options(const Config& config, const TextTools& tools) {
  StreamOptions options;
  options.max_tokens = config.max_tokens;
  options.seed = static_cast<uint64_t>(config.data_seed >= 0 ? config.data_seed : config.seed);
  options.gradient_accumulation_steps = config.gradient_accumulation_steps;
  options.pad_id = tools.pad_id();
  if (config.batching == "padded") options.batching = Batching::padded;
  if (config.batching == "sorted") options.batching = Batching::sorted;
  options.max_segments = max_documents(config);
  return options;
}

}  // namespace deltatune
