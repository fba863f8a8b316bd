// Whole conversations against jinja2: hostile ones made by jinja_conversations.py, each on every template of
// tests/text/templates, and of ../shared/data/tokenizer/templates where that is there. Equal means byte for
// byte, and an error where jinja2 raises one, with the template's own words for raise_exception.
//
// DELTATUNE_PYTHON names the interpreter (python3 otherwise), DELTATUNE_JINJA_CONVERSATIONS how many (2000
// otherwise).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "text/jinja.h"

namespace deltatune::jinja {
namespace {

const fs::path source_folder = DELTATUNE_SOURCE_DIR;

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

std::vector<json::Value> read_lines(const fs::path& path) {
  std::istringstream text(read_file(path));
  std::vector<json::Value> out;
  for (std::string line; std::getline(text, line);) out.push_back(json::parse(line, path.string()));
  return out;
}

struct Job {
  json::Value messages;
  std::vector<Variable> variables;
};

struct Counts {
  int equal = 0;
  int raised = 0;  // by raise_exception
  int errors = 0;
  int wrong = 0;
};

// Empty when we did what jinja2 did.
std::string difference(const Template& chat, const Job& job, const json::Value& wanted, Counts& counts) {
  const json::Value* text = wanted.find("text");
  const json::Value* raised = wanted.find("raised");
  try {
    const std::string got = chat.render(job.messages, job.variables).text.bytes;
    if (text == nullptr) return "no error; jinja2: " + json::dump(wanted);
    if (got != text->as_string()) return "rendered " + json::quote(got);
    ++counts.equal;
  } catch (const Error& error) {
    if (text != nullptr) return error.text();
    if (raised != nullptr && error.what() != raised->as_string()) return error.text();
    EXPECT_EQ(error.kind(), ErrorKind::data);
    ++(raised != nullptr ? counts.raised : counts.errors);
  }
  return {};
}

TEST(JinjaDifferential, HostileConversationsOnEveryTemplate) {
  const std::string python = environment("DELTATUNE_PYTHON", "python3");
  if (std::system(
          format("'{}' -c 'import jinja2; assert jinja2.__version__ >= \"3.1.6\"' 2>/dev/null", python)
              .c_str()) != 0) {
    GTEST_SKIP() << "needs jinja2 3.1.6 (DELTATUNE_PYTHON names the interpreter)";
  }
  const fs::path here = source_folder / "tests" / "text";
  const fs::path out = fs::path(testing::TempDir()) / format("jinja_conversations_{}", getpid());
  std::vector<fs::path> folders = {here / "templates"};
  if (const fs::path real = source_folder / "../shared/data/tokenizer/templates"; fs::exists(real)) {
    folders.push_back(real);
  } else {
    std::cout << "real templates are not present: " << real << "\n";
  }
  std::string command =
      format("'{}' -W ignore '{}' {} '{}'", python, (here / "jinja_conversations.py").string(),
             environment("DELTATUNE_JINJA_CONVERSATIONS", "2000"), out.string());
  for (const fs::path& folder : folders) command += format(" '{}'", folder.string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;

  std::vector<Job> jobs;
  for (const json::Value& line : read_lines(out / "conversations.jsonl")) {
    Job& job = jobs.emplace_back(Job{line.at("messages"), {}});
    for (const auto& [name, value] : line.at("variables").as_object())
      job.variables.push_back({name, value, false});
  }
  ASSERT_FALSE(jobs.empty());
  size_t templates = 0;
  for (const fs::path& folder : folders) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".jinja") continue;
      ++templates;
      const std::string name = entry.path().stem().string();
      const Template chat = Template::compile(read_file(entry.path()), name);
      const std::vector<json::Value> wanted = read_lines(out / (name + ".jsonl"));
      ASSERT_EQ(wanted.size(), jobs.size());
      Counts counts;
      for (size_t i = 0; i < jobs.size(); ++i) {
        const std::string why = difference(chat, jobs[i], wanted[i], counts);
        if (why.empty()) continue;
        if (++counts.wrong <= 3) {
          ADD_FAILURE() << name << ", conversation " << i << ": " << why
                        << "\njinja2: " << json::dump(wanted[i])
                        << "\nmessages: " << json::dump(jobs[i].messages);
        }
      }
      std::cout << format("{}: {} equal, {} refused by the template, {} other errors, {} different\n", name,
                          counts.equal, counts.raised, counts.errors, counts.wrong);
      EXPECT_EQ(counts.wrong, 0) << name;
      EXPECT_GT(counts.equal, static_cast<int>(jobs.size()) / 4) << name;
    }
  }
  EXPECT_GE(templates, 4u);
  fs::remove_all(out);
}

}  // namespace
}  // namespace deltatune::jinja
