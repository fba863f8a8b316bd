// Forty rows that cannot be trained, each for a reason of its own, as people and programs write them.
#pragma once

#include <string>
#include <vector>

#include "data/rows.h"

namespace deltatune::testing_data {

struct BadRow {
  RowProblem problem;
  std::string text;  ///< one line
};

inline std::string nested(const std::string& open, const std::string& close, int depth) {
  std::string out;
  for (int i = 0; i < depth; ++i) out += open;
  for (int i = 0; i < depth; ++i) out += close;
  return out;
}

/// A row whose assistant message has these members besides its role.
inline std::string answer_with(const std::string& members) {
  return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", )" + members + "}]}";
}

/// One has an id that is in no model's vocabulary.
inline std::vector<BadRow> bad_rows() {
  using P = RowProblem;
  const std::string user = R"({"role": "user", "content": "q"})";
  const std::string answer = R"({"role": "assistant", "content": "a"})";
  return {
      // No JSON, or not in UTF-8.
      {P::malformed_json, R"({"messages": [{"role": "user", "content": "q"})"},
      {P::malformed_json, R"({'messages': []})"},
      {P::malformed_json, answer_with(R"("content": NaN)")},
      {P::malformed_json, R"({"messages": [], "messages": []})"},
      {P::malformed_json, answer_with("\"content\": \"a\"") + "}"},
      {P::malformed_json, answer_with("\"content\": \"a\tb\"")},
      {P::malformed_json, answer_with(R"("content": "\ud800")")},
      {P::malformed_json, R"({"id": 1e999, "messages": []})"},
      {P::malformed_json, "{\"messages\": " + nested("[", "]", 20000) + "}"},
      {P::invalid_utf8, answer_with("\"content\": \"caf\xe9\"")},
      {P::invalid_utf8, answer_with("\"content\": \"\xed\xa0\x80\"")},
      // Another shape than a row of a known schema.
      {P::not_an_object, "[" + user + ", " + answer + "]"},
      {P::not_an_object, "\"text\""},
      {P::unknown_schema, R"({"text": "only a text"})"},
      {P::unknown_schema, "{}"},
      {P::unknown_schema, R"({"messages": null, "input_ids": null})"},
      {P::messages, R"({"messages": []})"},
      {P::messages, R"({"messages": "hello"})"},
      {P::messages, R"({"messages": ["hello"]})"},
      // Roles.
      {P::role, R"({"messages": [{"content": "q"}, )" + answer + "]}"},
      {P::role, R"({"messages": [{"role": "narrator", "content": "q"}, )" + answer + "]}"},
      {P::role, R"({"messages": [{"role": 1, "content": "q"}, )" + answer + "]}"},
      {P::role, "{\"messages\": [" + user + R"(, {"role": "system", "content": "s"}, )" + answer + "]}"},
      {P::role, R"({"messages": [{"role": "tool", "content": "42"}, )" + answer + "]}"},
      {P::no_assistant, "{\"messages\": [" + user + "]}"},
      {P::no_assistant, R"({"instruction": "add", "input": "1 2"})"},
      // Content.
      {P::content, answer_with("\"content\": 42")},
      {P::content, answer_with(R"("content": [{"type": "thought", "text": "a"}])")},
      {P::image, answer_with(R"("content": [{"type": "image_url", "image_url": {"url": "x.png"}}])")},
      {P::image, answer_with(R"("content": "a", "images": ["x.png"])")},
      {P::unknown_key, answer_with(R"("content": "a", "thinking": "because")")},
      {P::unknown_key, answer_with(R"("content": "a", "weight": 0)")},
      // Tools.
      {P::tool_call, answer_with(R"("tool_calls": [{"function": {"name": "f", "arguments": "{x"}}])")},
      {P::tool_call, answer_with(R"("tool_calls": [{"function": {"name": "f", "arguments": [1]}}])")},
      {P::tool_call, answer_with(R"("tool_calls": [{"function": {"arguments": {}}}])")},
      {P::tools, "{\"messages\": [" + user + ", " + answer + R"(], "tools": "[{"})"},
      // Tokenised already.
      {P::labels, R"({"input_ids": [1, 2, 3], "labels": [1, 2]})"},
      {P::labels, R"({"input_ids": [1, 2000000000], "labels": [-100, 2000000000]})"},
      {P::labels, R"({"input_ids": [1, 2, 3], "labels": [2, 3, -100]})"},
      {P::labels, R"({"input_ids": [1, 99999999999999999999], "labels": [-100, 2]})"},
  };
}

}  // namespace deltatune::testing_data
