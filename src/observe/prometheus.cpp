// Gauges.
#include "observe/prometheus.h"

#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/format.h"

namespace deltatune {
namespace {

// Letters, digits and '_' only.
std::string metric_name(std::string_view text) {
  std::string out = "deltatune_";
  for (const char c : text) {
    const bool kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    out.push_back(kept ? c : '_');
  }
  return out;
}

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out.push_back('\\');
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return format("{}", value);
}

class Prometheus final : public RunLogger {
 public:
  Prometheus(fs::path path, std::string run) : path_(std::move(path)), run_(std::move(run)) { write_file(); }
  void write(int64_t step, double time, const std::vector<Scalar>& scalars) override {
    values_["step"] = static_cast<double>(step);
    values_["last_event_timestamp_seconds"] = time;
    for (const Scalar& scalar : scalars) values_[scalar.name] = scalar.value;
    if (clock_.seconds() >= 1) write_file();
  }
  void end(RunEnd how, double) override {
    values_["ended"] = 1;
    values_["failed"] = how == RunEnd::failed ? 1 : 0;
    write_file();
  }

 private:
  void write_file() {
    clock_.restart();
    write_file_atomic(path_, prometheus_text(values_, run_));
  }
  fs::path path_;
  std::string run_;
  std::map<std::string, double> values_;
  Stopwatch clock_;
};

}  // namespace

std::string prometheus_text(const std::map<std::string, double>& values, const std::string& run) {
  // All lines of one metric stand together.
  std::map<std::string, std::string> lines;
  for (const auto& [name, value] : values) {
    std::string metric = name;
    std::string labels = format("run=\"{}\"", label_value(run));
    if (name.starts_with("system/gpu")) {
      const size_t end = name.find('/', 10);
      if (end != std::string::npos) {
        labels += format(",gpu=\"{}\"", label_value(std::string_view(name).substr(10, end - 10)));
        metric = "gpu_" + name.substr(end + 1);
      }
    }
    metric = metric_name(metric);
    lines[metric] += format("{}{{{}}} {}\n", metric, labels, number(value));
  }
  std::string out;
  for (const auto& [metric, text] : lines) out += format("# TYPE {} gauge\n", metric) + text;
  return out;
}

std::unique_ptr<RunLogger> open_prometheus(const LoggerOptions& options) {
  return std::make_unique<Prometheus>(options.output_dir / "metrics.prom", options.run_name);
}

}  // namespace deltatune
