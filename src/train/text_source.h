// From a Config to what turns dataset rows into tokens: tokenizer, chat template, their options.
#pragma once

#include <memory>

#include "data/encode.h"
#include "train/config.h"

namespace deltatune {

/// Tokenizer and chat template of a configuration. Both are null where the tokenizer's folder has no
/// tokenizer.json and tokenizer_name_or_path does not ask for one: such a run takes rows that are tokenised
/// already.
struct TextSource {
  fs::path folder;  ///< where the tokenizer is, or would be
  std::unique_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<const ChatTemplate> chat_template;
  RenderOptions options;
  bool control_tokens_in_content = false;

  /// For load_dataset(); empty without a tokenizer. This object must outlive it.
  EncodeConversation encoder() const;
  /// Hash of all that decides what encoder() makes of a conversation: the bytes of the tokenizer's files and
  /// of the template, its variables, what is trained. "" without a tokenizer. Templates that ask for the time
  /// render differently all the same.
  std::string fingerprint() const;
  /// The tokenizer's padding token, else its end of sequence, else 0.
  int32_t pad_id() const;
};

/// The chat template alone (chat_template: from_model, a folder, a Jinja file, or the name of another one of
/// the checkpoint). Throws Error{data}.
ChatTemplate open_template(const Config& config);

/// Warns of variables in chat_template_kwargs and --set that the template never reads, with the nearest name
/// that it does read. No error: a configuration may serve several models, and a variable may be meant for
/// one.
void warn_unread_variables(const ChatTemplate& chat_template, const Config& config);

/// The tokenizer alone. Throws Error{data}, and Error{usage} where the configuration names none.
Tokenizer open_tokenizer(const Config& config);

/// Template variables of chat_template_kwargs, then `set` (name=value, the value JSON where it parses), the
/// *_token entries of tokenizer_config.json for a template from a file, train_on and
/// think_prefix. Throws Error{usage}.
RenderOptions render_options(const Config& config);

/// Throws Error{data} for unreadable files and for a template whose assistant turns cannot be found.
/// `required`: missing files are an error too.
TextSource open_text(const Config& config, bool required = false);

/// Ids of tokenised rows lie in [0, vocab_size): the model's config.json, else the tokenizer, else any.
int64_t vocab_size_of(const Config& config, const TextSource& text);

}  // namespace deltatune
