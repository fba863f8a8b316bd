// The chat schema: one row {"messages": [{"role", "content", ...}], "tools": [...]} in OpenAI's chat style,
// checked and brought into the one shape that chat templates get.
//
// After conversation_of(): every message is an object with `role` (system, user, assistant or tool) and a
// string `content`; members that were null are gone; text parts are joined without a separator; the arguments
// of tool calls are objects, in the order of the file; there is an assistant message; a system message is the
// first one; a tool message follows an assistant's or another tool's.
// Members of the row other than messages, tools and chat_template_kwargs are not looked at (datasets carry
// ids and sources); an unknown member of a message is an error, because ignoring it would lose text silently.
// Other schemas (from/value, prompt/completion) are converted by data/schema.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/rows.h"

namespace deltatune {

struct Conversation {
  json::Value messages;               ///< array of objects, see above
  json::Value tools;                  ///< array of objects, or null
  json::Value template_options;       ///< object (the row's chat_template_kwargs), or null
  std::string file;                   ///< where it came from
  int64_t line = 0;                   ///< 1-based line, or element number in a JSON array
  int first_trained_message = 0;      ///< turns of earlier messages are context (prompt of a completion)
  int64_t empty_assistant_turns = 0;  ///< assistant messages without text, reasoning and tool calls
};

/// Checks and normalises one row. `messages_field`: the member that holds the messages. Throws RowError.
Conversation conversation_of(const json::Value& row, std::string_view messages_field = "messages");

}  // namespace deltatune
