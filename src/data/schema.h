// Dataset schemas: what a row looks like, found from its members, and brought into the messages shape that
// data/conversation.h checks.
//
//   messages           {"messages": [{"role", "content", ...}, ...]}
//   sharegpt           {"conversations": [{"from", "value"}, ...]}, with an optional "system" text
//   alpaca             {"instruction", "input" (optional), "output"}, with "system" and "history" (optional)
//   prompt_completion  {"prompt", "completion"}: each a text or a list of messages
//
// A member that is null counts as absent (columnar files fill unions with nulls). With no schema given, the
// first of the list above whose members are all there is taken, then the first whose leading member is there
// (so that a missing answer is named). Messages and conversations may hold the turns of either of the first
// two: `from` in a turn makes it sharegpt. `tools` and `chat_template_kwargs` belong to every schema.
// Of prompt_completion only the completion is trained, also where the prompt holds assistant turns.
// Rows that are tokenised already are not looked at here (data/tokenized_row.h).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "data/conversation.h"

namespace deltatune {

/// In the order of detection.
enum class Schema { messages, sharegpt, alpaca, prompt_completion };

/// "messages", "sharegpt", "alpaca", "prompt_completion".
const char* name_of(Schema schema);

struct SchemaOptions {
  std::optional<Schema> schema;  ///< nullopt: from the members of each row
  std::string messages_field;    ///< member that holds the turns; empty: messages, then conversations
};

/// The value of `dataset_schema` ("auto" or a name) and `messages_field`. Throws Error{usage} for another
/// name, and for a field with a schema that has no list of turns.
SchemaOptions schema_options(std::string_view dataset_schema, std::string messages_field);

/// How one row was read.
struct SchemaNote {
  Schema schema = Schema::messages;
  std::string members;                ///< those that held the conversation: "instruction, output"
  std::vector<std::string> not_read;  ///< members that are not null and were not looked at, in file order
};

/// Detects, converts and checks one row that is not tokenised. Throws RowError: unknown_schema (no schema
/// fits; its members are named), role (the roles that are known are named), or what conversation_of() finds.
Conversation read_conversation(const json::Value& row, const SchemaOptions& options,
                               SchemaNote* note = nullptr);

/// Says at info level which schema was taken, once for each file and schema, and names each member that is
/// not read once (the first hundred). For one thread.
class SchemaNotices {
 public:
  void see(const std::string& file, const SchemaNote& note);
  /// What was said.
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  void say(std::string line);
  std::vector<std::string> lines_;
  std::set<std::pair<std::string, Schema>> said_;
  std::set<std::string, std::less<>> named_;
};

}  // namespace deltatune
