// report.html: what is in the page, whatever is in the files. That a browser draws it: browser_test.cpp.
#include "observe/report.h"

#include <gtest/gtest.h>

#include "observe/run_files.h"

namespace deltatune {
namespace {

// The page's data element, parsed.
json::Value data_of(const std::string& page) {
  const std::string open = "<script id=\"data\" type=\"application/json\">";
  const size_t start = page.find(open) + open.size();
  return json::parse(page.substr(start, page.find("</script>", start) - start), "page");
}

json::Value run_of(const ScratchFolder& folder) {
  write_report(folder / "");
  return data_of(slurp(folder / "report.html")).at("runs").as_array().at(0);
}

const json::Array& values(const json::Value& run, const char* curve, const char* axis = "y") {
  return run.at("curves").at(curve).at(axis).as_array();
}

TEST(Report, IsSelfContained) {
  ScratchFolder folder;
  write_run(folder / "");
  const json::Value run = run_of(folder);
  const std::string page = slurp(folder / "report.html");
  for (const char* outside : {"src=\"http", "href=\"http", "url(http", "@import", "{{title", "{{data"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(page.find("Permission is hereby granted"), std::string::npos)
      << "licence of the plotting library";
  EXPECT_EQ(values(run, "loss").size(), 200u);
  EXPECT_EQ(values(run, "eval_loss").size(), 10u);
  EXPECT_EQ(run.at("state").as_string(), "done");
}

TEST(Report, ShowsWhatTheFilesSay) {
  ScratchFolder folder;
  write_run(folder / "", {.before = true});
  const json::Value run = run_of(folder);
  EXPECT_EQ(run.at("name").as_string(), "a run");
  EXPECT_EQ(run.at("profile").at("ops").as_array().size(), 4u);
  EXPECT_EQ(run.at("profile").at("ops").as_array()[0].as_array()[2].as_string(), "backward")
      << "largest first";
  EXPECT_DOUBLE_EQ(run.at("profile").at("untraced_ms").as_number(), 630);
  EXPECT_DOUBLE_EQ(run.at("profile_before").at("step_ms").as_number(), 1280);
  EXPECT_EQ(run.at("memory").at("regions").as_array().size(), 2u);
  EXPECT_EQ(run.at("telemetry").at("devices").as_array().size(), 2u);
  const json::Array& settings = run.at("settings").as_array();
  ASSERT_EQ(settings.size(), 4u);
  EXPECT_EQ(settings[0].as_array()[2].as_string(), "flag --lr");
  EXPECT_EQ(settings[2].as_array()[1].as_string(), R"(["a # b"])");
  EXPECT_EQ(settings[2].as_array()[2].as_string(), "file cfg.yaml:4");
  // Seconds of a step are cut into parts without rest.
  const json::Array& split = run.at("split").at("y").as_array();
  double sum = 0;
  for (const json::Value& column : split) sum += column.as_array()[0].as_number();
  EXPECT_NEAR(sum, 0.8 + 0.05 * std::cos(1.0 / 7), 1e-4);
}

TEST(Report, TextFromTheRunStaysText) {
  ScratchFolder folder;
  write_run(folder / "", {.steps = 3, .run_name = "<img src=x onerror=alert(1)>"});
  std::ofstream(folder / "metrics.jsonl", std::ios::app)
      << R"({"event": "warning", "step": 2, "message": "</script><script>alert(1)</script>"})"
      << "\n";
  const json::Value run = run_of(folder);
  const std::string page = slurp(folder / "report.html");
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(run.at("warnings").as_array()[0].as_string(), "step 2: </script><script>alert(1)</script>");
}

TEST(Report, WritesFromAnOutputFolderAtAnyTime) {
  ScratchFolder folder;
  write_report(folder / "");
  EXPECT_EQ(
      data_of(slurp(folder / "report.html")).at("runs").as_array().at(0).at("steps_logged").as_integer(), 0);
  write_text(folder / "metrics.jsonl", step_text(1, 10) + "\n" + step_text(2, 10).substr(0, 50));
  EXPECT_EQ(values(run_of(folder), "loss").size(), 1u);
  EXPECT_EQ(run_of(folder).at("state").as_string(), "running");
}

TEST(Report, LongRunsStaySmallAndKeepTheirExtremes) {
  ScratchFolder folder;
  write_run(folder / "", {.steps = 10000, .devices = 8});
  std::string text = slurp(folder / "metrics.jsonl");
  const std::string spike = "\"step\": 4321, ";
  const size_t at = text.find("\"loss\": ", text.find(spike));
  text.replace(at, 16, "\"loss\": 99.12345");
  write_text(folder / "metrics.jsonl", text);
  const json::Value run = run_of(folder);
  EXPECT_LT(std::filesystem::file_size(folder / "report.html"), 2000000u);
  const json::Array& x = values(run, "loss", "x");
  const json::Array& y = values(run, "loss");
  EXPECT_LE(x.size(), 2000u);
  EXPECT_EQ(x.front().as_number(), 1);
  EXPECT_EQ(x.back().as_number(), 10000);
  bool found = false;
  for (size_t i = 0; i < x.size(); ++i) found = found || (x[i].as_number() == 4321 && y[i].as_number() > 99);
  EXPECT_TRUE(found) << "the spike at step 4321";
  EXPECT_EQ(run.at("steps_logged").as_integer(), 10000);
}

TEST(Report, TwoRunsAreInOnePage) {
  ScratchFolder folder;
  write_run(folder / "first", {.run_name = "slow"});
  write_run(folder / "second", {.speed = 2, .run_name = "fast"});
  RunFolder a(folder / "first"), b(folder / "second");
  a.refresh();
  b.refresh();
  const json::Value runs[] = {report_data(a, {}), report_data(b, {})};
  const json::Value data = data_of(report_html(runs, "slow and fast"));
  ASSERT_EQ(data.at("runs").as_array().size(), 2u);
  EXPECT_EQ(data.at("runs").as_array()[1].at("name").as_string(), "fast");
}

// Bytes that no program of ours would write.
TEST(Report, HostileFilesAreNotedOrPassedOver) {
  ScratchFolder folder;
  std::string text = step_text(1, 10) + "\n";
  text += "{\"event\": \"step\", \"step\": 2, \"loss\": NaN}\n";
  text += "{\"event\": \"step\", \"step\": 3, \"loss\": Infinity}\n";
  text += "{\"event\": \"step\", \"step\": 4, \"loss\": 1e999}\n";
  text += "{\"event\": \"step\", \"step\": 5, \"loss\": 1e300}\n";
  text += "{\"event\": \"step\", \"step\": 6, \"loss\": null}\n";
  text +=
      "{\"event\": \"step\"}\n{\"event\": \"step\", \"step\": \"seven\"}\n{\"event\": 7}\n[]\n\n\xff\xfe\n";
  text +=
      "{\"event\": \"step\", \"step\": -1e18, \"loss\": 3}\n{\"event\": \"step\", \"step\": 1e300, \"loss\": "
      "3}\n";
  text += "{\"event\": \"warning\", \"message\": \"\xff\"}\n";
  text += "{\"event\": \"warning\", \"message\": \"" + std::string(500000, 'm') + "\"}\n";
  text += "{\"event\": \"" + std::string(500000, 'n') + "\", \"step\": 8}\n";
  text += "{\"event\": \"telemetry\", \"step\": 9, \"devices\": {\"a\": 1}}\n";
  text +=
      "{\"event\": \"telemetry\", \"step\": 9, \"devices\": [7, {\"index\": -1}, {\"index\": 1e99}, "
      "{\"index\": 0, \"power_w\": \"hot\", \"throttle\": [1, {}]}]}\n";
  text += "{\"event\": \"finding\", \"title\": 7, \"gain\": \"much\"}\n";
  text += std::string(5000, '[') + "\n" + std::string(3 << 20, 'x') + "\n" + std::string(1000, '\0') + "\n";
  text += step_text(10, 10) + "\n{\"event\": \"step\", \"step\": 11, \"lo";
  write_text(folder / "metrics.jsonl", text);
  write_text(folder / "run.json",
             "{\"run_name\": \"x\", \"plan\": {\"regions\": [1, {\"name\": 5, \"bytes\": \"many\"}, "
             "{\"bytes\": -4}]}, \"data\": [1], \"exit\": 3}");
  write_text(folder / "profile.json",
             "{\"ops\": [null, 3, {\"op\": 5, \"device_ms\": \"x\"}, {\"op\": \"y\", \"device_ms\": 1e308}], "
             "\"communication\": 7, \"gaps\": {}}");
  write_text(folder / "profile-before.json", "{\"ops\": ");
  write_text(folder / "config.resolved.yaml", "a: [1\n");
  const json::Value run = run_of(folder);
  const json::Array& x = values(run, "loss", "x");
  ASSERT_EQ(x.size(), 4u) << json::dump(run.at("curves").at("loss"));
  EXPECT_EQ(x.back().as_number(), 10);
  EXPECT_TRUE(values(run, "loss")[1].is_null());
  EXPECT_GE(run.at("notes").as_array().size(), 3u);
  EXPECT_LT(std::filesystem::file_size(folder / "report.html"), 400000u);
}

TEST(Report, ManyMessagesDevicesAndOpsAreCutAndCounted) {
  ScratchFolder folder;
  std::string text = telemetry_text(1, 500) + "\n" + step_text(1, 10) + "\n";
  for (int i = 0; i < 5000; ++i)
    text += format(R"({{"event": "nan", "step": {}, "message": "not finite"}})", i) + "\n";
  write_text(folder / "metrics.jsonl", text);
  std::string ops;
  for (int i = 0; i < 20000; ++i)
    ops += format(R"({}{{"op": "op{}", "device_ms": {}}})", i == 0 ? "" : ", ", i, i);
  write_text(folder / "profile.json", "{\"ops\": [" + ops + "]}");
  const json::Value run = run_of(folder);
  EXPECT_EQ(run.at("warnings").as_array().size() + static_cast<size_t>(run.at("more_warnings").as_integer()),
            5000u);
  EXPECT_EQ(run.at("profile").at("ops").as_array().size() +
                static_cast<size_t>(run.at("profile").at("more_ops").as_integer()),
            20000u);
  EXPECT_LE(run.at("telemetry").at("devices").as_array().size(), 16u);
  EXPECT_LT(std::filesystem::file_size(folder / "report.html"), 600000u);
}

TEST(Report, TitlesOfAnyBytesAreShown) {
  ScratchFolder folder;
  const std::filesystem::path odd = folder / "run-\xff\xfe<b>";
  write_run(odd, {.steps = 1, .run_name = ""});
  write_report(odd);
  EXPECT_NE(slurp(odd / "report.html").find("<title>run-??&lt;b&gt;</title>"), std::string::npos);
}

}  // namespace
}  // namespace deltatune
