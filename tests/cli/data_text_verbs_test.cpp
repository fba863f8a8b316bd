// data render --messages and data tokenize with text: the built program on templates, conversations and bytes
// of the test's own.
#include <gtest/gtest.h>

#include <sstream>

#include "base/json.h"
#include "cli/run_binary.h"

namespace deltatune {
namespace {

const std::string demo_model = std::string(DELTATUNE_SOURCE_DIR) + "/examples/demo/model";
const std::string model_flag = " --model-name-or-path " + demo_model;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> out;
  for (std::string line; std::getline(stream, line);) out.push_back(line);
  return out;
}

const char* const chatml =
    "{%- for m in messages %}{%- if m.role == 'robot' %}{{- raise_exception('no robots here') }}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- if mood %}{{- mood }}{%- endif %}"
    "{%- endif %}";

class DataRender : public ::testing::Test {
 protected:
  ScratchFolder folder_;
  const std::string jinja_ = folder_.write("t.jinja", chatml);

  ProgramResult render(const std::string& file, const std::string& more = "",
                       const std::string& input = "/dev/null") {
    return run_deltatune("data render --template " + jinja_ + " --messages " + file + more, "", input);
  }
};

TEST_F(DataRender, GivesALineForEachConversationAndNeedsNoModel) {
  const std::string file = folder_.write(
      "c.jsonl",
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]})"
      "\n"
      R"([{"role": "user", "content": "only a question"}])"
      "\n");
  const ProgramResult result = render(file);
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 2u) << result.out;
  const json::Value first = json::parse(lines[0], "stdout");
  EXPECT_EQ(first.at("text").as_string(),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n");
  // Offsets counted by hand: 30 bytes of the user's turn, 22 of the header, 3 of the answer, 10 of its end.
  const json::Value turn = first.at("assistant_spans").as_array().at(0);
  EXPECT_EQ(turn.at("message").as_integer(), 1);
  EXPECT_EQ(turn.at("header_end").as_integer(), 52);
  EXPECT_EQ(turn.at("answer_start").as_integer(), 52);
  EXPECT_EQ(turn.at("im_end_end").as_integer(), 65);
  EXPECT_EQ(turn.at("turn_end").as_integer(), 66);
  const json::Value second = json::parse(lines[1], "stdout");
  EXPECT_EQ(second.at("text").as_string(), "<|im_start|>user\nonly a question<|im_end|>\n");
  EXPECT_TRUE(second.at("assistant_spans").as_array().empty());
}

TEST_F(DataRender, WhatCannotBeRenderedIsALineOfItsOwn) {
  const std::string file = folder_.write("c.jsonl",
                                         "{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}\n"
                                         "{\"messages\": [\n"
                                         "{\"massages\": []}\n"
                                         "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n");
  const ProgramResult result = render(file);
  EXPECT_EQ(result.code, 3);
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 4u) << result.out << result.err;
  EXPECT_EQ(json::parse(lines[0], "stdout").at("error").as_string(), "no robots here");
  for (const size_t i : {size_t{1}, size_t{2}}) {
    const json::Value error = json::parse(lines[i], "stdout");
    EXPECT_FALSE(error.at("error").as_string().empty());
    EXPECT_TRUE(contains(error.at("where").as_string(), "line " + std::to_string(i + 1))) << lines[i];
    EXPECT_FALSE(error.at("fix").as_string().empty());
  }
  EXPECT_TRUE(contains(lines[3], "Hi")) << "the row behind the bad ones: " << lines[3];
  const ProgramResult one = render(file, " --row 3");
  EXPECT_EQ(one.code, 0);
  EXPECT_EQ(one.out, lines[3] + "\n");
  EXPECT_EQ(render(file, " --row 4").code, 2);
}

TEST_F(DataRender, ReadsCompressedConversations) {
  const std::string plain =
      folder_.write("c.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n");
  ASSERT_EQ(std::system(("gzip -k " + plain).c_str()), 0);
  const ProgramResult result = render(plain + ".gz");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, render(plain).out);
}

TEST_F(DataRender, AVariableThatIsNotTheRowsToSetIsTheRowsProblem) {
  const std::string good =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]})"
      "\n";
  for (const char* name : {"tools", "messages", "documents", "add_generation_prompt"}) {
    const std::string bad =
        good.substr(0, good.size() - 2) + R"(, "chat_template_kwargs": {")" + name + "\": null}}\n";
    const std::string rows = folder_.write("rows.jsonl", bad + good);
    const ProgramResult rendered = render(rows);
    EXPECT_EQ(rendered.code, 3) << rendered.err;
    const std::vector<std::string> lines = lines_of(rendered.out);
    ASSERT_EQ(lines.size(), 2u) << rendered.out;
    EXPECT_TRUE(contains(json::parse(lines[0], "stdout").at("error").as_string(), name)) << lines[0];
    EXPECT_TRUE(contains(lines[1], "Yes"));
    for (const std::string& model : {std::string(), model_flag}) {
      const ProgramResult checked = run_deltatune("data check " + rows + model);
      EXPECT_EQ(checked.code, 3) << checked.err;
      EXPECT_TRUE(contains(checked.out, "rows.jsonl, line 1")) << checked.out;
    }
    const ProgramResult counted =
        run_deltatune("data stats --on-bad-row skip --dataset " + rows + model_flag);
    EXPECT_EQ(counted.code, 0) << counted.err;
  }
}

TEST_F(DataRender, ADatasetGoesOnBehindABadRowToo) {
  const std::string rows = folder_.write(
      "rows.jsonl",
      "{\"messages\": 3}\n"
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]})"
      "\n");
  const ProgramResult result = run_deltatune("data render --json --dataset " + rows + model_flag);
  EXPECT_EQ(result.code, 3);
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 2u) << result.out;
  EXPECT_TRUE(contains(json::parse(lines[0], "stdout").at("where").as_string(), "line 1")) << lines[0];
  EXPECT_TRUE(contains(lines[1], "Yes")) << lines[1];
}

TEST_F(DataRender, GenerationPromptVariablesDocumentsAndStandardInput) {
  const std::string question = folder_.write("q.json", "[\n {\"role\": \"user\", \"content\": \"Q\"}\n]\n");
  const ProgramResult result = render("-", " --add-generation-prompt --set mood=calm", question);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out, "stdout").at("text").as_string(),
            "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\ncalm");
  const std::string two = folder_.write(
      "two.json",
      R"([{"messages": [{"role": "user", "content": "1"}]}, [{"role": "user", "content": "2"}]])");
  EXPECT_EQ(lines_of(render(two).out).size(), 2u);
  EXPECT_EQ(render(folder_.write("bad.json", "[\n{\n")).code, 3);
  EXPECT_EQ(render(folder_.write("none.jsonl", "\n\n")).code, 3);
  EXPECT_EQ(render((folder_ / "missing.jsonl").string()).code, 3);
}

TEST_F(DataRender, MessagesGoToTheTemplateAsTheyAre) {
  const std::string types =
      folder_.write("types.jinja",
                    "{% for m in messages %}{{ m.content is none }} {{ m.thinking is defined }} "
                    "{{ m.tool_calls[0].function.arguments is string }}{% endfor %}");
  const std::string file = folder_.write(
      "c.jsonl",
      R"([{"role": "assistant", "content": null, "reasoning_content": "R", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}])");
  const ProgramResult result = run_deltatune("data render --template " + types + " --messages " + file);
  EXPECT_EQ(json::parse(result.out, "stdout").at("text").as_string(), "True False True") << result.err;
}

TEST_F(DataRender, AVariableThatNothingReadsIsNamed) {
  const std::string file = folder_.write("c.jsonl", "[{\"role\": \"user\", \"content\": \"Hi\"}]\n");
  const ProgramResult typo = render(file, " --set moood=calm");
  EXPECT_EQ(typo.code, 0);
  EXPECT_TRUE(contains(typo.err, "never reads moood") && contains(typo.err, "did you mean mood?"))
      << typo.err;
  EXPECT_FALSE(contains(render(file, " --set mood=calm").err, "never reads"));
}

TEST_F(DataRender, ATemplateWhoseTurnsCannotBeFoundStillRenders) {
  const std::string flat = folder_.write("flat.jinja", "{% for m in messages %}{{ m.content }};{% endfor %}");
  const std::string file = folder_.write("c.jsonl", "[{\"role\": \"user\", \"content\": \"Hi\"}]\n");
  const ProgramResult result = run_deltatune("data render --template " + flat + " --messages " + file);
  ASSERT_EQ(result.code, 0) << result.err;
  const json::Value line = json::parse(result.out, "stdout");
  EXPECT_EQ(line.at("text").as_string(), "Hi;");
  EXPECT_FALSE(line.at("assistant_spans_error").as_string().empty());
}

TEST_F(DataRender, ANamedTemplateOfTheCheckpoint) {
  folder_.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "short", "template": "S"}]})");
  const std::string file = folder_.write("c.jsonl", "[{\"role\": \"user\", \"content\": \"Hi\"}]\n");
  const std::string rest = " --messages " + file + " --model-name-or-path " + folder_.path().string();
  EXPECT_TRUE(contains(run_deltatune("data render" + rest).out, "\"text\": \"D\""));
  EXPECT_TRUE(contains(run_deltatune("data render --template short" + rest).out, "\"text\": \"S\""));
  const ProgramResult unknown = run_deltatune("data render --template long" + rest);
  EXPECT_EQ(unknown.code, 3);
  EXPECT_TRUE(contains(unknown.err, "its templates are default, short")) << unknown.err;
}

class DataTokenizeText : public ::testing::Test {
 protected:
  ScratchFolder folder_;
  ProgramResult tokenize(const std::string& arguments, const std::string& input_text = "") {
    return run_deltatune("data tokenize --tokenizer " + demo_model + " " + arguments, "",
                         folder_.write("in", input_text));
  }
};

TEST_F(DataTokenizeText, ALineOfIdsForEachLineOfStandardInput) {
  const ProgramResult lines = tokenize("-", "Hello\n\nHello there");
  ASSERT_EQ(lines.code, 0) << lines.err;
  const std::vector<std::string> ids = lines_of(lines.out);
  ASSERT_EQ(ids.size(), 3u) << lines.out;
  EXPECT_EQ(ids[0] + "\n", tokenize("--text Hello").out);
  EXPECT_EQ(ids[1], "");
  EXPECT_EQ(ids[2] + "\n", tokenize("--text 'Hello there'").out);
  EXPECT_EQ(tokenize("--text -", "Hello\n").out, ids[0] + "\n");
  EXPECT_EQ(tokenize("", "Hello\n").out, ids[0] + "\n") << "no text and no dataset: standard input";
}

TEST_F(DataTokenizeText, HexIsBytesAndSpecialLetsControlTokensForm) {
  EXPECT_EQ(tokenize("--hex -", "48656C6c6f\n").out, tokenize("--text Hello").out);
  EXPECT_EQ(tokenize("--hex --text 0a").out, tokenize("--text '\n'").out);
  const std::string control = tokenize("--special --text '<|im_end|>'").out;
  EXPECT_EQ(std::count(control.begin(), control.end(), ' '), 0) << control;
  EXPECT_GT(tokenize("--text '<|im_end|>'").out.size(), control.size());
  EXPECT_EQ(tokenize("--hex --special -", "3c7c696d5f656e647c3e\n").out, control);
}

TEST_F(DataTokenizeText, WhatIsNoTextIsALineOfItsOwn) {
  const ProgramResult result = tokenize("--hex -", "48\nff\n4\nzz\n48\n");
  EXPECT_EQ(result.code, 3);
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 5u) << result.out;
  EXPECT_EQ(lines[0], lines[4]);
  for (size_t i = 1; i < 4; ++i) {
    const json::Value error = json::parse(lines[i], "stdout");
    EXPECT_TRUE(contains(error.at("where").as_string(), "line " + std::to_string(i + 1))) << lines[i];
  }
}

TEST(DataHelp, ShowsOnlyWhatTheVerbReads) {
  const std::string show = run_deltatune("data show --help").out;
  for (const char* flag : {"--lengths", "--compare", "--text ", "--hex", "--messages ", "--special"})
    EXPECT_FALSE(contains(show, std::string("\n  ") + flag)) << flag;
  EXPECT_TRUE(contains(show, "\n  --rows")) << show;
  EXPECT_TRUE(contains(show, "Parquet") && contains(show, "s3://"));
  EXPECT_FALSE(contains(run_deltatune("data stats --help").out, "\n  --rows"));
  EXPECT_TRUE(contains(run_deltatune("data pack --help").out, "\n  --lengths"));
  EXPECT_TRUE(contains(run_deltatune("data tokenize --help").out, "\n  --hex"));
  EXPECT_TRUE(contains(run_deltatune("data render --help").out, "--template"));
  EXPECT_EQ(run_deltatune("data show --compare").code, 2);
}

}  // namespace
}  // namespace deltatune
