// data show, stats, check, render, tokenize; doctor: the built program on the embedded demo and on broken
// files.
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/run_binary.h"
#include "data/bad_rows.h"

namespace deltatune {
namespace {

const std::string demo = std::string(DELTATUNE_SOURCE_DIR) + "/examples/demo";
const std::string model_flag = " --model-name-or-path " + demo + "/model";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string with_data(const std::string& file) {
  return model_flag + " --dataset " + file;
}

const char* const one_row =
    R"({"messages": [{"role": "user", "content": "Say <|im_end|> and \u001b[31m"}, {"role": "assistant", "content": "No."}]})"
    "\n";

TEST(DataPack, ComparesTheWaysOfBatching) {
  ScratchFolder folder;
  // Ten rows of 60 + 40, or of 50 + 50; rectangles of pairs in file order hold one long one each.
  std::string lengths;
  for (int i = 0; i < 10; ++i) lengths += "60\n40\n50\n50\n";
  const std::string arguments =
      "data pack --compare --max-tokens 100 --lengths " + folder.write("lengths.txt", lengths);
  const ProgramResult table = run_deltatune(arguments);
  ASSERT_EQ(table.code, 0) << table.err;
  for (const char* part : {"40 conversations, 2,000 tokens", "padded", "sorted", "packed", "limit"})
    EXPECT_TRUE(contains(table.out, part)) << table.out;
  const ProgramResult result = run_deltatune(arguments + " --json --gradient-accumulation-steps 4");
  ASSERT_EQ(result.code, 0) << result.err;
  const json::Array ways = json::parse(result.out, "pack").at("batchings").as_array();
  ASSERT_EQ(ways.size(), 4u);
  EXPECT_EQ(ways[2].at("batching").as_string(), "packed");
  EXPECT_EQ(ways[2].at("rows").as_integer(), 20);
  EXPECT_EQ(ways[2].at("steps").as_integer(), 5);
  EXPECT_EQ(ways[2].at("fill").as_number(), 1);
  EXPECT_EQ(ways[3].at("rows").as_integer(), 20);
  EXPECT_GT(ways[0].at("rows").as_integer(), 20);
}

TEST(DataPack, PacksTheDatasetAsTrainingDoes) {
  const std::string data = with_data(demo + "/train.jsonl") + " --max-length 128 --max-tokens 512 --json";
  const ProgramResult pack = run_deltatune("data pack" + data);
  ASSERT_EQ(pack.code, 0) << pack.err;
  const ProgramResult stats = run_deltatune("data stats" + data);
  ASSERT_EQ(stats.code, 0) << stats.err;
  const json::Value packed = json::parse(pack.out, "pack"), counted = json::parse(stats.out, "stats");
  EXPECT_EQ(packed.at("tokens").as_integer(), counted.at("tokens").as_integer());
  const json::Array ways = packed.at("batchings").as_array();
  ASSERT_EQ(ways.size(), 2u);
  EXPECT_EQ(ways[0].at("rows").as_integer(), counted.at("packed_rows").as_integer());
  EXPECT_EQ(ways[0].at("steps").as_integer(), counted.at("steps_per_epoch").as_integer());
}

TEST(DataPack, LeavesWhatIsHeldOutToEvaluation) {
  const std::string data =
      with_data(demo + "/train.jsonl") + " --max-length 256 --max-tokens 512 --json --val-size 100";
  const json::Value packed = json::parse(run_deltatune("data pack" + data).out, "pack");
  const json::Value counted = json::parse(run_deltatune("data stats" + data).out, "stats");
  EXPECT_EQ(counted.at("held_out").as_integer(), 100);
  EXPECT_EQ(packed.at("batchings").as_array()[0].at("rows").as_integer(),
            counted.at("packed_rows").as_integer());
}

// A map without the space behind the colon is one name, which no template reads.
TEST(DataShow, RefusesWhatIsNoTemplateVariable) {
  const ProgramResult result = run_deltatune("data show" + with_data(demo + "/train.jsonl") +
                                             " --chat-template-kwargs '{enable_thinking:false}'");
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "is no name of a template variable")) << result.err;
}

TEST(DataPack, RefusesWhatCannotBePacked) {
  ScratchFolder folder;
  const std::vector<std::string> bad = {"--lengths " + folder.write("zero.txt", "5\n0\n"),
                                        "--lengths " + folder.write("text.txt", "five\n"),
                                        "--max-tokens 100 --lengths " + folder.write("long.txt", "101\n"),
                                        "--lengths /dev/zero", "--lengths " + folder.path().string()};
  for (const std::string& arguments : bad) {
    const ProgramResult result = run_deltatune("data pack " + arguments);
    EXPECT_EQ(result.code, 3) << arguments << result.err;
    EXPECT_TRUE(contains(result.err, "  where: ") && contains(result.err, "  fix: ")) << result.err;
  }
  EXPECT_EQ(run_deltatune("data pack").code, 2);
}

TEST(DataShow, MarksExactlyWhatTheAssistantSays) {
  ScratchFolder folder;
  const ProgramResult result =
      run_deltatune("data show" + with_data(folder.write("rows.jsonl", one_row)), "NO_COLOR=1");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "assistant\n\u00abNo.<|im_end|>\u00bb\n")) << result.out;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << "a message must not steer the terminal";
  EXPECT_TRUE(contains(result.out, "\\x1b[31m"));
}

TEST(DataShow, ReadsEverySchemaAndSaysWhich) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"messages",
       R"({"id": 1, "messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "No."}]})"},
      {"sharegpt",
       R"({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "No."}]})"},
      {"alpaca", R"({"instruction": "Q", "input": "", "output": "No."})"},
      {"prompt_completion", R"({"prompt": "Q", "completion": "No."})"}};
  ScratchFolder folder;
  for (const auto& [schema, row] : rows) {
    const std::string data = with_data(folder.write(schema + ".jsonl", row + "\n"));
    for (const std::string& wanted : {std::string("auto"), schema}) {
      const ProgramResult result = run_deltatune("data show --dataset-schema " + wanted + data, "NO_COLOR=1");
      ASSERT_EQ(result.code, 0) << result.err;
      EXPECT_TRUE(contains(result.out, "user\nQ<|im_end|>\n")) << result.out;
      EXPECT_TRUE(contains(result.out, "assistant\n\u00abNo.<|im_end|>\u00bb\n")) << result.out;
      EXPECT_TRUE(contains(result.err, "rows are read as " + schema + " (")) << result.err;
    }
    const std::string other = schema == "alpaca" ? "prompt_completion" : "alpaca";
    EXPECT_EQ(run_deltatune("data show --dataset-schema " + other + data).code, 3);
  }
  // Options that contradict each other are the user's mistake, not the row's.
  EXPECT_EQ(run_deltatune("data show --dataset-schema alpaca --messages-field x" +
                          with_data(folder.write("rows.jsonl", one_row)))
                .code,
            2);
}

TEST(DataShow, ColoursWhereAsked) {
  ScratchFolder folder;
  const ProgramResult result = run_deltatune("data show" + with_data(folder.write("rows.jsonl", one_row)),
                                             "NO_COLOR= CLICOLOR_FORCE=1");
  EXPECT_TRUE(contains(result.out, "\x1b[1;32mNo.<|im_end|>\x1b[0m")) << result.out;
}

TEST(DataShow, LabelsFollowTheMarks) {
  ScratchFolder folder;
  const ProgramResult result =
      run_deltatune("data show --json" + with_data(folder.write("rows.jsonl", one_row)));
  const json::Value row = json::parse(result.out, "stdout");
  const json::Array& ids = row.at("input_ids").as_array();
  const json::Array& labels = row.at("labels").as_array();
  const json::Array& pieces = row.at("pieces").as_array();
  ASSERT_EQ(ids.size(), labels.size());
  std::string trained;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (labels[i].as_integer() == -100) continue;
    EXPECT_EQ(labels[i].as_integer(), ids[i].as_integer());
    trained += pieces[i].as_string();
  }
  EXPECT_EQ(trained, "No.<|im_end|>");
}

TEST(DataShow, ShowsTokenisedRowsAndWhereTheyAreCut) {
  ScratchFolder folder;
  const std::string file =
      folder.write("rows.jsonl", "{\"input_ids\": [5, 6, 7, 8], \"labels\": [-100, 6, 7, -100]}\n");
  const ProgramResult result = run_deltatune("data show --max-length 2" + with_data(file), "NO_COLOR=1");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "4 tokens, 2 of them trained")) << result.out;
  EXPECT_TRUE(contains(result.out, "max_length 2 ends here")) << result.out;
}

TEST(DataShow, NamesTheRowThatIsWrong) {
  ScratchFolder folder;
  const std::string file = folder.write("rows.jsonl", std::string(one_row) + "{\"messages\": 3}\n");
  const ProgramResult bad = run_deltatune("data show --row 1" + with_data(file));
  EXPECT_EQ(bad.code, 3);
  EXPECT_TRUE(contains(bad.err, "rows.jsonl") && contains(bad.err, "line 2")) << bad.err;
  const ProgramResult beyond = run_deltatune("data show --row 9" + with_data(file));
  EXPECT_EQ(beyond.code, 2) << beyond.err;
  EXPECT_EQ(run_deltatune("data show" + with_data("missing.jsonl")).code, 3);
  EXPECT_EQ(run_deltatune("data show" + model_flag).code, 2) << "no dataset";
}

TEST(DataVerbs, TakeADatasetByItsOwnName) {
  const ScratchFolder folder;
  const std::string row =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"
      "\n";
  folder.write("wha1.jsonl", row);
  folder.write("y?z.jsonl", row);
  std::filesystem::create_directory(folder.path() / "q?d");
  folder.write("q?d/in.jsonl", row);
  for (const char* name : {"[w]ha1.jsonl", "y?z.jsonl", "q?d"}) {
    const ProgramResult result =
        run_deltatune("data check '" + std::string(name) + "'", "cd " + folder.path().string() + " &&");
    EXPECT_EQ(result.code, 0) << name << "\n" << result.out << result.err;
  }
  for (const char* verb : {"show", "stats", "pack"}) {
    const ProgramResult result = run_deltatune("data " + std::string(verb) + " " +
                                               (folder.path() / "wha1.jsonl").string() + model_flag);
    EXPECT_EQ(result.code, 0) << verb << "\n" << result.err;
  }
}

TEST(DataStats, CountsTheDemo) {
  const ProgramResult text =
      run_deltatune("data stats --max-tokens 512 --max-length 256" + with_data(demo + "/train.jsonl"));
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "steps"));
  const ProgramResult result =
      run_deltatune("data stats --json --max-tokens 512 --max-length 256" + with_data(demo + "/train.jsonl"));
  const json::Value stats = json::parse(result.out, "stdout");
  EXPECT_GT(stats.at("steps_per_epoch").as_integer(), 0);
}

TEST(DataStats, CountsMessagesByRoleAndNamesTheTemplate) {
  ScratchFolder folder;
  const std::string rows = folder.write(
      "rows.jsonl",
      R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]})"
      "\n" +
          std::string(one_row));
  for (const char* cache : {" --dataset-cache off", " --dataset-cache cache", " --dataset-cache cache"}) {
    const std::string where = std::string("cd ") + folder.path().string() + " &&";
    const ProgramResult result =
        run_deltatune("data stats --json" + std::string(cache) + with_data(rows), where);
    ASSERT_EQ(result.code, 0) << result.err;
    const json::Value stats = json::parse(result.out, "stdout");
    EXPECT_EQ(json::dump(stats.at("messages")), R"({"system": 1, "user": 2, "assistant": 2, "tool": 0})")
        << result.err;
    EXPECT_EQ(stats.at("chat_template").as_string(), demo + "/model/chat_template.jinja");
  }
  const ProgramResult text = run_deltatune("data stats" + with_data(rows));
  EXPECT_TRUE(contains(text.out, "system 1  user 2  assistant 2")) << text.out;
  EXPECT_TRUE(contains(text.out, "chat_template.jinja")) << text.out;
}

// Mistakes in keys stop before the dataset is looked at: its second row would stop it too, with 3.
TEST(DataStats, RefusesWeightsAndValSizeBeforeReadingARow) {
  ScratchFolder folder;
  const std::string rows = folder.write("rows.jsonl", std::string(one_row) + "{broken\n");
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"--dataset-weights 1 --dataset-weights 2", "2 weights for 1 dataset"},
      {"--dataset-weights -1", "is no weight"},
      {"--dataset-weights half", "is no weight"},
      {"--dataset-weights 0", "is no weight"},
      {"--dataset-weights nan", "is no weight"},
      {"--dataset-weights 1e-9", "less than one of a million"},
      {"--val-size 1.5", "neither a share nor a number of rows"},
      {"--val-size 100", "leaves none of at most"},
      {"--val-size -1", "val_size"}};
  for (const auto& [flags, what] : bad) {
    for (const char* verb : {"data stats ", "data pack ", "train --output-dir out --dry-run "}) {
      const ProgramResult result = run_deltatune(verb + flags + with_data(rows));
      EXPECT_EQ(result.code, 2) << verb << flags << result.err;
      EXPECT_TRUE(contains(result.err, what)) << verb << flags << result.err;
    }
  }
  // The same file without the mistake: its bad row is what stops.
  EXPECT_EQ(run_deltatune("data stats --val-size 1" + with_data(rows)).code, 3);
}

TEST(DataStats, ASecondStartTakesTheTokensFromTheCache) {
  ScratchFolder folder;
  const std::string command = "data stats --json --dataset-cache " + (folder / "cache").string();
  const std::string rows = folder.write("rows.jsonl", std::string(one_row) + "{}\n");
  const std::string skip = " --on-bad-row skip";
  const ProgramResult first = run_deltatune(command + skip + with_data(rows));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(contains(first.err, "tokens kept in")) << first.err;
  const ProgramResult second = run_deltatune(command + skip + with_data(rows));
  EXPECT_TRUE(contains(second.err, "tokens of 1 conversation from")) << second.err;
  EXPECT_EQ(second.out, first.out);
  // Template variables, masks and the rows themselves: other tokens.
  const ProgramResult other = run_deltatune(command + skip + " --train-on all" + with_data(rows));
  EXPECT_TRUE(contains(other.err, "tokens kept in")) << other.err;
  folder.write("rows.jsonl", std::string(one_row) + one_row);
  const ProgramResult changed = run_deltatune(command + skip + with_data(rows));
  EXPECT_TRUE(contains(changed.err, "tokens kept in")) << changed.err;
  EXPECT_NE(changed.out, first.out);
  const ProgramResult off = run_deltatune("data stats --json --dataset-cache off" + with_data(rows));
  EXPECT_EQ(off.out, changed.out);
}

TEST(DataCheck, NamesFortyBadRowsAndExitsWith3) {
  ScratchFolder folder;
  std::string text;
  const std::vector<testing_data::BadRow> bad = testing_data::bad_rows();
  for (const testing_data::BadRow& row : bad) text += row.text + "\n";
  const std::string file = folder.write("rows.jsonl", text + one_row);
  const ProgramResult result = run_deltatune("data check --json " + file + model_flag);
  EXPECT_EQ(result.code, 3) << result.err;
  std::istringstream lines(result.out);
  std::string line;
  for (size_t i = 0; i < bad.size(); ++i) {
    ASSERT_TRUE(std::getline(lines, line)) << i;
    const json::Value finding = json::parse(line, "stdout");
    EXPECT_EQ(finding.at("line").as_integer(), static_cast<int64_t>(i) + 1);
    EXPECT_EQ(finding.at("problem").as_string(), name_of(bad[i].problem));
    EXPECT_TRUE(finding.at("bad").as_bool());
  }
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_TRUE(contains(line, "control_token")) << line;  // of the good row
}

TEST(DataCheck, ADuplicateNamesTheLineThatItEquals) {
  ScratchFolder folder;
  const std::string a = folder.write("a.jsonl", "\n" + std::string(one_row));
  const std::string b =
      folder.write("b.json", "[" + std::string(one_row) + ", " + std::string(one_row) + "]");
  const ProgramResult result = run_deltatune("data check --json" + with_data(a) + " --dataset " + b);
  EXPECT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  std::vector<json::Value> duplicates;
  for (std::string line; std::getline(lines, line);) {
    json::Value finding = json::parse(line, "stdout");
    if (finding.find("problem") && finding.at("problem").as_string() == "duplicate")
      duplicates.push_back(finding);
  }
  ASSERT_EQ(duplicates.size(), 2u) << result.out;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(duplicates[i].at("file").as_string(), b);
    EXPECT_EQ(duplicates[i].at("line").as_integer(), static_cast<int64_t>(i) + 1);
    EXPECT_EQ(duplicates[i].at("equal_to").at("file").as_string(), a);
    EXPECT_EQ(duplicates[i].at("equal_to").at("line").as_integer(), 2);
  }
  const std::string text = run_deltatune("data check" + with_data(a) + " --dataset " + b).out;
  EXPECT_TRUE(contains(text, "b.json, row 2: equal to " + a + ", line 2")) << text;
}

TEST(DataCheck, WordsAndExitCodes) {
  ScratchFolder folder;
  const std::string good = folder.write("good.jsonl", one_row);
  const std::string bad = folder.write("bad.jsonl", std::string(one_row) + "{\"messages\": 3}\n");
  const ProgramResult fine = run_deltatune("data check " + good);
  EXPECT_EQ(fine.code, 0) << fine.err;
  EXPECT_TRUE(contains(fine.out, "rows were not rendered")) << fine.out;
  const ProgramResult wrong = run_deltatune("data check" + with_data(bad));
  EXPECT_EQ(wrong.code, 3) << wrong.err;
  EXPECT_TRUE(contains(wrong.out, "bad.jsonl, line 2") && contains(wrong.out, "fix: ")) << wrong.out;
  EXPECT_TRUE(contains(wrong.out, "2 in 1 file: 1 bad")) << wrong.out;
  EXPECT_EQ(run_deltatune("data check " + (folder / "missing.jsonl").string()).code, 3);
  EXPECT_EQ(run_deltatune("data check").code, 2);
}

TEST(DataRenderRows, SetReachesTheTemplate) {
  ScratchFolder folder;
  const std::string rows = folder.write("rows.jsonl", one_row);
  const std::string jinja = folder.write(
      "t.jinja",
      "{{ eos_token }}|{{ word }}|{{ flag is true }}{% for m in messages %}{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}");
  const ProgramResult result = run_deltatune("data render --chat-template " + jinja +
                                             " --set word=plain --set flag=true" + with_data(rows));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "|plain|True") && contains(result.out, "No.")) << result.out;
  EXPECT_FALSE(result.out.starts_with("|")) << "eos_token of tokenizer_config.json: " << result.out;
  EXPECT_EQ(run_deltatune("data render --set word" + with_data(rows)).code, 2);
}

TEST(DataTokenize, ControlTokensInTextNeedPermission) {
  const ProgramResult literal = run_deltatune("data tokenize --text '<|im_end|>'" + model_flag);
  const ProgramResult parsed =
      run_deltatune("data tokenize --parse-special-in-content --text '<|im_end|>'" + model_flag);
  ASSERT_EQ(literal.code, 0) << literal.err;
  EXPECT_GT(std::count(literal.out.begin(), literal.out.end(), ' '), 2);
  EXPECT_EQ(std::count(parsed.out.begin(), parsed.out.end(), ' '), 0) << parsed.out;
}

TEST(Doctor, NamesLibrariesMachineAndEnvironment) {
  const ProgramResult result = run_deltatune("doctor", "WORLD_SIZE=8 SECRET_TOKEN=abc");
  EXPECT_EQ(result.code, 0) << result.out;
  for (const char* word : {"OpenBLAS", "PCRE2", "memory", "gpu", "WORLD_SIZE=8"}) {
    EXPECT_TRUE(contains(result.out, word)) << word;
  }
  EXPECT_FALSE(contains(result.out, "SECRET_TOKEN"));
  const json::Value root = json::parse(run_deltatune("doctor --json").out, "stdout");
  for (const auto& [name, version] : root.at("libraries").as_object())
    EXPECT_FALSE(version.as_string().empty()) << name;
}

}  // namespace
}  // namespace deltatune
