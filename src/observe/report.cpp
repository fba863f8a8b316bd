// Filling the page template with the series, facts and warnings of a run.
#include "observe/report.h"

#include <cmath>
#include <map>

#include "base/clock.h"
#include "base/format.h"
#include "embedded.h"
#include "observe/metrics.h"

namespace deltatune {
namespace {

constexpr size_t max_points = 4000;
constexpr size_t max_table_rows = 200;
constexpr size_t max_warnings = 50;

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

// The member as a finite number, or NaN.
double number_of(const json::Value& line, std::string_view key) {
  const json::Value* value = line.find(key);
  return value != nullptr && value->is_number() ? value->as_number() : std::nan("");
}

std::string text_of(const json::Value& value) {
  return value.is_string() ? value.as_string() : value.is_null() ? "" : json::dump(value);
}

bool is_event(const json::Value& line, std::string_view name) {
  const json::Value* event = line.find("event");
  return event != nullptr && event->is_string() && event->as_string() == name;
}

// Every k-th of `items`, and the last.
json::Array thinned(json::Array items, size_t most) {
  if (items.size() <= most) return items;
  const size_t stride = (items.size() + most - 1) / most;
  json::Array kept;
  for (size_t i = 0; i + 1 < items.size(); i += stride) kept.push_back(std::move(items[i]));
  kept.push_back(std::move(items.back()));
  return kept;
}

json::Value series(const std::vector<json::Value>& lines, std::string_view event, std::string_view key) {
  json::Array points;
  for (const json::Value& line : lines) {
    const double step = number_of(line, "step");
    if (!is_event(line, event) || std::isnan(step)) continue;
    const double value = number_of(line, key);
    points.emplace_back(
        json::Array{json::Value(step), std::isfinite(value) ? json::Value(value) : json::Value()});
  }
  return thinned(std::move(points), max_points);
}

json::Value step_table(const std::vector<json::Value>& lines) {
  json::Array rows;
  for (const json::Value& line : lines) {
    if (!is_event(line, "step")) continue;
    json::Array row;
    for (const char* key : {"step", "epoch", "loss", "grad_norm", "learning_rate", "tokens_per_s", "fill"}) {
      const double value = number_of(line, key);
      row.push_back(std::isfinite(value) ? json::Value(value) : json::Value());
    }
    rows.emplace_back(std::move(row));
  }
  return thinned(std::move(rows), max_table_rows);
}

json::Value warnings(const std::vector<json::Value>& lines) {
  json::Array texts;
  size_t more = 0;
  for (const json::Value& line : lines) {
    if (!is_event(line, "warning") && !is_event(line, "nan")) continue;
    if (texts.size() >= max_warnings) {
      ++more;
      continue;
    }
    const json::Value* message = line.find("message");
    const double step = number_of(line, "step");
    const std::string place = std::isnan(step) ? "" : format("step {:.0f}: ", step);
    texts.emplace_back(place + (message != nullptr ? text_of(*message) : json::dump(line)));
  }
  if (more > 0) texts.emplace_back(format("and {} more in metrics.jsonl", more));
  return texts;
}

// Rows of name and text; nested objects become rows of "outer inner".
void add_facts(json::Array& facts, const std::string& prefix, const json::Value& value, int depth) {
  if (value.is_object() && depth < 2) {
    for (const auto& [key, member] : value.as_object()) {
      if (depth == 0 && (key == "event" || key == "ts" || key == "exit" || key == "environment")) continue;
      add_facts(facts, prefix.empty() ? key : prefix + " " + key, member, depth + 1);
    }
    return;
  }
  std::string text = text_of(value);
  if (text.empty() || text == "[]" || text == "{}") return;
  if (value.is_integer() && std::llabs(value.as_integer()) >= 10000) text = format_count(value.as_integer());
  std::string name = prefix;
  for (char& c : name) {
    if (c == '_') c = ' ';
  }
  facts.emplace_back(json::Array{json::Value(name), json::Value(text)});
}

const json::Value* last_event(const std::vector<json::Value>& lines, std::string_view name) {
  for (size_t i = lines.size(); i-- > 0;) {
    if (is_event(lines[i], name)) return &lines[i];
  }
  return nullptr;
}

std::string summary(const std::vector<json::Value>& lines) {
  const json::Value* last = last_event(lines, "step");
  if (last == nullptr) return "No step has been logged yet.";
  std::string text = format("Step {:.0f}, loss {:.4f}", number_of(*last, "step"), number_of(*last, "loss"));
  for (const json::Value& line : lines) {
    if (!is_event(line, "step")) continue;
    text += format(" (first logged {:.4f})", number_of(line, "loss"));
    break;
  }
  if (const json::Value* eval = last_event(lines, "eval"); eval != nullptr) {
    const double loss = number_of(*eval, "eval_loss");
    if (!std::isnan(loss)) text += format(", evaluation loss {:.4f}", loss);
  }
  return text + format(". Page written {}.", timestamp_utc().substr(0, 19) + "Z");
}

std::string state_of(const json::Value& run) {
  const json::Value* exit = run.find("exit");
  const json::Value* state = exit != nullptr ? exit->find("state") : nullptr;
  return state != nullptr && state->is_string() ? state->as_string() : "running";
}

json::Value page_data(const std::vector<json::Value>& metrics, const json::Value& run) {
  json::Value all_series;
  all_series.set("loss", series(metrics, "step", "loss"));
  all_series.set("eval_loss", series(metrics, "eval", "eval_loss"));
  all_series.set("tokens_per_s", series(metrics, "step", "tokens_per_s"));
  all_series.set("learning_rate", series(metrics, "step", "learning_rate"));
  all_series.set("grad_norm", series(metrics, "step", "grad_norm"));
  json::Array facts;
  if (const json::Value* start = last_event(metrics, "start")) add_facts(facts, "", *start, 0);
  add_facts(facts, "", run, 0);
  json::Value data;
  data.set("state", state_of(run));
  data.set("summary", summary(metrics));
  data.set("series", std::move(all_series));
  data.set("facts", std::move(facts));
  data.set("steps", step_table(metrics));
  data.set("warnings", warnings(metrics));
  return data;
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

std::string report_html(const std::vector<json::Value>& metrics, const json::Value& run,
                        std::string_view title) {
  const std::map<std::string_view, std::string> values = {
      {"title", html_text(title)},
      {"data", script_json(page_data(metrics, run))},
      {"dygraphs_css", std::string(embedded::dygraphs_css())},
      {"dygraphs_js", std::string(embedded::dygraphs_js())},
      {"dygraphs_license", std::string(embedded::dygraphs_license())},
      {"report_css", std::string(embedded::report_css())},
      {"report_js", std::string(embedded::report_js())},
  };
  return fill(embedded::report_html(), values);
}

void write_report(const fs::path& output_dir) {
  std::error_code code;
  const fs::path run_path = output_dir / "run.json";
  const json::Value run = fs::exists(run_path, code) ? json::parse_file(run_path.string()) : json::Value();
  const MetricsFile metrics = read_metrics(output_dir / "metrics.jsonl");
  const json::Value* name = run.find("run_name");
  std::string title = name != nullptr && name->is_string() ? name->as_string() : "";
  if (title.empty()) title = fs::absolute(output_dir).lexically_normal().filename().string();
  if (title.empty()) title = fs::absolute(output_dir).lexically_normal().parent_path().filename().string();
  write_file_atomic(output_dir / "report.html", report_html(metrics.lines, run, title));
}

}  // namespace deltatune
