// Sorting events into curves, sums and lists.
#include "observe/run_record.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace deltatune {
namespace {

constexpr size_t max_saves = 50;
constexpr size_t max_findings = 50;
constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

double or_else(double value, double other) {
  return std::isnan(value) ? other : value;
}

// How well a nan event says where it began: by its layer, by other words, or not.
int told_where(const json::Value& event) {
  const auto text = [&](const char* key) {
    const json::Value* found = event.find(key);
    return found != nullptr && found->is_string() && !found->as_string().empty();
  };
  const json::Value* layer = event.find("layer");
  if (layer != nullptr && layer->is_number() && layer->as_number() >= 0 && layer->as_number() < 1e6) return 2;
  return text("where") || text("layer") || text("tensor") || text("op") ? 1 : 0;
}

// Bytes of the UTF-8 character at the start of `text`, 0 where there is none. Table 3-7 of the Unicode
// standard.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool bad = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F);
    return tail(1) && tail(2) && !bad ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool bad = (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
    return tail(1) && tail(2) && tail(3) && !bad ? 4 : 0;
  }
  return 0;
}

std::string event_name(const json::Value& event) {
  const json::Value* name = event.find("event");
  return name != nullptr && name->is_string() ? name->as_string() : "";
}

}  // namespace

double number_of(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  if (value == nullptr || !value->is_number()) return no_number;
  const double number = value->as_number();
  return std::isfinite(number) ? number : no_number;
}

std::string clean_text(std::string_view text, size_t most) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = character_bytes(text);
    if (out.size() + std::max<size_t>(bytes, 1) > most) {
      out += "...";
      break;
    }
    const bool control = bytes == 1 && (static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7F);
    if (bytes == 0) {
      out += '?';
    } else if (control) {
      out += ' ';
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

std::string text_of(const json::Value& object, std::string_view key, size_t most) {
  const json::Value* value = object.find(key);
  return value != nullptr && value->is_string() ? clean_text(value->as_string(), most) : "";
}

double DeviceRecord::mean(size_t i) const {
  return counts[i] == 0 ? no_number : sums[i] / static_cast<double>(counts[i]);
}

void RunRecord::add_step(const json::Value& event, double step) {
  StepFacts facts;
  facts.step = step;
  facts.loss = number_of(event, "loss");
  facts.grad_norm = number_of(event, "grad_norm");
  facts.learning_rate = number_of(event, "learning_rate");
  facts.time_s = number_of(event, "time_s");
  facts.slots = number_of(event, "tokens");
  facts.fill = number_of(event, "fill");
  facts.real_tokens = or_else(number_of(event, "real_tokens"), facts.fill * facts.slots);
  facts.targets = number_of(event, "target_tokens");
  facts.interval_steps = number_of(event, "interval_steps");
  facts.interval_slots = number_of(event, "interval_tokens");
  facts.interval_real_tokens = number_of(event, "interval_real_tokens");
  if (!(facts.interval_steps >= 1 && facts.interval_slots >= facts.interval_real_tokens)) {
    facts.interval_steps = 1;
    facts.interval_slots = facts.slots;
    facts.interval_real_tokens = facts.real_tokens;
  }
  facts.data_wait_s = number_of(event, "data_wait_s");
  facts.exposed_comm_s = number_of(event, "exposed_comm_s");
  facts.host_bound_share = number_of(event, "host_bound_share");
  facts.mfu = number_of(event, "mfu");
  facts.roofline_share = number_of(event, "roofline_share");
  facts.gpu_utilisation = number_of(event, "gpu_utilisation");
  facts.mem_peak_gib = number_of(event, "mem_peak_gib");

  const auto rate = [&](double tokens) { return facts.time_s > 0 ? tokens / facts.time_s : no_number; };
  const double real = or_else(number_of(event, "tokens_per_s_real"),
                              or_else(number_of(event, "tokens_per_s"), rate(facts.real_tokens)));
  const auto curve = [&](const char* name, double value) {
    const auto found = curves.find(name);
    if (found == curves.end() && std::isnan(value)) return;  // a curve begins with its first number
    curves[name].add(step, value);
  };
  curve("loss", facts.loss);
  curve("grad_norm", facts.grad_norm);
  curve("learning_rate", facts.learning_rate);
  curve("tokens_per_s_real", real);
  curve("tokens_per_s_supervised", or_else(number_of(event, "tokens_per_s_supervised"), rate(facts.targets)));
  curve("tokens_per_s_slots", rate(facts.slots));
  curve("mfu", facts.mfu);
  curve("roofline_share", facts.roofline_share);
  curve("gpu_utilisation", facts.gpu_utilisation);
  curve("fill", facts.fill);
  if (facts.time_s > 0 && facts.time_s < 1e9) {
    double rest = facts.time_s;
    const auto part = [&](double seconds) {
      const double taken = std::clamp(or_else(seconds, 0), 0.0, rest);
      rest -= taken;
      return taken;
    };
    const double comm = part(facts.exposed_comm_s);
    const double data = part(facts.data_wait_s);
    const double host = part(facts.host_bound_share * facts.time_s);
    split.add(step, {rest, comm, data, host});
  }
  if (const json::Value* slow = event.find("slow_kernels"); slow != nullptr && slow->is_bool())
    slow_kernels = slow_kernels || slow->as_bool();
  if (!first_step) first_step = facts;
  recent.push_back(facts);
  if (recent.size() > recent_steps) recent.pop_front();
  ++steps;
}

void RunRecord::add_telemetry(const json::Value& event, double step) {
  const json::Value* list = event.find("devices");
  if (list == nullptr || !list->is_array()) return;
  for (const json::Value& item : list->as_array()) {
    const double index = number_of(item, "index");
    if (!(index >= 0 && index < 1e6)) continue;
    const auto key = static_cast<int64_t>(index);
    if (devices.size() >= max_devices && !devices.contains(key)) continue;
    DeviceRecord& device = devices[key];
    for (size_t i = 0; i < DeviceRecord::names.size(); ++i) {
      const double value = number_of(item, DeviceRecord::names[i]);
      device.curves[i].add(step, value);
      if (std::isnan(value)) continue;
      device.sums[i] += value;
      ++device.counts[i];
    }
    if (const json::Value* reasons = item.find("throttle"); reasons != nullptr && reasons->is_array()) {
      for (const json::Value& reason : reasons->as_array()) {
        if (!reason.is_string() || device.reasons.size() >= 32) continue;
        ++device.reasons[clean_text(reason.as_string(), 60)];
      }
    }
    if (json::dump(item).size() < 4096) device.last = item;
  }
}

void RunRecord::add_message(const json::Value& event, double step) {
  if (messages.size() >= max_messages) {
    ++more_messages;
    return;
  }
  const std::string message = text_of(event, "message");
  messages.push_back((std::isnan(step) ? "" : format("step {:.0f}: ", step)) +
                     (message.empty() ? clean_text(json::dump(event)) : message));
}

void RunRecord::add(const json::Value& event) {
  const std::string name = event_name(event);
  double step = number_of(event, "step");
  if (!(step >= 0 && step <= 1e12)) step = no_number;
  if (const std::string time = text_of(event, "ts", 40); !time.empty()) {
    if (first_time.empty()) first_time = time;
    last_time = time;
  }
  const bool finding = name == "finding";
  if (finding && !last_was_finding_) findings.clear();
  last_was_finding_ = finding;
  if (finding && findings.size() < max_findings) findings.push_back(event);
  if (name == "step" && !std::isnan(step)) add_step(event, step);
  if (name == "telemetry" && !std::isnan(step)) add_telemetry(event, step);
  if (name == "eval" && !std::isnan(step)) {
    curves["eval_loss"].add(step, number_of(event, "eval_loss"));
    last_eval = event;
  }
  if (name == "start") {
    start = event;
    end = json::Value();  // a resumed run goes on
  }
  if (name == "plan") plan = event;
  if (name == "end") end = event;
  if (name == "save") {
    saves.push_back(event);
    if (saves.size() > max_saves) saves.erase(saves.begin());
  }
  if (name == "nan") {
    ++nonfinite_steps;
    if (nonfinite.is_null() || told_where(event) > told_where(nonfinite)) nonfinite = event;
    if (!(step >= nonfinite_step)) nonfinite_step = step;
  }
  if (name == "warning" || name == "nan") add_message(event, step);
}

}  // namespace deltatune
