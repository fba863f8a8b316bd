// Any bytes as a line of metrics.jsonl, and as profile.json and run.json: the page's data and the advice are
// made, or an Error is thrown.
#include <cstdint>
#include <string_view>

#include "advise/advise.h"
#include "base/error.h"
#include "observe/report_parts.h"

using namespace deltatune;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  RunRecord record;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    try {
      const json::Value value = json::parse(line, "fuzz");
      record.add(value);
      (void)report::profile_part(value);
      (void)report::facts_part(value, {});
      RunFacts facts;
      facts.profile = profile_facts(value);
      facts.steps.seconds = number_of(value, "time_s");
      facts.steps.host_bound = number_of(value, "host_bound_share");
      (void)advise(facts).to_text();
    } catch (const Error&) {
    }
  }
  (void)report::telemetry_part(record);
  (void)report::steps_part(record);
  for (const auto& [name, curve] : record.curves) (void)json::dump(curve.to_json());
  return 0;
}
