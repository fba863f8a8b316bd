// Bytes as a trace and as a profile: a summary that is bounded, a profile that reads back as it was written,
// or an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "observe/profile.h"
#include "observe/profile_table.h"
#include "observe/trace_file.h"

using namespace deltatune;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const TraceSummary trace = check_trace(text, "fuzz.json");
    DELTATUNE_ASSERT(trace.problems.size() <= 20);
    for (const TraceLane& lane : trace.lanes)
      DELTATUNE_ASSERT(lane.events > 0 && lane.events <= trace.events);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
  }
  try {
    const Profile profile = Profile::from_json(json::parse(text, "fuzz.json"));
    DELTATUNE_ASSERT(!profile_text(profile, {}).empty() && !ranks_text({profile, profile}, 5).empty());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
  }
  return 0;
}
