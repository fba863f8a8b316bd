// Reads tokenizer.json and tokenizer_config.json into a Tokenizer.
//
// Keys that change ids are read or refused; the others (truncation, padding, the decoder's offsets, what is
// for transformers only) are left alone. Ids always come from the vocabulary, never from the order of merges.
#include <algorithm>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace deltatune {
namespace {

constexpr int64_t max_ids = int64_t{1} << 22;  // sixteen times the largest vocabulary of the family
constexpr int64_t qwen3_5_base_tokens = 248044;
constexpr const char* use_original = "use the tokenizer files that came with the checkpoint";

[[noreturn]] void refuse(std::string what, std::string where, std::string fix = use_original) {
  throw Error(ErrorKind::data, std::move(what), std::move(where), std::move(fix));
}

// Member of an object, with JSON null the same as absent.
const json::Value* present(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool flag(const json::Value& object, std::string_view key) {
  const json::Value* value = present(object, key);
  return value != nullptr && value->as_bool();
}

}  // namespace

class TokenizerReader {
 public:
  explicit TokenizerReader(std::string_view where) : where_(where) {}

  Tokenizer read(const json::Value& file, const json::Value* config) {
    guarded("tokenizer.json", [&] { read_file(file); });
    if (config != nullptr) guarded("tokenizer_config.json", [&] { read_config(*config); });
    for (size_t id = 0; id < out_.tokens_.size(); ++id) {
      const Tokenizer::Token& token = out_.tokens_[id];
      if (token.added) {
        const std::string content =
            token.normalized && out_.nfc_ ? normalize_nfc(token.bytes).text : token.bytes;
        (token.normalized ? out_.added_normalized_ : out_.added_raw_).add(content, static_cast<int32_t>(id));
      }
    }
    return std::move(out_);
  }

 private:
  // Errors of the JSON accessors know neither file nor key.
  template <class Body>
  void guarded(std::string_view file, Body body) {
    place_ = where_.empty() ? std::string(file) : format("{}/{}", where_, file);
    try {
      body();
    } catch (const Error& error) {
      if (!error.where().empty()) throw;
      throw Error(error.kind(), error.what(), place_ + section_,
                  error.fix().empty() ? use_original : error.fix());
    }
  }
  std::string at(std::string_view key) const { return format("{}, key {}", place_, key); }
  void enter(std::string_view key) { section_ = format(", key {}", key); }

  void read_file(const json::Value& file) {
    section_.clear();
    if (!file.is_object()) refuse("tokenizer.json is not a JSON object", place_);
    enter("model");
    const json::Value& model = file.at("model");
    if (!model.is_object()) refuse("the model is not a JSON object", at("model"));
    check_model(model);
    read_vocab(model.at("vocab"));
    enter("normalizer");
    if (const json::Value* normalizer = present(file, "normalizer")) read_normalizer(*normalizer);
    enter("pre_tokenizer");
    const json::Value* pre_tokenizer = file.find("pre_tokenizer");
    out_.pre_tokenizer_ =
        PreTokenizer::parse(pre_tokenizer == nullptr ? json::Value() : *pre_tokenizer, place_);
    enter("model");
    read_merges(model);
    if (base_tokens_ >= qwen3_5_base_tokens && !out_.pre_tokenizer_->mentions_property("M")) {
      log::warn(
          "{}: the vocabulary has the size of Qwen3.5's, but the split pattern has no \\p{{M}}: the file was "
          "probably saved with the pattern of an older family, and texts with combining marks get other ids",
          place_);
    }
    enter("post_processor");
    if (const json::Value* processor = present(file, "post_processor")) check_post_processor(*processor);
    enter("decoder");
    if (const json::Value* decoder = present(file, "decoder")) {
      const std::string& type = decoder->at("type").as_string();
      if (type != "ByteLevel") refuse(format("decoder type \"{}\" is not supported", type), at("decoder"));
    }
    enter("added_tokens");
    if (const json::Value* added = present(file, "added_tokens")) {
      for (const json::Value& token : added->as_array()) add_token(token.at("id").as_integer(), token, false);
    }
  }

  void check_model(const json::Value& model) {
    const json::Value* type = present(model, "type");
    if (type != nullptr && type->as_string() != "BPE") {
      refuse(format("model type \"{}\" is not supported", type->as_string()), at("model.type"),
             "byte-level BPE tokenizers are supported");
    }
    if (type == nullptr && model.find("merges") == nullptr) refuse("the model has no type", at("model.type"));
    if (flag(model, "byte_fallback")) {
      refuse("byte_fallback is not supported", at("model.byte_fallback"),
             "byte-level BPE tokenizers are supported");
    }
    const json::Value* dropout = present(model, "dropout");
    if (dropout != nullptr && dropout->as_number() != 0)
      refuse("BPE dropout is not supported", at("model.dropout"));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json::Value* affix = present(model, key);
      if (affix != nullptr && !affix->as_string().empty()) {
        refuse(format("{} \"{}\" is not supported", key, affix->as_string()), at(format("model.{}", key)),
               "byte-level BPE tokenizers are supported");
      }
    }
  }

  // Makes room for `id` and returns its entry.
  Tokenizer::Token& entry(int64_t id, std::string_view content) {
    // A file cannot make us allocate much more than it is long itself.
    const int64_t limit = std::min(max_ids, id_room_);
    if (id < 0 || id >= limit) {
      refuse(format("token {} has the id {}", json::quote(content), id), place_ + section_,
             format("ids of this file have to be at least 0 and below {}", limit));
    }
    if (static_cast<size_t>(id) >= out_.tokens_.size()) out_.tokens_.resize(static_cast<size_t>(id) + 1);
    return out_.tokens_[static_cast<size_t>(id)];
  }

  void read_vocab(const json::Value& vocab) {
    enter("model.vocab");
    const json::Object& members = vocab.as_object();
    base_tokens_ = static_cast<int64_t>(members.size());
    id_room_ = 8 * base_tokens_ + 65536;
    out_.tokens_.reserve(members.size() + 64);
    out_.ids_.reserve(members.size() + 64);
    for (const auto& [spelling, value] : members) {
      if (spelling.empty()) refuse("the vocabulary has an empty token", at("model.vocab"));
      const int64_t id = value.as_integer();
      Tokenizer::Token& token = entry(id, spelling);
      if (token.present) {
        refuse(format("tokens {} and {} have the same id {}", json::quote(spelling),
                      json::quote(out_.token_text(static_cast<int32_t>(id))), id),
               at("model.vocab"));
      }
      std::optional<std::string> bytes = bytes_of_spelling(spelling);
      token.present = true;
      token.byte_level = bytes.has_value();
      token.bytes = bytes.has_value() ? std::move(*bytes) : spelling;
      out_.ids_.emplace(spelling, static_cast<int32_t>(id));
    }
    for (int byte = 0; byte < 256; ++byte) {
      const std::string spelling = spelling_of_bytes(std::string(1, static_cast<char>(byte)));
      if (!out_.id_of(spelling).has_value()) {
        refuse(format("the vocabulary has no token for byte 0x{:02X} ({})", byte, json::quote(spelling)),
               at("model.vocab"), "byte-level BPE needs all 256 bytes in its vocabulary");
      }
    }
  }

  void read_merges(const json::Value& model) {
    enter("model.merges");
    const json::Array& entries = model.at("merges").as_array();
    std::vector<Bpe::Merge> merges;
    merges.reserve(entries.size());
    std::string whole;
    const auto id_of = [&](std::string_view token) {
      const std::optional<int32_t> id = out_.id_of(token);
      if (!id.has_value()) {
        refuse(format("merge {} needs the token {}, which the vocabulary lacks", merges.size(),
                      json::quote(token)),
               at("model.merges"));
      }
      return *id;
    };
    for (const json::Value& item : entries) {
      std::string_view left;
      std::string_view right;
      if (item.is_array() && item.as_array().size() == 2) {
        left = item.as_array()[0].as_string();
        right = item.as_array()[1].as_string();
      } else if (item.is_string()) {
        const std::string_view both = item.as_string();
        const size_t space = both.find(' ');
        left = both.substr(0, space);
        if (space != std::string_view::npos) right = both.substr(space + 1);
      }
      if (left.empty() || right.empty() || (item.is_string() && right.find(' ') != std::string_view::npos)) {
        refuse(format("merge {} is neither \"left right\" nor [\"left\", \"right\"]", merges.size()),
               at("model.merges"));
      }
      whole.assign(left).append(right);
      merges.push_back({id_of(left), id_of(right), id_of(whole)});
    }
    std::vector<Bpe::Token> tokens;
    tokens.reserve(out_.ids_.size());
    for (size_t id = 0; id < out_.tokens_.size(); ++id) {
      const Tokenizer::Token& token = out_.tokens_[id];
      if (token.byte_level) tokens.push_back({token.bytes, static_cast<int32_t>(id)});
    }
    out_.bpe_ = Bpe(tokens, merges, flag(model, "ignore_merges"));
  }

  void read_normalizer(const json::Value& normalizer) {
    const std::string& type = normalizer.at("type").as_string();
    if (type == "NFC") {
      out_.nfc_ = true;
    } else if (type == "Sequence") {
      for (const json::Value& step : normalizer.at("normalizers").as_array()) read_normalizer(step);
    } else {
      refuse(format("normalizer type \"{}\" is not supported", type), at("normalizer"),
             "NFC and null are supported");
    }
  }

  void check_post_processor(const json::Value& processor) {
    const std::string& type = processor.at("type").as_string();
    if (type == "ByteLevel") return;
    if (type == "Sequence") {
      for (const json::Value& step : processor.at("processors").as_array()) check_post_processor(step);
      return;
    }
    if (type == "TemplateProcessing") {
      bool adds = false;
      for (const json::Value& item : processor.at("single").as_array())
        adds = adds || item.find("SpecialToken");
      if (!adds) return;
    }
    refuse(format("the post-processor ({}) adds tokens to every text", type), at("post_processor"),
           "conversations get their control tokens from the chat template; set post_processor to null");
  }

  // One added token of either file.
  void add_token(int64_t id, const json::Value& value, bool from_config) {
    const std::string& content = value.at("content").as_string();
    const std::string named = format("added token {} (id {})", json::quote(content), id);
    if (content.empty()) refuse(format("added token with id {} is empty", id), place_ + section_);
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (flag(value, key))
        refuse(format("{} has {}, which is not supported", named, key), place_ + section_);
    }
    const std::optional<int32_t> known = out_.id_of(content);
    if (known.has_value() && *known != id) {
      refuse(format("{} is already the token with id {}", named, *known), place_ + section_);
    }
    Tokenizer::Token& token = entry(id, content);
    if (token.present && !known.has_value()) {
      refuse(format("{} takes the id of the token {}", named,
                    json::quote(out_.token_text(static_cast<int32_t>(id)))),
             place_ + section_);
    }
    if (token.added && !from_config) refuse(format("{} is listed twice", named), place_ + section_);
    token.bytes = content;
    token.present = true;
    token.added = true;
    token.special = flag(value, "special");
    const json::Value* normalized = present(value, "normalized");
    token.normalized = normalized == nullptr ? !token.special : normalized->as_bool();
    out_.ids_.emplace(content, static_cast<int32_t>(id));
  }

  void read_config(const json::Value& config) {
    section_.clear();
    if (!config.is_object()) refuse("tokenizer_config.json is not a JSON object", place_);
    for (const char* key : {"add_bos_token", "add_eos_token"}) {
      if (flag(config, key)) {
        refuse(format("{} is true: tokens would be added to every text", key), at(key),
               "conversations get their control tokens from the chat template; set it to false");
      }
    }
    enter("added_tokens_decoder");
    if (const json::Value* decoder = present(config, "added_tokens_decoder")) {
      for (const auto& [key, value] : decoder->as_object()) {
        if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos) {
          refuse(format("\"{}\" is no token id", key), at("added_tokens_decoder"));
        }
        add_token(std::stoll(key), value, true);
      }
    }
    out_.eos_id_ = named_token(config, "eos_token");
    out_.pad_id_ = named_token(config, "pad_token");
    out_.bos_id_ = named_token(config, "bos_token");
  }

  // A token given as a string or as {"content": ...}.
  std::optional<int32_t> named_token(const json::Value& config, std::string_view key) {
    enter(key);
    const json::Value* value = present(config, key);
    if (value == nullptr) return std::nullopt;
    const std::string& content = value->is_object() ? value->at("content").as_string() : value->as_string();
    const std::optional<int32_t> id = out_.id_of(content);
    if (!id.has_value()) refuse(format("{} {} is no token", key, json::quote(content)), at(key));
    return id;
  }

  std::string_view where_;
  std::string place_;    // the file being read
  std::string section_;  // ", key ..." for errors of the JSON accessors
  int64_t base_tokens_ = 0;
  int64_t id_room_ = 0;
  Tokenizer out_;
};

Tokenizer Tokenizer::load(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.json";
  if (!fs::exists(file)) {
    throw Error(ErrorKind::data, "there is no tokenizer.json", folder.string(),
                "copy tokenizer.json and tokenizer_config.json of the model into the folder");
  }
  const fs::path config = folder / "tokenizer_config.json";
  return parse(read_file(file), fs::exists(config) ? read_file(config) : std::string(), folder.string());
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                           std::string_view where) {
  const std::string prefix = where.empty() ? std::string() : format("{}/", where);
  const json::Value file = json::parse(tokenizer_json, prefix + "tokenizer.json");
  json::Value config;
  if (!tokenizer_config_json.empty())
    config = json::parse(tokenizer_config_json, prefix + "tokenizer_config.json");
  Tokenizer out = TokenizerReader(where).read(file, tokenizer_config_json.empty() ? nullptr : &config);
  Hasher hasher;
  hasher.update(tokenizer_json).update(tokenizer_config_json);
  out.fingerprint_ = hasher.hex();
  return out;
}

}  // namespace deltatune
