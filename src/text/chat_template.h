// Conversation -> text with loss spans, by the chat template of a checkpoint.
//
// A conversation is rendered once; loss spans are found in that one render, never by comparing renders of
// prefixes (templates such as Qwen3.5's write earlier turns differently from the last one). Spans come from
// {% generation %} blocks where the template has them. Otherwise the header and the end mark of an assistant
// turn are learnt from renders of made-up conversations, and searched in text that the template itself wrote:
// what a message contains never counts. A template for which neither works is refused.
//
// Generation blocks are spans as they are; one that stops right before the end mark ("<|im_end|>") is
// extended by it. Learnt spans end with the end mark, without the white space after it. Where a span starts
// is the choice of RenderOptions::think_prefix.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/jinja.h"
#include "text/marked_text.h"

namespace deltatune {

/// Variables that are set for every conversation, so that neither rows nor options may set them: messages,
/// tools, documents, add_generation_prompt.
bool is_reserved_variable(std::string_view name);

struct RenderOptions {
  bool add_generation_prompt = false;
  /// Object (or null): enable_thinking, preserve_thinking, reasoning_effort, bos_token ... Strings in
  /// variables whose name ends in "_token" count as written by the template, all others as content.
  json::Value variables;
  /// "assistant": every assistant turn; "last": the last one only; "all": every byte, headers included.
  std::string train_on = "assistant";
  /// Where the span of a turn starts. "generated": at the first character that the model has to produce after
  /// the generation prompt, so behind the header, and behind the rest of the prompt ("<think>\n", or the
  /// empty block with thinking off) where the turn literally starts with it; "all": behind the header;
  /// "skip_empty": as "generated", but behind the whole of a think block without thoughts. Of generation
  /// blocks only "skip_empty" takes something away.
  std::string think_prefix = "generated";
  /// Spans of messages before this one are left out, except with "all".
  int first_trained_message = 0;
  /// Messages go to the template as they are, as in transformers: what render() does to them first is left
  /// out.
  bool as_given = false;
};

struct RenderedChat {
  /// The text; mark_supervised is set inside the spans.
  MarkedText marked;
  /// Supervised bytes [begin, end) of marked.text, and the index of their message (-1: train_on is "all", or
  /// the template does not loop over messages).
  struct Span {
    size_t begin = 0;
    size_t end = 0;
    int message = -1;
  };
  std::vector<Span> spans;
  /// All assistant turns that spans were cut from, in byte offsets into marked.text. None with train_on "all"
  /// and for templates with generation blocks.
  struct Turn {
    int message = -1;
    size_t header_end = 0;      ///< behind "<|im_start|>assistant\n"
    size_t prompt_end = 0;      ///< behind what the generation prompt would give; header_end or later
    size_t gen_prompt_end = 0;  ///< behind "<think>\n", or the whole block when it is empty
    size_t answer_start = 0;    ///< behind the think block
    size_t im_end_end = 0;      ///< behind the end mark
    size_t turn_end = 0;        ///< behind the white space after it
  };
  std::vector<Turn> turns;
};

class ChatTemplate {
 public:
  /// Throws Error{data}: syntax errors and unsupported statements of the template; `where` names it.
  static ChatTemplate compile(std::string source, std::string_view where);
  /// Template of a checkpoint folder: chat_template.jinja, else "chat_template" of tokenizer_config.json (a
  /// string, or a list of {name, template} with one named "default"). Another `name` is looked for in that
  /// list and as additional_chat_templates/NAME.jinja. The *_token entries of tokenizer_config.json become
  /// variables. Throws Error{data}: no template, none of this name (those that are there are named),
  /// unreadable files.
  static ChatTemplate load(const fs::path& folder, const std::string& name = "default");

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// `messages`: array of {role, content, reasoning_content, tool_calls ...}; `tools`: array or null. Before
  /// rendering (but see RenderOptions::as_given), members that are null are dropped, `thinking` and
  /// `reasoning` become `reasoning_content`, and tool-call arguments that are JSON text are parsed. Throws
  /// Error{data}: the template's raise_exception with its text, malformed messages, assistant turns that
  /// cannot be found, first_trained_message with a template that does not loop over messages; Error{usage}:
  /// unknown train_on or think_prefix, reserved variable. Several threads may render at once.
  RenderedChat render(const json::Value& messages, const json::Value* tools,
                      const RenderOptions& options) const;

  /// Throws what render() would throw for every conversation: no generation blocks, and turns not
  /// recognisable.
  void check(const RenderOptions& options) const;

  /// Where the template came from: a file, for messages.
  const std::string& where() const { return template_.where(); }
  /// Every name that the template reads, sorted; its own variables are among them.
  std::vector<std::string> names_read() const { return template_.names_read(); }
  /// Hash of the template and its token variables.
  const std::string& fingerprint() const { return fingerprint_; }
  /// The source names strftime_now: what it renders may change from day to day.
  bool names_time() const { return names_time_; }

 private:
  struct Shape;
  struct Cache;
  ChatTemplate(jinja::Template parsed, std::string source, std::vector<jinja::Variable> tokens);
  jinja::Rendered run(const json::Value& messages, const json::Value* tools,
                      const RenderOptions& options) const;
  Shape learn_shape(const RenderOptions& options) const;
  const Shape& shape(const RenderOptions& options) const;
  std::vector<RenderedChat::Turn> find_turns(const jinja::Rendered& rendered, const json::Value& messages,
                                             const RenderOptions& options) const;
  std::vector<RenderedChat::Span> block_spans(const jinja::Rendered& rendered,
                                              const RenderOptions& options) const;
  const std::string& end_mark(const RenderOptions& options) const;

  jinja::Template template_;
  std::vector<jinja::Variable> tokens_;
  std::string fingerprint_;
  bool names_time_ = false;
  std::unique_ptr<Cache> cache_;
};

}  // namespace deltatune
