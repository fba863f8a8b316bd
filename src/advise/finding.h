// Finding: one thing that a run shows, with the figures that show it and the key that changes it.
//
// Invariants: a finding without a number in its evidence is not made; a gain is a prediction from a model
// that the rule's file states, so that a run with the key changed can check it.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"

namespace deltatune {

/// problem: the run's result is in danger. speed: it could be faster. quality: it learns less than it could.
enum class Severity { problem, speed, quality };
enum class Confidence { low, medium, high };

/// Real tokens per second after the change over those before, minus 1, in percent.
struct Gain {
  double expected = 0;
  double low = 0;
  double high = 0;
};

struct Finding {
  std::string rule;      ///< "launch_bound": the name of the rule's file
  std::string title;     ///< a few words
  std::string evidence;  ///< one sentence with the figures
  std::string key;       ///< of the configuration; empty: no key changes it
  std::string value;     ///< to set
  std::string note;      ///< what else to know or to do; may be empty
  Severity severity = Severity::speed;
  std::optional<Gain> gain;
  Confidence confidence = Confidence::medium;
};

const char* name_of(Severity severity);
const char* name_of(Confidence confidence);

/// {"rule", "title", "evidence", "key", "value", "note", "severity", "gain", "gain_low", "gain_high",
/// "confidence"}: also the members of a `finding` event. Gains are null where nothing is predicted.
json::Value to_json(const Finding& finding);

/// "+41 % tokens/s (30 to 52)", or "" without a gain.
std::string gain_text(const Finding& finding);
/// Several lines for a person, the first is the title.
std::string to_text(const Finding& finding);
/// One line.
std::string to_line(const Finding& finding);

/// The gain when a step of `seconds` loses `saved` of them; low and high likewise. Nothing saved is 0;
/// savings are bounded by 95 % of the step.
Gain gain_of_saving(double seconds, double saved, double low, double high);

}  // namespace deltatune
