// data/encode: real rows through tokenizer and template; what is supervised is what the assistant says.
#include "data/encode.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "data/batch_stream.h"
#include "data/files.h"
#include "data/row_source.h"
#include "text/unicode.h"

namespace deltatune {
namespace {

const std::string source_folder = DELTATUNE_SOURCE_DIR;

std::string decode_supervised(const Tokenizer& tokenizer, const TokenizedSet& set, int64_t i) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < set.length(i); ++t) {
    if (set.supervised(i, t)) ids.push_back(set.ids(i)[static_cast<size_t>(t)]);
  }
  return tokenizer.decode(ids);
}

DatasetOptions options_for(const Tokenizer& tokenizer) {
  DatasetOptions options;
  options.vocab_size = tokenizer.vocab_size();
  options.max_length = options.max_tokens = 1 << 16;
  return options;
}

// Reads the conversation at the place that the set remembers.
Conversation conversation_at(const TokenizedSet& set, int64_t i) {
  const MappedFile file(set.file(i));
  JsonlLines lines(file.text());
  for (JsonlLine line; lines.next(line);) {
    if (line.number == set.line(i)) return conversation_of(parse_line(line));
  }
  throw Error(ErrorKind::internal, "no such line");
}

// Every supervised stretch of a render, one after the other.
std::string span_text(const RenderedChat& chat) {
  std::string out;
  for (const RenderedChat::Span& span : chat.spans)
    out += chat.marked.text.substr(span.begin, span.end - span.begin);
  return out;
}

std::string without_newlines(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
  return text;
}

void expect_spans_are_targets(const std::string& path, const Tokenizer& tokenizer,
                              const ChatTemplate& chat_template, const RenderOptions& options) {
  const TokenizedSet set =
      load_dataset({path}, options_for(tokenizer), make_encoder(tokenizer, chat_template, options));
  EXPECT_EQ(set.size(), set.counts().rows);
  for (int64_t i = 0; i < set.size(); ++i) {
    const Conversation conversation = conversation_at(set, i);
    const RenderedChat chat = render_conversation(conversation, chat_template, options);
    ASSERT_TRUE(tokenizer.decode(set.ids(i)) == normalize_nfc(chat.marked.text).text)
        << path << " " << set.line(i);
    const std::string trained = decode_supervised(tokenizer, set, i);
    // A span may start in the middle of a token ("<think>\n" is given, "\n\n" is one token): that token is no
    // target, so a newline per turn may be missing.
    const std::string wanted = normalize_nfc(span_text(chat)).text;
    ASSERT_TRUE(without_newlines(trained) == without_newlines(wanted)) << path << " " << set.line(i);
    ASSERT_LE(wanted.size() - trained.size(), chat.spans.size()) << path << " " << set.line(i);
    for (const json::Value& message : conversation.messages.as_array()) {
      if (message.at("role").as_string() != "user") continue;
      const std::string& question = message.at("content").as_string();
      if (question.size() > 60) {
        EXPECT_EQ(trained.find(question), std::string::npos) << path << " " << set.line(i);
      }
    }
  }
}

TEST(Encode, DemoDataTrainsTheAnswers) {
  const std::string model = source_folder + "/examples/demo/model";
  const Tokenizer tokenizer = Tokenizer::load(model);
  const ChatTemplate chat_template = ChatTemplate::load(model);
  for (const char* name : {"train.jsonl", "eval.jsonl"}) {
    expect_spans_are_targets(source_folder + "/examples/demo/" + name, tokenizer, chat_template, {});
  }
}

TEST(Encode, RowOptionsAndThreadsDoNotMatter) {
  const std::string model = source_folder + "/examples/demo/model";
  const Tokenizer tokenizer = Tokenizer::load(model);
  const ChatTemplate chat_template = ChatTemplate::load(model);
  const EncodeConversation encode = make_encoder(tokenizer, chat_template, {});
  const std::string file = source_folder + "/examples/demo/train.jsonl";
  const TokenizedSet once = load_dataset({file}, options_for(tokenizer), encode);
  const TokenizedSet again = load_dataset({file}, options_for(tokenizer), encode);
  EXPECT_EQ(once.fingerprint(), again.fingerprint());
  // One row at a time, so without any parallelism.
  TokenizedSetBuilder builder(options_for(tokenizer), encode);
  const MappedFile mapped(file);
  JsonlLines lines(mapped.text());
  for (JsonlLine line; lines.next(line);) builder.add_lines(line.text, file);
  EXPECT_EQ(builder.finish().fingerprint(), once.fingerprint());
}

TEST(Encode, KeywordsOfARowWin) {
  const ChatTemplate chat_template = ChatTemplate::compile(
      "{{ tone | default('none') }}{{ tools | length if tools }}"
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}",
      "test");
  RenderOptions options;
  options.variables.set("tone", "calm");
  const auto head = [&](const std::string& members) {
    const Conversation conversation = conversation_of(json::parse(
        R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])" +
            members + "}",
        "test"));
    const std::string text = render_conversation(conversation, chat_template, options).marked.text;
    return text.substr(0, text.find('['));
  };
  EXPECT_EQ(head(""), "calm");
  EXPECT_EQ(head(R"(, "chat_template_kwargs": {"tone": "loud"})"), "loud");
  EXPECT_EQ(head(R"(, "tools": [{"type": "function"}])"), "calm1");
}

TEST(Encode, PublicChatsWithTheFamilysTemplates) {
  const std::string shared = source_folder + "/../shared/data";
  if (!fs::exists(shared + "/chat") || !fs::exists(shared + "/tokenizer/qwen3/tokenizer.json")) {
    GTEST_SKIP() << "shared/data/chat or shared/data/tokenizer/qwen3 is not there";
  }
  const Tokenizer tokenizer = Tokenizer::load(shared + "/tokenizer/qwen3");
  for (const char* name : {"qwen3", "qwen3_5_think", "qwen3_6", "qwen3_8_reconstructed"}) {
    const std::string path = shared + "/tokenizer/templates/" + name + ".jinja";
    const ChatTemplate chat_template = ChatTemplate::compile(read_file(path), path);
    for (const fs::path& file : dataset_files({shared + "/chat"})) {
      expect_spans_are_targets(file.string(), tokenizer, chat_template, {});
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace deltatune
