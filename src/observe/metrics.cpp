// Appending, reading and truncating metrics.jsonl.
#include "observe/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

// Six significant digits.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::fabs(value))));
  return std::isfinite(scale) ? std::round(value * scale) / scale : value;
}

[[noreturn]] void fail(const fs::path& path, int code) {
  throw Error(ErrorKind::resource, format("cannot write {}: {}", path.string(), std::strerror(code)),
              path.string(),
              code == ENOSPC || code == EDQUOT ? "free some disk space and resume"
                                               : "check the folder's permissions");
}

// The line as an event, or null.
json::Value parse_event(std::string_view line) {
  try {
    json::Value value = json::parse(line, "metrics");
    if (value.is_object() && value.find("event") != nullptr && value.at("event").is_string()) return value;
  } catch (const Error&) {
    // counted by the caller
  }
  return {};
}

// Calls visit(line, complete) for each line without its newline.
template <class F>
void for_each_line(std::string_view text, const F& visit) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const bool complete = end != std::string_view::npos;
    visit(text.substr(0, end), complete);
    text.remove_prefix(complete ? end + 1 : text.size());
  }
}

}  // namespace

json::Value step_event(const StepLine& line) {
  json::Value event;
  event.set("event", "step");
  event.set("step", line.step);
  event.set("epoch", rounded(line.epoch));
  event.set("loss", line.loss);
  event.set("grad_norm", line.grad_norm);
  event.set("learning_rate", line.learning_rate);
  event.set("tokens", line.tokens);
  event.set("real_tokens", line.real_tokens);
  event.set("target_tokens", line.target_tokens);
  event.set("fill", rounded(line.fill));
  if (line.interval_steps > 1) {
    event.set("interval_steps", line.interval_steps);
    event.set("interval_tokens", line.interval_tokens);
    event.set("interval_real_tokens", line.interval_real_tokens);
    event.set("interval_time_s", rounded(line.interval_time_s));
  }
  event.set("time_s", rounded(line.time_s));
  event.set("tokens_per_s", rounded(line.tokens_per_s));
  event.set("tokens_per_s_real", rounded(line.tokens_per_s));
  event.set("tokens_per_s_supervised", rounded(line.tokens_per_s_supervised));
  event.set("tokens_per_s_slots", rounded(line.tokens_per_s_slots));
  event.set("tokens_per_s_per_device", rounded(line.tokens_per_s_per_device));
  const auto where_known = [&](const char* key, const std::optional<double>& value) {
    if (value) event.set(key, rounded(*value));
  };
  where_known("mfu", line.mfu);
  where_known("tflops_per_device", line.tflops_per_device);
  where_known("roofline_share", line.roofline_share);
  where_known("gemm_share", line.gemm_share);
  where_known("gpu_utilisation", line.gpu_utilisation);
  where_known("host_bound_share", line.host_bound_share);
  if (line.exposed_comm_s) event.set("exposed_comm_s", rounded(*line.exposed_comm_s));
  event.set("data_wait_s", rounded(line.data_wait_s));
  event.set("mem_peak_gib", rounded(line.mem_peak_gib));
  if (line.slow_kernels) event.set("slow_kernels", true);
  return event;
}

MetricsWriter::MetricsWriter(const fs::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(path, errno);
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) fail(path, errno);
  off_t size = info.st_size;
  char last = '\n';
  while (size > 0 && ::pread(descriptor_, &last, 1, size - 1) == 1 && last != '\n') --size;
  if (size != info.st_size && ::ftruncate(descriptor_, size) != 0) fail(path, errno);
}

MetricsWriter::~MetricsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsWriter::event(std::string_view name, const json::Value& fields) {
  json::Value line;
  line.set("event", name);
  if (!fields.is_null()) {
    for (const auto& [key, value] : fields.as_object()) line.set(key, value);
  }
  write(std::move(line));
}

void MetricsWriter::write(json::Value line) {
  if (slow_kernels_) line.set("slow_kernels", true);
  line.set("ts", timestamp_utc());
  const std::string text = json::dump(line) + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(descriptor_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path_, errno);
    done += static_cast<size_t>(written);
  }
}

void MetricsWriter::sync() {
  if (::fsync(descriptor_) != 0) fail(path_, errno);
}

MetricsFile read_metrics(const fs::path& path) {
  MetricsFile result;
  std::error_code code;
  if (!fs::exists(path, code)) return result;
  const std::string text = read_file(path);
  for_each_line(text, [&](std::string_view line, bool complete) {
    json::Value event = complete ? parse_event(line) : json::Value();
    if (event.is_null()) {
      ++result.skipped;
    } else {
      result.lines.push_back(std::move(event));
    }
  });
  return result;
}

int64_t truncate_metrics(const fs::path& path, int64_t last_step) {
  std::error_code code;
  if (!fs::exists(path, code)) return 0;
  const std::string text = read_file(path);
  std::string kept;
  int64_t removed = 0;
  for_each_line(text, [&](std::string_view line, bool complete) {
    const json::Value event = complete ? parse_event(line) : json::Value();
    const json::Value* step = event.is_null() ? nullptr : event.find("step");
    const bool later = step != nullptr && step->is_integer() && step->as_integer() > last_step;
    if (event.is_null() || later) {
      ++removed;
    } else {
      kept.append(line).push_back('\n');
    }
  });
  if (removed > 0) write_file_atomic(path, kept);
  return removed;
}

}  // namespace deltatune
