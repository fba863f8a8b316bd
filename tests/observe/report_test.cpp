// run.json and report.html. Whether a browser draws the curves is tried with a headless Chromium where there
// is one.
#include "observe/report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cli/run_binary.h"
#include "observe/metrics.h"
#include "observe/run_info.h"

namespace deltatune {
namespace {

// The page's data element, parsed.
json::Value data_of(const std::string& page) {
  const std::string open = "<script id=\"data\" type=\"application/json\">";
  const size_t start = page.find(open) + open.size();
  return json::parse(page.substr(start, page.find("</script>", start) - start), "page");
}

std::vector<json::Value> run_of(int64_t steps) {
  std::vector<json::Value> lines;
  lines.push_back(json::parse(R"({"event": "start", "model": "tiny", "parameters": 4300800})", "test"));
  for (int64_t i = 1; i <= steps; ++i) {
    StepLine line;
    line.step = i;
    line.total_steps = steps;
    line.loss = 1 + 4 * std::exp(-static_cast<double>(i) / 40) + 0.05 * std::sin(static_cast<double>(i));
    line.grad_norm = 1.0 / static_cast<double>(i);
    line.learning_rate = 1e-3 * (1 - static_cast<double>(i) / static_cast<double>(steps));
    line.tokens_per_s = 2000 + 100 * std::cos(static_cast<double>(i) / 7);
    lines.push_back(step_event(line));
    if (i % 20 == 0) {
      json::Value eval;
      eval.set("event", "eval");
      eval.set("step", i);
      eval.set("eval_loss", line.loss + 0.2);
      lines.push_back(eval);
    }
  }
  return lines;
}

TEST(Report, IsSelfContained) {
  const std::string page = report_html(run_of(100), json::Value(), "a run");
  for (const char* outside : {"src=\"http", "href=\"http", "url(http", "<link", "{{title", "{{data"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  EXPECT_NE(page.find("Permission is hereby granted"), std::string::npos)
      << "licence of the plotting library";
  const json::Value data = data_of(page);
  EXPECT_EQ(data.at("series").at("loss").as_array().size(), 100u);
  EXPECT_EQ(data.at("series").at("eval_loss").as_array().size(), 5u);
  EXPECT_EQ(data.at("state").as_string(), "running");
}

TEST(Report, TextFromTheRunStaysText) {
  std::vector<json::Value> lines = run_of(3);
  lines.push_back(json::parse(
      R"({"event": "warning", "step": 2, "message": "</script><script>alert(1)</script>"})", "test"));
  const std::string page = report_html(lines, json::Value(), "<img src=x onerror=alert(1)>");
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(data_of(page).at("warnings").as_array()[0].as_string(),
            "step 2: </script><script>alert(1)</script>");
}

TEST(Report, LongRunsAreThinnedAndKeepTheLastStep) {
  const json::Value data = data_of(report_html(run_of(20000), json::Value(), "long"));
  const json::Array& loss = data.at("series").at("loss").as_array();
  EXPECT_LE(loss.size(), 4001u);
  EXPECT_EQ(loss.back().as_array()[0].as_number(), 20000);
}

TEST(Report, MissingAndOddValuesAreGaps) {
  std::vector<json::Value> lines = run_of(2);
  lines.push_back(json::parse(R"({"event": "step", "step": 3, "loss": null})", "test"));
  lines.push_back(json::parse(R"({"event": "step", "step": "four", "loss": 1})", "test"));
  lines.push_back(json::parse(R"({"event": 7})", "test"));
  const json::Value data = data_of(report_html(lines, json::Value(), "odd"));
  EXPECT_EQ(data.at("series").at("loss").as_array().size(), 3u);
  EXPECT_TRUE(data.at("series").at("loss").as_array()[2].as_array()[1].is_null());
}

TEST(Report, WritesFromAnOutputFolderAtAnyTime) {
  ScratchFolder folder;
  write_report(folder / "");
  EXPECT_NE(slurp(folder / "report.html").find("No step has been logged yet"), std::string::npos);
  RunInfo info(folder / "run.json", "deltatune train cfg.yaml");
  info.set("run_name", "first try");
  {
    MetricsWriter writer(folder / "metrics.jsonl");
    for (int64_t i = 1; i <= 3; ++i) {
      StepLine line;
      line.step = i;
      line.loss = 2;
      writer.step(line);
    }
  }
  write_report(folder / "");
  const std::string page = slurp(folder / "report.html");
  EXPECT_NE(page.find("<title>first try</title>"), std::string::npos);
  EXPECT_EQ(data_of(page).at("series").at("loss").as_array().size(), 3u);
}

TEST(RunInfo, RecordsCommandMachineAndEnd) {
  ScratchFolder folder;
  RunInfo info(folder / "run.json", "deltatune train cfg.yaml --seed 3");
  info.write();
  json::Value file = json::parse(slurp(folder / "run.json"), "run.json");
  EXPECT_EQ(file.at("command_line").as_string(), "deltatune train cfg.yaml --seed 3");
  EXPECT_EQ(file.at("exit").at("state").as_string(), "running");
  EXPECT_GT(file.at("machine").at("memory_bytes").as_integer(), 0);
  EXPECT_GE(file.at("machine").at("cores").as_integer(), 1);
  info.finish(143, "SIGTERM");
  file = json::parse(slurp(folder / "run.json"), "run.json");
  EXPECT_EQ(file.at("exit").at("state").as_string(), "stopped");
  info.finish(6, "diverged");
  EXPECT_EQ(json::parse(slurp(folder / "run.json"), "run.json").at("exit").at("state").as_string(), "failed");
}

TEST(Report, ABrowserDrawsTheCurves) {
  if (std::system("command -v chromium >/dev/null 2>&1") != 0) GTEST_SKIP() << "no chromium on this machine";
  ScratchFolder folder;
  std::string page = report_html(run_of(200), json::Value(), "drawn");
  // Says what is on the first canvas of each chart, in the page's title.
  const std::string probe =
      "<script>var n=[];document.querySelectorAll('.chart').forEach(function(c){var "
      "k=c.querySelectorAll('canvas')[0],"
      "d=k.getContext('2d').getImageData(0,0,k.width,k.height).data,s=0;for(var "
      "i=3;i<d.length;i+=4)if(d[i])s++;"
      "n.push(s)});document.title='pixels '+n.join(' ');</script></body>";
  page.replace(page.rfind("</body>"), 7, probe);
  const std::string path = folder.write("report.html", page);
  const std::string command = "timeout 60 chromium --headless --no-sandbox --disable-gpu --user-data-dir='" +
                              (folder / "profile").string() + "' --dump-dom 'file://" + path + "' >'" +
                              (folder / "dom").string() + "' 2>/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string dom = slurp(folder / "dom");
  const size_t title = dom.find("<title>pixels ");
  ASSERT_NE(title, std::string::npos) << dom.substr(0, 400);
  std::istringstream counts(dom.substr(title + 14, dom.find("</title>") - title - 14));
  int charts = 0;
  for (int64_t pixels = 0; counts >> pixels; ++charts) EXPECT_GT(pixels, 500) << "chart " << charts;
  EXPECT_EQ(charts, 4);
}

}  // namespace
}  // namespace deltatune
