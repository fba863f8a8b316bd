// report.html in headless Chromium: drawn, silent, offline, light and dark, on paper and on a phone.
#include <gtest/gtest.h>

#include "observe/report.h"
#include "observe/run_files.h"

namespace deltatune {
namespace {

bool has(const char* program) {
  return std::system(format("command -v {} >/dev/null 2>&1", program).c_str()) == 0;
}

// What browser_check.py saw of the page.
json::Value opened(const ScratchFolder& folder, const std::filesystem::path& page) {
  const std::string out = (folder / "seen.json").string();
  const std::string command = format("timeout 240 python3 '{}/tests/observe/browser_check.py' '{}' >'{}'",
                                     DELTATUNE_SOURCE_DIR, page.string(), out);
  EXPECT_EQ(std::system(command.c_str()), 0);
  return json::parse(slurp(out), "browser_check");
}

void expect_quiet(const json::Value& seen) {
  EXPECT_EQ(json::dump(seen.at("console")), "[]");
  const json::Array& requests = seen.at("requests").as_array();
  EXPECT_EQ(requests.size(), 1u) << json::dump(seen.at("requests"));  // the page itself
}

void expect_drawn(const json::Value& view, size_t charts) {
  const json::Array& list = view.at("charts").as_array();
  EXPECT_EQ(list.size(), charts);
  for (const json::Value& chart : list) {
    EXPECT_GT(chart.at("pixels").as_number(), 500) << json::dump(chart);
    EXPECT_GT(chart.at("colours").as_number(), 5) << json::dump(chart);
  }
  EXPECT_LE(view.at("page_width").as_number(), view.at("window_width").as_number()) << "nothing sticks out";
}

#define NEEDS_A_BROWSER()                                                    \
  if (!has("chromium") && !has("chromium-browser") && !has("google-chrome")) \
    GTEST_SKIP() << "no chromium on this machine";                           \
  if (!has("python3")) GTEST_SKIP() << "no python3 on this machine"

TEST(Browser, DrawsARun) {
  NEEDS_A_BROWSER();
  ScratchFolder folder;
  write_run(folder / "run", {.before = true});
  RunFolder run(folder / "run");
  run.refresh();
  write_report(
      run,
      {json::parse(R"({"rule": "padding", "title": "A third of the slots is padding", "evidence": "fill 0.66",
      "key": "batching", "value": "packed", "gain": 48, "gain_low": 40, "gain_high": 50, "confidence": "high", "severity": "speed"})",
                   "finding")});
  const json::Value seen = opened(folder, folder / "run" / "report.html");
  expect_quiet(seen);
  const json::Value& views = seen.at("views");
  for (const char* view : {"light", "dark", "phone", "phone-dark", "switched", "after-print"}) {
    SCOPED_TRACE(view);
    expect_drawn(views.at(view), 12);  // loss, rate, norm, throughput, achievement, split, six of the devices
    EXPECT_EQ(views.at(view).at("findings").as_integer(), 1);
  }
  EXPECT_EQ(views.at("light").at("ground").as_string(), "rgb(245, 246, 248)");
  EXPECT_EQ(views.at("dark").at("ground").as_string(), "rgb(14, 17, 22)");
  EXPECT_EQ(views.at("switched").at("ground").as_string(), "rgb(14, 17, 22)")
      << "dark by the switch on a light system";
  EXPECT_EQ(views.at("after-print").at("ground").as_string(), "rgb(245, 246, 248)");
  // Zooming one chart zooms all, a double click shows everything again.
  const json::Value& use = seen.at("use");
  EXPECT_TRUE(use.at("hover").as_string().starts_with("step ")) << use.at("hover").as_string();
  EXPECT_NE(json::dump(use.at("zoomed")), json::dump(use.at("before")));
  const json::Array& zoomed = use.at("zoomed").as_array();
  for (const json::Value& range : zoomed) EXPECT_EQ(json::dump(range), json::dump(zoomed[0]));
  EXPECT_EQ(json::dump(use.at("reset")), json::dump(use.at("before")));
  EXPECT_GT(seen.at("pdf_bytes").as_number(), 20000);
}

TEST(Browser, DrawsTwoRunsSideBySide) {
  NEEDS_A_BROWSER();
  ScratchFolder folder;
  write_run(folder / "first", {.devices = 0});
  write_run(folder / "second", {.devices = 0, .speed = 2});
  RunFolder a(folder / "first"), b(folder / "second");
  a.refresh();
  b.refresh();
  const json::Value runs[] = {report_data(a, {}), report_data(b, {})};
  write_text(folder / "page.html", report_html(runs, "both"));
  const json::Value seen = opened(folder, folder / "page.html");
  expect_quiet(seen);
  expect_drawn(seen.at("views").at("light"), 7);
  expect_drawn(seen.at("views").at("phone"), 7);
}

TEST(Browser, ShowsAFolderOfNothingAndOneOfNonsense) {
  NEEDS_A_BROWSER();
  ScratchFolder folder;
  std::filesystem::create_directory(folder / "empty");
  write_report(folder / "empty");
  json::Value seen = opened(folder, folder / "empty" / "report.html");
  expect_quiet(seen);
  EXPECT_GT(seen.at("views").at("light").at("text").as_number(), 50);

  std::filesystem::create_directory(folder / "odd");
  std::string text =
      R"({"event": "step", "step": 1, "loss": 1e30, "time_s": 1e8, "tokens": -5, "mfu": 7, "fill": null})"
      "\n";
  text +=
      R"({"event": "step", "step": 1e12, "loss": -1e30, "grad_norm": 0, "time_s": 1e-300, "tokens": 1e300})"
      "\n";
  text += R"({"event": "step", "step": 3, "loss": 1, "time_s": -1})"
          "\n";
  text += R"({"event": "warning", "message": "</script><script>throw 1</script>"})"
          "\n";
  text +=
      R"({"event": "telemetry", "step": 3, "devices": [{"index": 5, "power_w": -1}, {"index": 5, "name": "<b>"}]})"
      "\n";
  write_text(folder / "odd" / "metrics.jsonl", text);
  write_text(
      folder / "odd" / "run.json",
      R"({"plan": {"regions": [{"name": "x", "bytes": 1e300}], "total_bytes": 0}, "data": {"histogram": [[1, -1], "x"], "a": {"b": {"c": [1]}}}})");
  write_text(folder / "odd" / "profile.json",
             R"({"ops": [{}, {"op": "a", "calls": 0, "device_ms": 0, "roofline": -3}], "gaps": [{}]})");
  write_report(folder / "odd");
  seen = opened(folder, folder / "odd" / "report.html");
  expect_quiet(seen);
  EXPECT_GT(seen.at("views").at("light").at("charts").as_array().size(), 2u);
}

}  // namespace
}  // namespace deltatune
