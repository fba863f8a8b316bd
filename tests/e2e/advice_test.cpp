// What a run says about itself: findings in the log, in metrics.jsonl and in the report, also when it was
// killed or has diverged; and whether following the advice does what was predicted, in figures that do not
// depend on time.
#include <gtest/gtest.h>

#include "e2e/runs.h"

namespace deltatune {
namespace {

std::vector<std::string> rules(const std::vector<json::Value>& findings) {
  std::vector<std::string> out;
  for (const json::Value& finding : findings) out.push_back(finding.at("rule").as_string());
  return out;
}

double fill_of(const fs::path& run) {
  double real = 0, slots = 0;
  for (const json::Value& event : events(run, "step")) {
    real += event.at("real_tokens").as_number();
    slots += event.at("tokens").as_number();
  }
  return real / slots;
}

TEST(Advice, PaddedRowsAreFoundAndPackedOnesKeepThePrediction) {
  TempFolder folder("advice-padding");
  write_small_model(folder / "model");
  const Keys padded = with(small_keys(folder / "model", folder / "padded"), {{"batching", "padded"}});
  const ProgramResult result = run_verb("train", padded);
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<json::Value> findings = events(folder / "padded", "finding");
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].at("rule").as_string(), "padding") << json::dump(findings[0]);
  EXPECT_NE(result.err.find("advice 1: Slots are computed that hold no token; batching: packed"),
            std::string::npos)
      << result.err;
  EXPECT_NE(slurp(folder / "padded" / "report.html").find("Slots are computed that hold no token"),
            std::string::npos);

  const Keys packed =
      with(padded, {{"output_dir", (folder / "packed").string()},
                    {findings[0].at("key").as_string(), findings[0].at("value").as_string()}});
  ASSERT_EQ(run_verb("train", packed).code, 0);
  // Of time-dependent rules a busy machine may have its own: padding is what has to be gone.
  for (const std::string& rule : rules(events(folder / "packed", "finding"))) EXPECT_NE(rule, "padding");
  // Slots cost the same: tokens/s go with the fill.
  const double gain = 100 * (fill_of(folder / "packed") / fill_of(folder / "padded") - 1);
  EXPECT_GE(gain, findings[0].at("gain_low").as_number());
  EXPECT_LE(gain, findings[0].at("gain_high").as_number());
}

// With a line every five steps the fill is still that of all steps.
TEST(Advice, PaddingIsThatOfAllStepsHoweverFewAreLogged) {
  TempFolder folder("advice-logging");
  write_small_model(folder / "model");
  const auto finding = [&](const char* name, const char* every) {
    const Keys keys =
        with(small_keys(folder / "model", folder / name), {{"batching", "padded"}, {"logging_steps", every}});
    EXPECT_EQ(run_verb("train", keys).code, 0);
    const std::vector<json::Value> findings = events(folder / name, "finding");
    for (const json::Value& f : findings) {
      if (f.at("rule").as_string() == "padding") return f;
    }
    return json::Value();
  };
  const json::Value few = finding("few", "5"), all = finding("all", "1");
  ASSERT_FALSE(few.is_null() || all.is_null());
  EXPECT_EQ(few.at("confidence").as_string(), "high");
  double slots = 0, told = 0;
  for (const json::Value& event : events(folder / "all", "step")) slots += event.at("tokens").as_number();
  for (const json::Value& event : events(folder / "few", "step"))
    told += event.find("interval_tokens") ? event.at("interval_tokens").as_number()
                                          : event.at("tokens").as_number();
  EXPECT_EQ(told, slots);
  const double fill = fill_of(folder / "all");
  EXPECT_LE(few.at("gain_low").as_number(), 100 * (0.97 / fill - 1));
  EXPECT_GE(few.at("gain_high").as_number(), 100 * (0.97 / fill - 1));
}

TEST(Advice, DamagedFilesAreNamedAndNotCalledAbsent) {
  TempFolder folder("advice-damaged");
  write_small_model(folder / "model");
  const Keys keys = small_keys(folder / "model", folder / "out");
  ASSERT_EQ(run_verb("train", keys).code, 0);
  const auto asked = [&] { return run_deltatune("advise '" + (folder / "out").string() + "'").out; };
  const auto says = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  };
  const auto is_silent_of = [](const std::string& text, const char* part) {
    EXPECT_EQ(text.find(part), std::string::npos) << part << "\n" << text;
  };
  says(asked(), "missing:   no profile: ");
  write_text(folder / "out/profile.json", "{\"ops\": [");
  std::string text = asked();
  says(text, "damaged:   profile.json cannot be read: malformed JSON");
  says(text, "line 1, column 10");
  says(text, "write it again: deltatune profile");
  is_silent_of(text, "no profile");
  write_text(folder / "out/profile.json", R"({"ops": {"matmul": 1}})");
  says(asked(), "damaged:   profile.json is no profile: it has no list ops or no step_ms; write it again");
  fs::remove(folder / "out/profile.json");
  write_text(folder / "out/config.resolved.yaml", "learning_rate: [1, 2\nseed: 3\n");
  text = asked();
  says(text, "damaged:   config.resolved.yaml cannot be read: ");
  says(text, "when it is resumed");
  is_silent_of(text, "no plan");
  write_text(folder / "out/config.resolved.yaml", "learning_rat: 1\n");  // YAML, but no configuration
  says(asked(), "no plan: unknown key");
}

TEST(Advice, RecomputeForNothingIsFoundByAProfile) {
  TempFolder folder("advice-recompute");
  write_small_model(folder / "model");
  const Keys keys = with(small_keys(folder / "model", folder / "out"), {{"recompute", "block"}});
  ASSERT_EQ(run_verb("train", keys).code, 0);
  ASSERT_EQ(run_verb("profile", keys).code, 0);
  const ProgramResult result = run_deltatune("advise '" + (folder / "out").string() + "' --json");
  const json::Value advice = json::parse(result.out, "advise");
  const std::vector<std::string> names = rules(advice.at("findings").as_array());
  const auto at = std::find(names.begin(), names.end(), "recompute");
  ASSERT_NE(at, names.end()) << result.out;
  const json::Value& finding = advice.at("findings").as_array()[static_cast<size_t>(at - names.begin())];
  EXPECT_EQ(finding.at("value").as_string(), "none");
}

TEST(Advice, AKilledRunHasAReportAndCanBeAskedAfterwards) {
  TempFolder folder("advice-killed");
  write_small_model(folder / "model");
  Child child(folder, with(small_keys(folder / "model", folder / "out"), {{"max_steps", "100000"}}));
  ASSERT_TRUE(child.until([&] { return events(folder / "out", "step").size() >= 3; })) << child.log();
  child.signal(SIGKILL);
  child.wait();
  const std::string page = slurp(folder / "out" / "report.html");
  EXPECT_NE(page.find("\"state\": \"running\""), std::string::npos);
  EXPECT_EQ(run_deltatune("advise '" + (folder / "out").string() + "'").code, 0);
  EXPECT_EQ(run_deltatune("report '" + (folder / "out").string() + "'").code, 0);
}

TEST(Advice, ARunThatDivergesSaysSoFirst) {
  TempFolder folder("advice-diverged");
  write_small_model(folder / "model");
  const Keys first =
      with(small_keys(folder / "model", folder / "first"), {{"max_steps", "1"}, {"dtype", "f32"}});
  ASSERT_EQ(run_verb("train", first).code, 0);
  make_it_overflow(folder / "first");
  const Keys keys =
      with(small_keys(folder / "first", folder / "out"), {{"init", "pretrained"}, {"dtype", "f32"}});
  EXPECT_EQ(run_verb("train", keys).code, 6);
  const std::vector<json::Value> findings = events(folder / "out", "finding");
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].at("rule").as_string(), "loss_trouble");
  EXPECT_EQ(findings[0].at("severity").as_string(), "problem");
  EXPECT_NE(findings[0].at("evidence").as_string().find("where it began: layer 0, forward"),
            std::string::npos)
      << json::dump(findings[0]);
  const std::string page = slurp(folder / "out" / "report.html");
  EXPECT_NE(page.find("The loss or a gradient is not finite"), std::string::npos);
  EXPECT_NE(page.find("it began in layer 0, forward"), std::string::npos);
  EXPECT_NE(page.find("where it began: layer 0, forward"), std::string::npos);
}

}  // namespace
}  // namespace deltatune
