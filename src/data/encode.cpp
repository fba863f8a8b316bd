// Binds ChatTemplate and Tokenizer to the data plane's callback.
#include "data/encode.h"

#include <utility>

namespace deltatune {

RenderedChat render_conversation(const Conversation& conversation, const ChatTemplate& chat_template,
                                 const RenderOptions& options) {
  const json::Value* tools = conversation.tools.is_null() ? nullptr : &conversation.tools;
  if (conversation.template_options.is_null() && conversation.first_trained_message == 0) {
    return chat_template.render(conversation.messages, tools, options);
  }
  RenderOptions of_row = options;
  of_row.first_trained_message = conversation.first_trained_message;
  if (conversation.template_options.is_null()) {
    return chat_template.render(conversation.messages, tools, of_row);
  }
  for (const auto& [key, value] : conversation.template_options.as_object()) of_row.variables.set(key, value);
  return chat_template.render(conversation.messages, tools, of_row);
}

EncodeConversation make_encoder(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                RenderOptions options, bool control_tokens_in_content) {
  return [&tokenizer, &chat_template, options = std::move(options),
          control_tokens_in_content](const Conversation& conversation) {
    const RenderedChat chat = render_conversation(conversation, chat_template, options);
    return tokenizer.encode(chat.marked, control_tokens_in_content);
  };
}

}  // namespace deltatune
