// Findings as JSON and as text.
#include "advise/finding.h"

#include <algorithm>

#include "base/format.h"
#include "observe/series.h"

namespace deltatune {

const char* name_of(Severity severity) {
  constexpr const char* names[] = {"problem", "speed", "quality"};
  return names[static_cast<size_t>(severity)];
}

const char* name_of(Confidence confidence) {
  constexpr const char* names[] = {"low", "medium", "high"};
  return names[static_cast<size_t>(confidence)];
}

json::Value to_json(const Finding& finding) {
  json::Value out;
  out.set("rule", finding.rule);
  out.set("title", finding.title);
  out.set("evidence", finding.evidence);
  out.set("key", finding.key);
  out.set("value", finding.value);
  out.set("note", finding.note);
  out.set("severity", name_of(finding.severity));
  out.set("gain", finding.gain ? short_number(finding.gain->expected, 3) : json::Value());
  out.set("gain_low", finding.gain ? short_number(finding.gain->low, 3) : json::Value());
  out.set("gain_high", finding.gain ? short_number(finding.gain->high, 3) : json::Value());
  out.set("confidence", name_of(finding.confidence));
  return out;
}

std::string gain_text(const Finding& finding) {
  if (!finding.gain) return "";
  const auto text = [](double percent) {
    return percent < 1000 ? format("{:.3g}", percent) : format("{:.0f}", percent);
  };
  return format("+{} % tokens/s ({} to {})", text(finding.gain->expected), text(finding.gain->low),
                text(finding.gain->high));
}

std::string to_text(const Finding& finding) {
  std::string out = finding.title;
  if (finding.gain) out += format(": {}", gain_text(finding));
  out += format("\n  seen:  {}", finding.evidence);
  if (!finding.key.empty()) out += format("\n  set:   {}: {}", finding.key, finding.value);
  if (!finding.note.empty()) out += format("\n  note:  {}", finding.note);
  out += format("\n  rule:  {}, confidence {}", finding.rule, name_of(finding.confidence));
  return out;
}

std::string to_line(const Finding& finding) {
  std::string out = finding.title;
  if (!finding.key.empty()) out += format("; {}: {}", finding.key, finding.value);
  if (finding.gain) out += format("; {}", gain_text(finding));
  return out;
}

Gain gain_of_saving(double seconds, double saved, double low, double high) {
  const auto percent = [&](double part) {
    const double kept = std::clamp(part, 0.0, 0.95 * seconds);
    return 100 * (seconds / (seconds - kept) - 1);
  };
  return {percent(saved), percent(low), percent(high)};
}

}  // namespace deltatune
