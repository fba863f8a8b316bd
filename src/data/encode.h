// Conversations to tokens with the tokenizer and chat template of a checkpoint: the one place where data/
// meets text/.
#pragma once

#include "data/dataset.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace deltatune {

/// One conversation rendered with its tools; the row's chat_template_kwargs go before options.variables.
/// Throws Error{data} when the template refuses it.
RenderedChat render_conversation(const Conversation& conversation, const ChatTemplate& chat_template,
                                 const RenderOptions& options);

/// Render and tokenise. Both objects must outlive the result. control_tokens_in_content: let control tokens
/// that were typed inside a message become control tokens (what other programs do); otherwise they stay text.
EncodeConversation make_encoder(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                RenderOptions options, bool control_tokens_in_content = false);

}  // namespace deltatune
