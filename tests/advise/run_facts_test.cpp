// Facts of an output folder: the fill of all steps, of a sample of them; damaged files; hostile figures.
#include "advise/run_facts.h"

#include <gtest/gtest.h>

#include "advise/advise.h"
#include "advise/rules.h"
#include "base/error.h"
#include "observe/run_files.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

// Every fifth step is nearly full, the others are half empty; `sums`: events tell of all.
RunFacts logged_every_fifth(bool sums, int64_t events) {
  ScratchFolder folder;
  std::string text;
  for (int64_t i = 1; i <= events; ++i) {
    text +=
        format(R"({{"event": "step", "step": {}, "loss": 1, "time_s": 1, "tokens": 1000, "real_tokens": {})",
               5 * i, 880 + i % 3);
    if (sums)
      text += format(R"(, "interval_steps": 5, "interval_tokens": 5000, "interval_real_tokens": 2880)");
    text += "}\n";
  }
  write_text(folder / "metrics.jsonl", text);
  write_text(folder / "config.resolved.yaml", "batching: padded\n");
  RunFolder run(folder / "");
  run.refresh();
  return facts_of(run);
}

TEST(RunFacts, TheFillIsThatOfAllSteps) {
  const RunFacts facts = logged_every_fifth(true, 40);
  EXPECT_DOUBLE_EQ(facts.steps.fill, 0.576);
  EXPECT_DOUBLE_EQ(facts.steps.slots, 1000);
  EXPECT_EQ(facts.steps.told_steps, facts.steps.run_steps);
  EXPECT_EQ(facts.steps.fill_error, 0);
  const auto finding = rules::padding(facts);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->confidence, Confidence::high);
  EXPECT_NEAR(finding->gain->expected, 100 * (0.97 / 0.576 - 1), 1e-9);
}

TEST(RunFacts, TheFillOfASampleSaysSo) {
  const RunFacts facts = logged_every_fifth(false, 40);
  EXPECT_EQ(facts.steps.told_steps, 39);
  EXPECT_EQ(facts.steps.run_steps, 191);  // steps 10 to 200
  const auto finding = rules::padding(facts);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->confidence, Confidence::low);
  EXPECT_NE(finding->evidence.find("measured on 39 of 191 steps only"), std::string::npos)
      << finding->evidence;
  EXPECT_GT(facts.steps.fill_error, 0);
  // A few steps say nothing of their spread: a quarter up and down.
  const RunFacts few = logged_every_fifth(false, 3);
  EXPECT_DOUBLE_EQ(few.steps.fill_error, few.steps.fill / 4);
  const auto guess = rules::padding(few);
  EXPECT_EQ(guess->gain->low, 0);
  EXPECT_GT(guess->gain->high, 40);
}

// A profile without the time of a step says nothing of shares; an op without a name is none.
TEST(RunFacts, AProfileThatLacksWhatRulesNeedIsNone) {
  EXPECT_FALSE(profile_facts(json::parse(R"({"ops": []})", "profile")));
  EXPECT_FALSE(profile_facts(json::parse(R"({"ops": [], "step_ms": "9"})", "profile")));
  const auto facts = profile_facts(json::parse(
      R"({"step_ms": 9, "ops": [{"device_ms": 1}, {"op": 7, "device_ms": 1}, {"op": "add", "device_ms": 1}]})",
      "profile"));
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->ops.size(), 1u);
}

// What stands in the place of a file and is none is named, and never waited for.
TEST(RunFacts, FilesThatAreNoFilesAreNamed) {
  ScratchFolder folder;
  write_run(folder / "run");
  for (const char* name : {"profile.json", "config.resolved.yaml", "run.json"}) {
    std::filesystem::remove(folder / "run" / name);
    std::filesystem::create_directory(folder / "run" / name);
  }
  std::filesystem::create_symlink("/dev/zero", folder / "run" / "profile-before.json");
  RunFolder run(folder / "run");
  run.refresh();
  const Advice advice = advise(facts_of(run));
  EXPECT_EQ(advice.damaged.size(), 4u);
  for (const std::string& note : advice.damaged)
    EXPECT_NE(note.find("cannot be read: it is no file; take it away"), std::string::npos) << note;
  for (const std::string& note : advice.missing)
    EXPECT_EQ(note.find("no profile"), std::string::npos) << note;
  EXPECT_THROW(check_run_folder(folder / "run/metrics.jsonl"), Error);
}

TEST(RunFacts, SumsOfAnyValueDoNoHarm) {
  for (const char* sums :
       {R"("interval_steps": 1e300, "interval_tokens": 1e308, "interval_real_tokens": 1e308)",
        R"("interval_steps": -3, "interval_tokens": 5, "interval_real_tokens": 1)",
        R"("interval_steps": "5", "interval_tokens": null, "interval_real_tokens": [])",
        R"("interval_steps": 5, "interval_tokens": 1, "interval_real_tokens": 9e9)"}) {
    ScratchFolder folder;
    std::string text;
    for (int i = 1; i < 9; ++i)
      text += format(R"({{"event": "step", "step": {}, "time_s": 1, "tokens": 10, "real_tokens": 5, {}}})", i,
                     sums) +
              "\n";
    write_text(folder / "metrics.jsonl", text);
    RunFolder run(folder / "");
    run.refresh();
    const RunFacts facts = facts_of(run);
    EXPECT_EQ(facts.steps.steps, 7) << sums;
    if (const auto finding = rules::padding(facts)) {
      EXPECT_TRUE(std::isfinite(finding->gain->expected) && finding->gain->expected >= 0) << sums;
      EXPECT_LE(finding->gain->low, finding->gain->expected) << sums;
    }
  }
}

RunFacts with_events(const std::string& metrics) {
  ScratchFolder folder;
  write_text(folder / "metrics.jsonl", metrics);
  RunFolder run(folder / "");
  run.refresh();
  return facts_of(run);
}

TEST(RunFacts, WhereItBeganIsOfTheFirstEventThatKnowsALayer) {
  const std::string vague = R"({"event": "nan", "step": 3, "where": "an earlier row"})"
                            "\n";
  const std::string other = R"({"event": "nan", "step": 4})"
                            "\n";
  const std::string exact = R"({"event": "nan", "step": 5, "where": "layer 2, forward", "layer": 2})"
                            "\n";
  RunFacts facts = with_events(vague + other + exact + exact);
  EXPECT_EQ(facts.nonfinite_steps, 4);
  EXPECT_EQ(facts.nonfinite_step, 3);
  EXPECT_EQ(facts.nonfinite_where, "layer 2, forward (step 5)");
  facts = with_events(exact + vague);  // a resumed run: step 5, then step 3 again
  EXPECT_EQ(facts.nonfinite_step, 3);
  EXPECT_EQ(facts.nonfinite_where, "layer 2, forward (step 5)");
  EXPECT_EQ(with_events(exact + exact).nonfinite_where, "layer 2, forward");
  EXPECT_EQ(with_events(vague + other).nonfinite_where, "an earlier row");
  EXPECT_EQ(with_events(other + vague).nonfinite_where, "an earlier row");
  std::string many;
  for (int i = 0; i < 100; ++i) many += other;
  facts = with_events(many + exact + other);
  EXPECT_EQ(facts.nonfinite_steps, 102);
  EXPECT_EQ(facts.nonfinite_where, "layer 2, forward (step 5)");
  EXPECT_EQ(facts.nonfinite_step, 4);
  for (const char* layer : {"\"embed\"", "null", "[3]", "-3", "1e300", "true"}) {
    const std::string odd = format("{{\"event\": \"nan\", \"step\": 1, \"layer\": {}}}\n", layer);
    EXPECT_EQ(with_events(odd + many + exact).nonfinite_where, "layer 2, forward (step 5)") << layer;
  }
}

TEST(RunFacts, AStepThatIsNoneIsNotPrinted) {
  for (const char* step : {"1e300", "-5", "\"3\"", "null"}) {
    const auto finding =
        rules::loss_trouble(with_events(format(R"({{"event": "nan", "step": {}}})", step) + "\n"));
    ASSERT_TRUE(finding) << step;
    EXPECT_EQ(finding->evidence, "1 step") << step;
  }
}

}  // namespace
}  // namespace deltatune
