// Filling the page template with what the files of a run say.
#include "observe/report.h"

#include <cmath>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "embedded.h"
#include "observe/report_parts.h"

namespace deltatune {
namespace {

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

// JSON inside a script element: no "<" at all, so nothing can end the element or open a comment.
std::string script_json(const json::Value& value) {
  std::string out;
  for (const char c : json::dump(value)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

json::Value findings_part(const json::Array& findings) {
  json::Array out;
  for (const json::Value& finding : findings) {
    json::Value item;
    for (const char* key : {"rule", "title", "evidence", "key", "value", "confidence", "severity", "note"})
      item.set(key, text_of(finding, key, 1000));
    for (const char* key : {"gain", "gain_low", "gain_high"})
      item.set(key, short_number(number_of(finding, key)));
    out.push_back(std::move(item));
  }
  return out;
}

json::Value texts(const std::vector<std::string>& lines) {
  json::Array out;
  for (const std::string& line : lines) out.emplace_back(line);
  return out;
}

// Replaces each {{name}} of the template; values are not searched again.
std::string fill(std::string_view page, const std::map<std::string_view, std::string>& values) {
  std::string out;
  while (!page.empty()) {
    const size_t open = page.find("{{");
    const size_t close = open == std::string_view::npos ? open : page.find("}}", open);
    out.append(page.substr(0, open));
    if (close == std::string_view::npos) break;
    out += values.at(page.substr(open + 2, close - open - 2));
    page.remove_prefix(close + 2);
  }
  return out;
}

}  // namespace

json::Value report_data(const RunFolder& folder, const json::Array& findings) {
  const RunRecord& record = folder.record();
  json::Value out;
  out.set("name", folder.title());
  out.set("state", folder.state());
  if (const json::Value* exit = folder.run().find("exit")) out.set("message", text_of(*exit, "message", 500));
  out.set("version", text_of(folder.run(), "version", 40));
  out.set("first_time", record.first_time);
  out.set("last_time", record.last_time);
  out.set("steps_logged", record.steps);
  out.set("tiles", report::tiles_part(folder));
  json::Value curves = json::Object{};
  for (const auto& [name, series] : record.curves) curves.set(name, series.to_json());
  out.set("curves", std::move(curves));
  out.set("split", record.split.to_json());
  out.set("telemetry", report::telemetry_part(record));
  out.set("profile", report::profile_part(folder.profile()));
  out.set("profile_before", report::profile_part(folder.profile_before()));
  out.set("memory", report::memory_part(folder));
  const json::Value* data = folder.run().find("data");
  out.set("data", data == nullptr ? json::Array{} : report::facts_part(*data, {"histogram"}));
  if (const json::Value* bins = data == nullptr ? nullptr : data->find("histogram");
      bins != nullptr && bins->is_array() && bins->as_array().size() <= 64)
    out.set("histogram", *bins);
  json::Array settings;
  for (const Setting& s : folder.settings()) settings.emplace_back(json::Array{s.key, s.value, s.origin});
  out.set("settings", std::move(settings));
  out.set("facts", report::facts_part(folder.run(), {"exit", "environment", "plan", "data", "run_name"}));
  out.set("findings", findings_part(findings));
  out.set("warnings", texts(record.messages));
  out.set("more_warnings", record.more_messages);
  out.set("notes", texts(folder.notes()));
  out.set("steps", report::steps_part(record));
  return out;
}

std::string report_html(std::span<const json::Value> runs, std::string_view title) {
  json::Value data;
  data.set("written", timestamp_utc().substr(0, 19) + "Z");
  data.set("runs", json::Array(runs.begin(), runs.end()));
  const std::map<std::string_view, std::string> values = {
      {"title", html_text(clean_text(title, 300))},
      {"data", script_json(data)},
      {"dygraphs_css", std::string(embedded::dygraphs_css())},
      {"dygraphs_js", std::string(embedded::dygraphs_js())},
      {"dygraphs_license", std::string(embedded::dygraphs_license())},
      {"report_css", std::string(embedded::report_css())},
      {"charts_js", std::string(embedded::charts_js())},
      {"report_js", std::string(embedded::report_js())},
  };
  return fill(embedded::report_html(), values);
}

void write_report(const RunFolder& folder, const json::Array& findings) {
  const json::Value run = report_data(folder, findings);
  write_file_atomic(folder.folder() / "report.html", report_html({&run, 1}, folder.title()));
}

void write_report(const fs::path& output_dir) {
  RunFolder folder(output_dir);
  folder.refresh();
  write_report(folder, folder.record().findings);
}

}  // namespace deltatune
