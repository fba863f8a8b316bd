// data/conversation, data/tokenized_row: every kind of row that is refused, and what normalisation does.
#include "data/conversation.h"

#include <gtest/gtest.h>

#include <optional>

#include "data/tokenized_row.h"

namespace deltatune {
namespace {

struct Refused {
  const char* row;
  RowProblem problem;
  const char* part;  // of what, where or fix
};

template <class Read>
void expect_refused(const std::vector<Refused>& cases, Read read) {
  for (const Refused& c : cases) {
    std::optional<RowError> error;
    try {
      read(json::parse(c.row, "test"));
    } catch (const RowError& e) {
      error = e;
    }
    ASSERT_TRUE(error) << "accepted: " << c.row;
    EXPECT_EQ(name_of(error->problem()), std::string(name_of(c.problem))) << c.row << "\n" << error->text();
    EXPECT_NE(error->text().find(c.part), std::string::npos) << c.row << "\n" << error->text();
    EXPECT_FALSE(error->fix().empty()) << c.row;
  }
}

std::string normalised(const std::string& messages) {
  return json::dump(conversation_of(json::parse("{\"messages\": " + messages + "}", "test")).messages);
}

TEST(Conversation, RefusesAndSaysWhatToDo) {
  const auto a = R"({"messages": [{"role": "assistant", "content": "a"}]})";
  EXPECT_NO_THROW(conversation_of(json::parse(a, "test")));
  expect_refused(
      {
          {R"({})", RowProblem::unknown_schema, "an empty object"},
          {R"({"conversations": [{"from": "human", "value": "x"}]})", RowProblem::unknown_schema,
           "conversations"},
          {R"({"messages": null})", RowProblem::unknown_schema, "messages"},
          {R"({"messages": "hello"})", RowProblem::messages, "not a list"},
          {R"({"messages": []})", RowProblem::messages, "no messages"},
          {R"({"messages": [1]})", RowProblem::messages, "message 0"},
          {R"({"messages": [{"content": "x"}]})", RowProblem::role, "no role"},
          {R"({"messages": [{"role": 1, "content": "x"}]})", RowProblem::role, "no role"},
          {R"({"messages": [{"from": "human", "value": "x"}]})", RowProblem::unknown_key, "\"role\""},
          {R"({"messages": [{"role": "developer", "content": "x"}]})", RowProblem::role, "use \"system\""},
          {R"({"messages": [{"role": "human", "content": "x"}]})", RowProblem::role, "use \"user\""},
          {R"({"messages": [{"role": "Assistant", "content": "x"}]})", RowProblem::role, "use \"assistant\""},
          {R"({"messages": [{"role": "zzz", "content": "x"}]})", RowProblem::role, "user, assistant or tool"},
          {R"({"messages": [{"role": "user", "content": 5}]})", RowProblem::content, "integer"},
          {R"({"messages": [{"role": "user", "content": {"text": "x"}}]})", RowProblem::content, "object"},
          {R"({"messages": [{"role": "user", "content": ["x"]}]})", RowProblem::content, "part"},
          {R"({"messages": [{"role": "user", "content": [{"type": "refusal"}]}]})", RowProblem::content,
           "part"},
          {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": null}]}]})",
           RowProblem::content, "part"},
          {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})",
           RowProblem::image, "image_url"},
          {R"({"messages": [{"role": "user", "content": "x", "images": ["y"]}]})", RowProblem::image,
           "images"},
          {R"({"messages": [{"role": "assistant", "content": "x", "thinking": "y"}]})",
           RowProblem::unknown_key, "reasoning_content"},
          {R"({"messages": [{"role": "assistant", "content": "x", "reasoning_contnt": "y"}]})",
           RowProblem::unknown_key, "reasoning_content"},
          {R"({"messages": [{"role": "assistant", "content": "x", "weight": 0}]})", RowProblem::unknown_key,
           "weight"},
          {R"({"messages": [{"role": "assistant", "content": "x", "function_call": {}}]})",
           RowProblem::unknown_key, "tool_calls"},
          {R"({"messages": [{"role": "user", "content": "x", "reasoning_content": "y"}]})",
           RowProblem::content, "only assistant"},
          {R"({"messages": [{"role": "assistant", "content": "x", "reasoning_content": 1}]})",
           RowProblem::content, "string"},
          {R"({"messages": [{"role": "user", "content": "x"}]})", RowProblem::no_assistant,
           "nothing to learn"},
          {R"({"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]})",
           RowProblem::role, "message 1"},
          {R"({"messages": [{"role": "tool", "content": "x"}, {"role": "assistant", "content": "y"}]})",
           RowProblem::role, "answers no assistant"},
          {R"({"messages": [{"role": "user", "content": "x", "tool_calls": [{"name": "f"}]}]})",
           RowProblem::tool_call, "only assistant"},
          {R"({"messages": [{"role": "assistant", "tool_calls": {}}]})", RowProblem::tool_call, "list"},
          {R"({"messages": [{"role": "assistant", "tool_calls": [3]}]})", RowProblem::tool_call, "name"},
          {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]})",
           RowProblem::tool_call, "name"},
          {R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{x"}]}]})",
           RowProblem::tool_call, "not JSON"},
          {R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}]})",
           RowProblem::tool_call, "array"},
          {R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": 1}]}]})",
           RowProblem::tool_call, "integer"},
          {R"({"messages": [{"role": "assistant", "content": "a"}], "tools": {}})", RowProblem::tools,
           "list"},
          {R"({"messages": [{"role": "assistant", "content": "a"}], "tools": ["f"]})", RowProblem::tools,
           "tool"},
          {R"({"messages": [{"role": "assistant", "content": "a"}], "tools": "{"})", RowProblem::tools,
           "JSON"},
          {R"({"messages": [{"role": "assistant", "content": "a"}], "chat_template_kwargs": 1})",
           RowProblem::unknown_schema, "chat_template_kwargs"},
      },
      [](const json::Value& row) { conversation_of(row); });
}

TEST(Conversation, NullsAndPartsBecomeText) {
  EXPECT_EQ(normalised(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}],
                            "name": null, "tool_calls": null, "refusal": null},
                           {"role": "assistant", "content": null, "tool_calls": []}, {"role": "user"}])"),
            R"([{"role": "user", "content": "ab"}, {"role": "assistant", "content": ""}, )"
            R"({"role": "user", "content": ""}])");
}

TEST(Conversation, ToolArgumentsBecomeObjectsInTheirOrder) {
  EXPECT_EQ(normalised(R"([{"role": "assistant", "content": null, "tool_calls": [
              {"id": "1", "type": "function", "index": null,
               "function": {"name": "f", "arguments": "{\"b\": 1.0, \"a\": [null, 1e-7]}"}},
              {"name": "g", "arguments": null}, {"name": "h"}]},
              {"role": "tool", "content": "r", "tool_call_id": "1"}])"),
            R"([{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", )"
            R"("function": {"name": "f", "arguments": {"b": 1.0, "a": [null, 1e-7]}}}, )"
            R"({"name": "g", "arguments": {}}, {"name": "h", "arguments": {}}]}, )"
            R"({"role": "tool", "content": "r", "tool_call_id": "1"}])");
}

TEST(Conversation, RowMembersAroundTheMessages) {
  const Conversation c =
      conversation_of(json::parse(
                          R"({"prompt_id": 7, "chat": [{"role": "assistant", "content": ""},
          {"role": "assistant", "reasoning_content": "r"}],
          "tools": "[{\"type\": \"function\"}]", "chat_template_kwargs": {"enable_thinking": false}})",
                          "test"),
                      "chat");
  EXPECT_EQ(c.empty_assistant_turns, 1);
  EXPECT_EQ(json::dump(c.tools), R"([{"type": "function"}])");
  EXPECT_FALSE(c.template_options.at("enable_thinking").as_bool());
  EXPECT_TRUE(conversation_of(json::parse(R"({"messages": [{"role": "assistant"}], "tools": []})", "t"))
                  .tools.is_null());
}

TEST(TokenizedRow, RefusesAndSaysWhatToDo) {
  expect_refused(
      {
          {R"({"input_ids": [1, 2]})", RowProblem::labels, "no labels"},
          {R"({"input_ids": [1, 2], "labels": [1]})", RowProblem::labels, "2 input_ids but 1 labels"},
          {R"({"input_ids": "x", "labels": [1]})", RowProblem::labels, "string"},
          {R"({"input_ids": [[1]], "labels": [1]})", RowProblem::labels, "input_ids[0]"},
          {R"({"input_ids": [1.0], "labels": [1]})", RowProblem::labels, "input_ids[0]"},
          {R"({"input_ids": [1], "labels": [null]})", RowProblem::labels, "null"},
          {R"({"input_ids": [10], "labels": [-100]})", RowProblem::labels, "[0, 10)"},
          {R"({"input_ids": [-1], "labels": [-100]})", RowProblem::labels, "[0, 10)"},
          {R"({"input_ids": [9223372036854775807], "labels": [-100]})", RowProblem::labels, "[0, 10)"},
          {R"({"input_ids": [1, 2, 3], "labels": [2, 3, -100]})", RowProblem::labels, "shifted by one"},
          {R"({"input_ids": [1, 2, 3], "labels": [-100, -1, -100]})", RowProblem::labels, "or -100"},
          {R"({"input_ids": [1, 0], "labels": [1, -100], "attention_mask": [1, 0]})", RowProblem::labels,
           "padding"},
          {R"({"input_ids": [1, 0], "labels": [1, -100], "attention_mask": [1]})", RowProblem::labels,
           "padding"},
      },
      [](const json::Value& row) { tokens_of(row, 10); });
}

TEST(TokenizedRow, ReadsIdsAndLabels) {
  const json::Value row =
      json::parse(R"({"input_ids": [0, 9], "labels": [-100, 9], "attention_mask": [1, 1], "x": 1})", "t");
  ASSERT_TRUE(is_tokenized_row(row));
  const MarkedTokens tokens = tokens_of(row, 10);
  EXPECT_EQ(tokens.ids, (std::vector<int32_t>{0, 9}));
  EXPECT_EQ(tokens.supervised, (std::vector<uint8_t>{0, 1}));
  EXPECT_FALSE(is_tokenized_row(json::parse(R"({"input_ids": null})", "t")));
}

}  // namespace
}  // namespace deltatune
