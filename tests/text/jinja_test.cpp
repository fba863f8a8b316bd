// The template engine against a table of snippets, against jinja2 itself where it is installed, and its own
// promises: origins of characters, bounded work, errors that name the line.
#include "text/jinja.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "base/file.h"

namespace deltatune::jinja {
namespace {

const fs::path here = fs::path(DELTATUNE_SOURCE_DIR) / "tests/text";

struct Outcome {
  bool failed = false;
  bool unsupported = false;
  std::string text;
};

Outcome render(const std::string& source, const json::Value& messages, const json::Value& variables) {
  try {
    std::vector<Variable> list;
    for (const auto& [name, value] : variables.as_object()) list.push_back({name, value, false});
    const Rendered out = Template::compile(source, "test").render(messages, list);
    EXPECT_EQ(out.text.flags.size(), out.text.bytes.size());
    return {false, false, out.text.bytes};
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::data);
    EXPECT_NE(e.where().find("line "), std::string::npos) << source;
    EXPECT_FALSE(e.fix().empty());
    const bool unsupported = e.text().find("supported") != std::string::npos ||
                             e.text().find("this engine knows") != std::string::npos;
    return {true, unsupported, e.text()};
  }
}

std::string render(const std::string& source) {
  return render(source, json::Value(json::Array{}), json::Value(json::Object{})).text;
}

TEST(Jinja, TableOfSnippets) {
  const json::Value root = json::parse_file((here / "jinja_cases.json").string());
  size_t rendered = 0;
  size_t refused = 0;
  for (const json::Value& c : root.at("cases").as_array()) {
    const std::string& source = c.at("template").as_string();
    const Outcome got = render(source, root.at("messages"), root.at("variables"));
    const json::Value* text = c.find("text");
    EXPECT_EQ(got.failed, text == nullptr) << source << "\n" << got.text;
    if (text && !got.failed) {
      EXPECT_EQ(got.text, text->as_string()) << source;
    }
    ++(text ? rendered : refused);
  }
  std::cout << rendered << " snippets render, " << refused << " are errors\n";
  EXPECT_GT(rendered, 230u);
  EXPECT_GT(refused, 130u);
  for (const json::Value& source : root.at("unsupported").as_array()) {
    EXPECT_TRUE(render(source.as_string(), root.at("messages"), root.at("variables")).unsupported)
        << source.as_string();
  }
}

TEST(Jinja, EqualsJinja2) {
  if (std::system("python3 -c 'import jinja2; assert jinja2.__version__ >= \"3.1\"' 2>/dev/null") != 0) {
    GTEST_SKIP() << "python3 with jinja2 3.1 is not installed";
  }
  const fs::path out =
      fs::temp_directory_path() / ("deltatune_jinja_" + std::to_string(::getpid()) + ".json");
  const fs::path templates = fs::path(DELTATUNE_SOURCE_DIR) / "../shared/data/tokenizer/templates";
  std::string command = "python3 -W ignore '" + (here / "jinja_oracle.py").string() + "' '" +
                        (here / "jinja_cases.json").string() + "' '" + out.string() + "'";
  if (fs::exists(templates)) command += " '" + templates.string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const json::Value results = json::parse_file(out.string());
  fs::remove(out);
  int equal = 0;
  int both_fail = 0;
  int unsupported = 0;
  for (const json::Value& r : results.as_array()) {
    const std::string& source = r.at("template").as_string();
    const Outcome got = render(source, r.at("messages"), r.at("variables"));
    const json::Value* text = r.find("text");
    if (got.failed && text && got.unsupported) {
      ++unsupported;
    } else if (got.failed || !text) {
      EXPECT_TRUE(got.failed && !text) << source << "\nours:   " << got.text << "\njinja2: " << json::dump(r);
      ++both_fail;
    } else {
      EXPECT_EQ(got.text, text->as_string()) << source;
      ++equal;
    }
  }
  std::cout << "against jinja2: " << equal << " equal, " << both_fail << " errors in both, " << unsupported
            << " refused as unsupported\n";
  EXPECT_GT(equal, 1000);
  EXPECT_LT(unsupported, 60);
}

/// The output with content characters as they are and template characters replaced by '.'.
std::string content_of(const std::string& source, const json::Value& variables) {
  std::vector<Variable> list;
  for (const auto& [name, value] : variables.as_object()) list.push_back({name, value, name == "trusted"});
  const Rendered out = Template::compile(source, "test").render(json::Value(json::Array{}), list);
  std::string shown = out.text.bytes;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (out.text.flags[i] & from_template) shown[i] = '.';
  }
  return shown;
}

TEST(Jinja, EveryCharacterKnowsItsOrigin) {
  const json::Value v = json::parse(
      R"({"x": "con tent", "list": ["a", "b"], "n": 5, "trusted": "T", "d": {"k": "v"}})", "test");
  EXPECT_EQ(content_of("ab{{ x }}c", v), "..con tent.");
  EXPECT_EQ(content_of("{{ '<|' + x + '|>' }}", v), "..con tent..");
  EXPECT_EQ(content_of("{{ ('  ' ~ x ~ '  ') | trim }}", v), "con tent");
  EXPECT_EQ(content_of("{{ ('A' ~ x)[0:3] }}", v), ".co");
  EXPECT_EQ(content_of("{{ ('A' ~ x ~ 'B')[::-1] }}", v), ".tnet noc.");
  EXPECT_EQ(content_of("{{ x | replace('t', '<>') }}", v), "con ..en..");
  EXPECT_EQ(content_of("{{ x.replace('con', 'X') }}", v), ". tent");
  EXPECT_EQ(content_of("{{ ('A ' ~ x).split(' ') | join('-') }}", v), "..con.tent");
  EXPECT_EQ(content_of("{{ list | join(', ') }}", v), "a..b");
  EXPECT_EQ(content_of("{{ ', '.join(list) }}", v), "a..b");
  EXPECT_EQ(content_of("{{ 'a%sb' % x }}", v), ".con tent.");
  EXPECT_EQ(content_of("{{ '{}-{}'.format(x, 'lit') }}", v), "con tent....");
  EXPECT_EQ(content_of("{{ ('q' ~ x) | upper }}", v), ".CON TENT");
  EXPECT_EQ(content_of("{{ x | indent(2, true) }}", v), "..con tent");
  EXPECT_EQ(content_of("{{ ('<' ~ x) | e }}", v), "....con tent");
  EXPECT_EQ(content_of("{{ x ~ 'l' * 3 }}", v), "con tent...");
  EXPECT_EQ(content_of("{% set y %}a{{ x }}{% endset %}{{ y }}", v), ".con tent");
  EXPECT_EQ(content_of("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x) }}", v), ".con tent.");
  EXPECT_EQ(content_of("{% filter trim %} a{{ x }} {% endfilter %}", v), ".con tent");
  EXPECT_EQ(content_of("{{ trusted }}{{ x[0] }}", v), ".c");
  EXPECT_EQ(content_of("{{ missing | default('lit') }}", v), "...");
  // Whole results that are content: JSON, numbers, repr.
  EXPECT_EQ(content_of("{{ ['<|im_end|>'] | tojson }}", v), "[\"<|im_end|>\"]");
  EXPECT_EQ(content_of("{{ ['<|im_end|>'] }}", v), "['<|im_end|>']");
  EXPECT_EQ(content_of("{{ 1 + 2 }}", v), "3");
  // Keys of a mapping from outside are content too.
  EXPECT_EQ(content_of("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", v), "k.v");
}

TEST(Jinja, OnlyKnownRolesCountAsTemplateText) {
  const Template t = Template::compile("{{ messages[0].role }}", "test");
  const auto flags = [&](const char* role) {
    return t.render(json::Value(json::Array{json::Value(json::Object{{"role", json::Value(role)}})}), {})
        .text.flags;
  };
  EXPECT_EQ(flags("user"), std::string(4, from_template));
  EXPECT_EQ(flags("<|im_end|>"), std::string(10, from_content));
}

TEST(Jinja, WorkAndMemoryAreBounded) {
  const char* bombs[] = {
      "{{ 'a' * 10 ** 9 }}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ [0] * 10 ** 15 }}",
      "{{ range(10 ** 9) }}",
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(200) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(80) }}",
      "{{ '%999999999d' % 1 }}",
      "{{ '{:999999999}'.format(1) }}",
      "{{ 'x'.center(10 ** 12) }}",
      "{{ [1] | slice(10 ** 18) | list }}",
      "{{ [1] | batch(10 ** 18, 0) | list }}",
      "{{ 'a\\nb' | indent(10 ** 12) }}",
      "{{ ('a' * 100000) | replace('', 'b' * 100000) }}",
      "{{ [1] | tojson(indent='x' * 10000000) | length }}{{ ('ab' * 1000000) | replace('a', 'b' * 10000) }}"};
  for (const char* source : bombs) {
    Limits limits;
    limits.steps = 20000000;
    limits.bytes = 32 << 20;
    const Template t = Template::compile(source, "bomb");
    EXPECT_THROW(t.render(json::Value(json::Array{}), {}, limits), Error) << source;
  }
  std::string deep = "{{ ";
  for (int i = 0; i < 100000; ++i) deep += "(";
  EXPECT_THROW(Template::compile(deep, "deep"), Error);
  std::string chain = "{{ 1";
  for (int i = 0; i < 100000; ++i) chain += " + 1";
  EXPECT_THROW(Template::compile(chain + " }}", "chain"), Error);
  std::string nested;
  for (int i = 0; i < 100000; ++i) nested += "{% if 1 %}";
  EXPECT_THROW(Template::compile(nested, "nested"), Error);
}

TEST(Jinja, ErrorsNameTheLineAndAWayOut) {
  const auto error = [](const char* source) {
    try {
      Template::compile(source, "chat.jinja").render(json::Value(json::Array{}), {});
    } catch (const Error& e) {
      return e.text();
    }
    return std::string("no error");
  };
  EXPECT_EQ(error("a\n{{ 'x' | uper }}"),
            "error: unknown or unsupported filter 'uper'\n  where: chat.jinja, line 2\n  fix:   did you mean "
            "'upper'?");
  EXPECT_NE(error("a\n\n{{ x.y }}").find("'x' is undefined\n  where: chat.jinja, line 3"), std::string::npos);
  EXPECT_NE(error("{% fro x in y %}").find("did you mean 'for'?"), std::string::npos);
  EXPECT_NE(error("\n{{ raise_exception('No') }}").find("error: No\n  where: chat.jinja, line 2"),
            std::string::npos);
  EXPECT_NE(error("\xff").find("not valid UTF-8"), std::string::npos);
}

TEST(Jinja, GenerationBlocksGiveSpans) {
  const Template t = Template::compile(
      "{% for m in messages %}[{% generation %}{{ m.content }}!{% endgeneration %}]{% endfor %}", "test");
  EXPECT_TRUE(t.has_generation());
  const json::Value messages =
      json::parse(R"([{"role":"user","content":"ab"},{"role":"assistant","content":""}])", "test");
  const Rendered out = t.render(messages, {});
  EXPECT_EQ(out.text.bytes, "[ab!][!]");
  ASSERT_EQ(out.spans.size(), 2u);
  EXPECT_EQ(out.spans[0].begin, 1u);
  EXPECT_EQ(out.spans[0].end, 4u);
  EXPECT_EQ(out.spans[0].message, 0);
  EXPECT_EQ(out.spans[1].message, 1);
  EXPECT_NE(
      render("{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}").find("generation"),
      std::string::npos);
}

}  // namespace
}  // namespace deltatune::jinja
