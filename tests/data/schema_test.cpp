// data/schema: what each schema becomes, which one is taken, and every row that is refused.
#include "data/schema.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/log.h"
#include "data/dataset.h"
#include "data/encode.h"

namespace deltatune {
namespace {

SchemaOptions auto_schema() {
  return {};
}

SchemaOptions only(Schema schema, std::string field = {}) {
  return {schema, std::move(field)};
}

Conversation read(const std::string& row, const SchemaOptions& options = {}, SchemaNote* note = nullptr) {
  return read_conversation(json::parse(row, "test"), options, note);
}

std::string messages(const std::string& row, const SchemaOptions& options = {}) {
  return json::dump(read(row, options).messages);
}

Schema taken(const std::string& row, const SchemaOptions& options = {}) {
  SchemaNote note;
  read(row, options, &note);
  return note.schema;
}

/// The same conversation as {"messages": ...} is the reference: conversation_of() alone.
std::string reference(const std::string& list) {
  return json::dump(conversation_of(json::parse("{\"messages\": " + list + "}", "test")).messages);
}

struct Refused {
  const char* row;
  RowProblem problem;
  std::vector<const char*> parts;  // of what, where and fix
};

void expect_refused(const std::vector<Refused>& cases, const SchemaOptions& options) {
  for (const Refused& c : cases) {
    std::optional<RowError> error;
    try {
      read(c.row, options);
    } catch (const RowError& e) {
      error = e;
    }
    ASSERT_TRUE(error) << "accepted: " << c.row;
    EXPECT_EQ(name_of(error->problem()), std::string(name_of(c.problem))) << c.row << "\n" << error->text();
    for (const char* part : c.parts) {
      EXPECT_NE(error->text().find(part), std::string::npos) << c.row << "\n" << error->text();
    }
    EXPECT_FALSE(error->fix().empty()) << c.row;
  }
}

TEST(Schema, ShareGptRolesAreMapped) {
  EXPECT_EQ(messages(R"({"conversations": [
      {"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
      {"from": "tool", "value": "t"}, {"from": "function", "value": "f"}, {"from": "observation", "value": "o"},
      {"from": "assistant", "value": "c"}, {"from": "user", "value": "d"}]})"),
            reference(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "tool", "content": "t"}, {"role": "tool", "content": "f"},
      {"role": "tool", "content": "o"}, {"role": "assistant", "content": "c"},
      {"role": "user", "content": "d"}])"));
}

TEST(Schema, ShareGptSystemTextComesFirstUnlessEmpty) {
  const std::string turns =
      R"("conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})";
  const std::string plain = R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  EXPECT_EQ(messages(R"({"system": "s", )" + turns),
            reference(R"([{"role": "system", "content": "s"}, )" + plain));
  EXPECT_EQ(messages(R"({"system": "", )" + turns), reference("[" + plain));
  EXPECT_EQ(messages(R"({"system": null, )" + turns), reference("[" + plain));
}

TEST(Schema, ShareGptUnionNullsAreAbsent) {
  EXPECT_EQ(messages(R"({"messages": null, "instruction": null, "conversations": [
      {"from": "human", "value": "a", "role": null, "content": null, "weight": null, "tool_calls": null},
      {"from": "gpt", "value": null, "role": null, "content": "b", "weight": null, "tool_calls": null}]})"),
            reference(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])"));
}

TEST(Schema, ShareGptCallsAsObjectsOrText) {
  const std::string one = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "",
      "tool_calls": [{"name": "f", "arguments": {"b": 1.0, "a": null}}]}, {"role": "tool", "content": "r"}])";
  const std::string head = R"({"conversations": [{"from": "human", "value": "a"}, )";
  const std::string tail = R"(, {"from": "observation", "value": "r"}]})";
  for (
      const char* turn : {
          R"({"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"b\": 1.0, \"a\": null}}"})",
          R"({"from": "function_call", "value": "[{\"name\": \"f\", \"arguments\": \"{\\\"b\\\": 1.0, \\\"a\\\": null}\"}]"})",
          R"({"from": "function_call", "value": {"name": "f", "arguments": {"b": 1.0, "a": null}}})",
          R"({"from": "gpt", "value": null, "tool_calls": [{"name": "f", "arguments": {"b": 1.0, "a": null}}]})",
          R"({"from": "gpt", "value": "", "tool_calls": [{"name": "f", "arguments": "{\"b\": 1.0, \"a\": null}"}]})",
      }) {
    EXPECT_EQ(messages(head + turn + tail), reference(one)) << turn;
  }
}

TEST(Schema, ShareGptRefuses) {
  const char* roles = "human, user, gpt, assistant, function_call, system, tool, function, observation";
  expect_refused(
      {
          {R"({"conversations": [{"from": "narrator", "value": "a"}]})",
           RowProblem::role,
           {"narrator", "turn 0", roles}},
          {R"({"conversations": [{"from": "human", "value": "a"}, {"from": "GPT", "value": "a"}]})",
           RowProblem::role,
           {"\"GPT\"", "turn 1", roles}},
          {R"({"conversations": [{"from": "human", "value": "a"}, {"value": "b"}]})",
           RowProblem::role,
           {"no \"from\"", "turn 1", roles}},
          {R"({"conversations": [{"from": 1, "value": "a"}]})", RowProblem::role, {"not a text", roles}},
          {R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "role": "user"}]})",
           RowProblem::unknown_key,
           {"both", "turn 1"}},
          {R"({"conversations": [{"from": "gpt", "value": "a", "content": "b"}]})",
           RowProblem::unknown_key,
           {"\"value\" and \"content\"", "turn 0"}},
          {R"({"conversations": [{"from": "gpt", "value": "a", "weight": 0}]})",
           RowProblem::unknown_key,
           {"weight"}},
          {R"({"conversations": [{"from": "human", "value": "a"}]})",
           RowProblem::no_assistant,
           {"nothing to learn"}},
          {R"({"conversations": [{"from": "human", "value": "a"}, {"from": "system", "value": "s"},
               {"from": "gpt", "value": "b"}]})",
           RowProblem::role,
           {"not the first", "message 1"}},
          {R"({"system": "s", "conversations": [{"from": "system", "value": "s"}, {"from": "gpt", "value": "b"}]})",
           RowProblem::role,
           {"system text and a system turn"}},
          {R"({"system": 3, "conversations": [{"from": "gpt", "value": "b"}]})",
           RowProblem::content,
           {"system"}},
          {R"({"conversations": [{"from": "tool", "value": "a"}, {"from": "gpt", "value": "b"}]})",
           RowProblem::role,
           {"answers no assistant"}},
          {R"({"conversations": [{"from": "gpt", "value": 7}]})", RowProblem::content, {"integer"}},
          {R"({"conversations": [{"from": "gpt", "value": "a"}, "b"]})",
           RowProblem::messages,
           {"turn 1", "string"}},
          {R"({"conversations": [{"from": "function_call", "value": "call f"}]})",
           RowProblem::tool_call,
           {"call f", "turn 0"}},
          {R"({"conversations": [{"from": "function_call", "value": "[]"}]})",
           RowProblem::tool_call,
           {"array"}},
          {R"({"conversations": [{"from": "function_call"}]})", RowProblem::tool_call, {"null"}},
      },
      auto_schema());
  expect_refused(
      {
          {R"({"conversations": []})", RowProblem::messages, {"conversations"}},
          {R"({"conversations": "x"})", RowProblem::messages, {"string", "conversations"}},
          {R"({"conversations": [{"role": "user", "content": "x"}]})", RowProblem::role, {"no \"from\""}},
          {R"({"instruction": "a", "output": "b"})", RowProblem::unknown_schema, {"sharegpt", "instruction"}},
      },
      only(Schema::sharegpt));
}

TEST(Schema, AlpacaJoinsInstructionAndInput) {
  const auto expected = [](const std::string& question) {
    return reference(R"([{"role": "user", "content": ")" + question +
                     R"("}, {"role": "assistant", "content": "o"}])");
  };
  EXPECT_EQ(messages(R"({"instruction": "a", "input": "b", "output": "o"})"), expected("a\\nb"));
  EXPECT_EQ(messages(R"({"instruction": "a", "input": "", "output": "o"})"), expected("a"));
  EXPECT_EQ(messages(R"({"instruction": "a", "input": null, "output": "o", "system": null})"), expected("a"));
  EXPECT_EQ(messages(R"({"instruction": "a", "output": "o", "system": ""})"), expected("a"));
  EXPECT_EQ(messages(R"({"instruction": "", "input": "b", "output": "o"})"), expected("b"));
  EXPECT_EQ(messages(R"({"output": "o", "system": "s", "instruction": "a"})"),
            reference(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                          {"role": "assistant", "content": "o"}])"));
  EXPECT_EQ(read(R"({"instruction": "a", "output": ""})").empty_assistant_turns, 1);
}

TEST(Schema, AlpacaHistoryGoesBetweenSystemAndInstruction) {
  EXPECT_EQ(
      messages(R"({"instruction": "a", "output": "o", "system": "s", "history": [["q", "r"], ["t", ""]]})"),
      reference(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
      {"role": "assistant", "content": "r"}, {"role": "user", "content": "t"}, {"role": "assistant", "content": ""},
      {"role": "user", "content": "a"}, {"role": "assistant", "content": "o"}])"));
  for (const char* none : {"[]", "null"}) {
    EXPECT_EQ(read(std::string(R"({"instruction": "a", "output": "o", "history": )") + none + "}")
                  .messages.as_array()
                  .size(),
              2u);
  }
}

TEST(Schema, AlpacaRefuses) {
  expect_refused(
      {
          {R"({"instruction": "a", "input": "b"})", RowProblem::no_assistant, {"no output"}},
          {R"({"instruction": "a", "output": null})", RowProblem::no_assistant, {"no output"}},
          {R"({"instruction": "a", "output": ["b"]})", RowProblem::content, {"output", "array"}},
          {R"({"instruction": "a", "input": 1, "output": "b"})", RowProblem::content, {"input", "integer"}},
          {R"({"instruction": "a", "output": "b", "history": "c"})", RowProblem::messages, {"history"}},
          {R"({"instruction": "a", "output": "b", "history": [["c"]]})", RowProblem::messages, {"history"}},
          {R"({"instruction": "a", "output": "b", "history": [["c", null]]})",
           RowProblem::messages,
           {"history"}},
          {R"({"instruction": {}, "output": "b"})", RowProblem::content, {"instruction", "object"}},
      },
      auto_schema());
  expect_refused(
      {
          {R"({"output": "b"})", RowProblem::unknown_schema, {"no instruction"}},
          {R"({"messages": [{"role": "assistant", "content": "a"}]})",
           RowProblem::unknown_schema,
           {"alpaca", "messages"}},
      },
      only(Schema::alpaca));
}

TEST(Schema, PromptAndCompletionAsTextsOrLists) {
  const std::string both =
      reference(R"([{"role": "user", "content": "p"}, {"role": "assistant", "content": "c"}])");
  const std::string prompt_list = R"([{"role": "user", "content": "p"}])";
  const std::string completion_list = R"([{"role": "assistant", "content": "c"}])";
  for (const std::string& prompt : {std::string("\"p\""), prompt_list}) {
    for (const std::string& completion : {std::string("\"c\""), completion_list}) {
      const Conversation c = read(R"({"prompt": )" + prompt + R"(, "completion": )" + completion + "}");
      EXPECT_EQ(json::dump(c.messages), both);
      EXPECT_EQ(c.first_trained_message, 0);  // the prompt has no turn that could be trained
    }
  }
  EXPECT_EQ(messages(R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "p"}],
      "completion": [{"role": "assistant", "content": null, "tool_calls": [{"name": "f", "arguments": "{\"a\": 1}"}]},
      {"role": "tool", "content": "t"}, {"role": "assistant", "content": "c"}]})"),
            reference(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "p"},
      {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
      {"role": "tool", "content": "t"}, {"role": "assistant", "content": "c"}])"));
}

TEST(Schema, PromptAndCompletionRefuses) {
  expect_refused(
      {
          {R"({"prompt": "p"})", RowProblem::no_assistant, {"no completion"}},
          {R"({"prompt": "p", "completion": null})", RowProblem::no_assistant, {"no completion"}},
          {R"({"prompt": [], "completion": "c"})", RowProblem::messages, {"prompt", "empty list"}},
          {R"({"prompt": "p", "completion": []})", RowProblem::no_assistant, {"completion", "empty list"}},
          {R"({"prompt": 3, "completion": "c"})", RowProblem::content, {"prompt", "integer"}},
          {R"({"prompt": "p", "completion": {"role": "assistant"}})", RowProblem::content, {"completion"}},
          {R"({"prompt": "p", "completion": [{"role": "user", "content": "c"}]})",
           RowProblem::no_assistant,
           {"completion has no assistant"}},
          {R"({"prompt": [{"role": "assistant", "content": "p"}], "completion": [{"role": "user"}]})",
           RowProblem::no_assistant,
           {"completion has no assistant"}},
          {R"({"prompt": ["p"], "completion": "c"})", RowProblem::messages, {"message 0"}},
          {R"({"prompt": "p", "completion": [{"role": "system", "content": "s"}, {"role": "assistant"}]})",
           RowProblem::role,
           {"not the first"}},
      },
      auto_schema());
  expect_refused(
      {{R"({"completion": "c"})", RowProblem::unknown_schema, {"no prompt"}},
       {R"({"messages": null, "id": 1})", RowProblem::unknown_schema, {"\"messages\" is null", "id"}},
       {R"({"text": "c"})", RowProblem::unknown_schema, {"prompt_completion", "text"}}},
      only(Schema::prompt_completion));
}

TEST(Schema, DetectionFollowsTheOrder) {
  const std::string m = R"("messages": [{"role": "assistant", "content": "m"}])";
  const std::string c = R"("conversations": [{"from": "gpt", "value": "c"}])";
  const std::string a = R"("instruction": "i", "output": "o")";
  const std::string p = R"("prompt": "p", "completion": "c")";
  EXPECT_EQ(taken("{" + p + "," + a + "," + c + "," + m + "}"), Schema::messages);
  EXPECT_EQ(taken("{" + p + "," + a + "," + c + "}"), Schema::sharegpt);
  EXPECT_EQ(taken("{" + p + "," + a + "}"), Schema::alpaca);
  EXPECT_EQ(taken("{" + p + "}"), Schema::prompt_completion);
  // A null is no member, and a whole schema goes before the start of an earlier one.
  EXPECT_EQ(taken(R"({"messages": null, "conversations": null, )" + a + "}"), Schema::alpaca);
  EXPECT_EQ(taken(R"({"instruction": "i", )" + p + "}"), Schema::prompt_completion);
  EXPECT_EQ(taken(R"({"prompt": "p", )" + a + "}"), Schema::alpaca);
  // The schema and the field that were asked for win over all of it.
  const std::string everything = "{" + m + "," + c + "," + a + "," + p + "}";
  for (const Schema schema :
       {Schema::messages, Schema::sharegpt, Schema::alpaca, Schema::prompt_completion}) {
    EXPECT_EQ(taken(everything, only(schema)), schema) << name_of(schema);
    EXPECT_EQ(schema_options(name_of(schema), "").schema, schema);
  }
  EXPECT_EQ(messages(everything, {{}, "conversations"}),
            reference(R"([{"role": "assistant", "content": "c"}])"));
}

TEST(Schema, EitherFieldHoldsEitherKindOfTurn) {
  const std::string expected =
      reference(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])");
  const std::string openai = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  const std::string from = R"([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})";
  for (const char* field : {"messages", "conversations", "chat"}) {
    const std::string head = std::string("{\"") + field + "\": ";
    const SchemaOptions options{{}, std::string(field) == "chat" ? "chat" : ""};
    EXPECT_EQ(messages(head + openai, options), expected);
    EXPECT_EQ(taken(head + openai, options), Schema::messages);
    EXPECT_EQ(messages(head + from, options), expected);
    EXPECT_EQ(taken(head + from, options), Schema::sharegpt);
  }
  expect_refused(
      {{R"({"conversations": [{"from": "gpt", "value": "b"}]})", RowProblem::unknown_key, {"from"}}},
      only(Schema::messages));
  // With a field of one's own nothing else is tried.
  expect_refused({{R"({"messages": [{"role": "assistant", "content": "m"}]})",
                   RowProblem::unknown_schema,
                   {"\"chat\"", "messages"}},
                  {R"({"instruction": "i", "output": "o"})", RowProblem::unknown_schema, {"\"chat\""}}},
                 {{}, "chat"});
}

TEST(Schema, UnknownRowsNameTheirMembers) {
  expect_refused(
      {{R"({})", RowProblem::unknown_schema, {"an empty object"}},
       {R"({"text": "a", "id": 1})", RowProblem::unknown_schema, {"\"text\", \"id\"", "conversations"}},
       {R"({"messages": null, "output": "o"})", RowProblem::unknown_schema, {"output"}},
       {R"({"messages": []})", RowProblem::messages, {"no messages"}},
       {R"({"conversations": []})", RowProblem::messages, {"no messages"}}},
      auto_schema());
}

TEST(Schema, NoteNamesWhatIsReadAndWhatIsNot) {
  SchemaNote note;
  const Conversation c = read(R"({"id": 3, "instruction": "a", "input": null, "output": "b", "source": "x",
      "gone": null, "tools": "[{\"name\": \"f\"}]", "chat_template_kwargs": {"k": 1}})",
                              {}, &note);
  EXPECT_EQ(note.members, "instruction, output");
  EXPECT_EQ(note.not_read, (std::vector<std::string>{"id", "source"}));
  EXPECT_EQ(json::dump(c.tools), R"([{"name": "f"}])");
  EXPECT_EQ(c.template_options.at("k").as_integer(), 1);
}

TEST(Schema, OptionsThatContradictEachOther) {
  EXPECT_FALSE(schema_options("auto", "x").schema);
  EXPECT_EQ(schema_options("sharegpt", "x").messages_field, "x");
  EXPECT_THROW(schema_options("vicuna", ""), Error);
  EXPECT_THROW(schema_options("alpaca", "x"), Error);
  EXPECT_THROW(schema_options("prompt_completion", "x"), Error);
}

size_t count(const std::string& text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Schema, ADatasetSaysItOnceForEachFile) {
  DatasetOptions options;
  options.vocab_size = 1000;
  TokenizedSetBuilder builder(options, [](const Conversation& conversation) {
    const auto n = static_cast<int>(conversation.messages.as_array().size());
    return MarkedTokens{std::vector<int32_t>(static_cast<size_t>(n), n),
                        std::vector<uint8_t>(static_cast<size_t>(n), 1)};
  });
  const std::string alpaca = R"({"instruction": "a", "output": "b", "id": 1})"
                             "\n";
  const std::string pair = R"({"prompt": "a", "completion": "b", "id": 1, "source": "s"})"
                           "\n";
  const log::Level level = log::level();
  log::set_level(log::Level::info);
  testing::internal::CaptureStderr();
  builder.add_lines(alpaca + alpaca + pair + alpaca, "one.jsonl");
  builder.add_lines(alpaca + alpaca, "two.jsonl");
  const std::string said = testing::internal::GetCapturedStderr();
  log::set_level(level);
  EXPECT_EQ(builder.finish().size(), 6);
  EXPECT_EQ(count(said, "one.jsonl: rows are read as alpaca (instruction, output)"), 1u) << said;
  EXPECT_EQ(count(said, "one.jsonl: rows are read as prompt_completion (prompt, completion)"), 1u) << said;
  EXPECT_EQ(count(said, "two.jsonl: rows are read as alpaca"), 1u) << said;
  EXPECT_EQ(count(said, "not read: \"id\"\n"), 1u) << said;
  EXPECT_EQ(count(said, "not read: \"source\"\n"), 1u) << said;
}

TEST(Schema, MembersThatAreDataAreNotNamedForEver) {
  SchemaNotices notices;
  const log::Level level = log::level();
  log::set_level(log::Level::info);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 300; ++i) notices.see("f", {Schema::messages, "messages", {"key" + std::to_string(i)}});
  const std::string said = testing::internal::GetCapturedStderr();
  log::set_level(level);
  EXPECT_EQ(count(said, "not read: \"key"), 100u);
  EXPECT_EQ(count(said, "not read: and others\n"), 1u);
}

/// The texts of the spans, rendered with each of the two ways to find assistant turns.
std::vector<std::string> trained(const Conversation& conversation, const char* source, const char* train_on) {
  const ChatTemplate chat_template = ChatTemplate::compile(source, "test");
  RenderOptions options;
  options.variables = json::Value(json::Object{});
  options.train_on = train_on;
  const RenderedChat chat = render_conversation(conversation, chat_template, options);
  std::vector<std::string> out;
  for (const RenderedChat::Span& span : chat.spans)
    out.push_back(chat.marked.text.substr(span.begin, span.end - span.begin));
  return out;
}

TEST(Schema, OnlyTheCompletionIsTrained) {
  const char* marks =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}";
  const char* blocks =
      "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content "
      "}}[end]"
      "{% endgeneration %}{% else %}{{ m.content }}[end]{% endif %}{% endfor %}";
  const std::string prompt = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
      {"role": "user", "content": "c"}])";
  const std::string completion = R"([{"role": "assistant", "content": "d"}, {"role": "user", "content": "e"},
      {"role": "assistant", "content": "f"}])";
  const Conversation long_one = read(R"({"prompt": )" + prompt + R"(, "completion": )" + completion + "}");
  const Conversation text = read(R"({"prompt": "a", "completion": "b"})");
  using Texts = std::vector<std::string>;
  for (const char* source : {marks, blocks}) {
    EXPECT_EQ(trained(long_one, source, "assistant"), (Texts{"d[end]", "f[end]"}));
    EXPECT_EQ(trained(long_one, source, "last"), Texts{"f[end]"});
    EXPECT_EQ(trained(long_one, source, "all").size(), 1u);
    EXPECT_EQ(trained(text, source, "assistant"), Texts{"b[end]"});
  }
  // Blocks outside a loop over messages belong to no message.
  EXPECT_THROW(trained(long_one, "{% generation %}{{ messages[1].content }}{% endgeneration %}", "assistant"),
               Error);
}

}  // namespace
}  // namespace deltatune
