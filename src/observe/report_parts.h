// Parts of the report's data, one function each: what page/report.js shows as a table.
#pragma once

#include "base/json.h"
#include "observe/run_folder.h"

namespace deltatune::report {

/// {"device", "steps", "step_ms", ..., "ops": [[op, shape, phase, kernel, slow, calls, host us, device us,
/// device ms, GB/s, TFLOP/s, roofline share], ...], "more_ops"} of a profile.json, or null where it is none.
json::Value profile_part(const json::Value& profile);

/// {"regions": [[name, lifetime, bytes, in host memory], ...], "total", "available", "more"}: run.json's
/// plan, else that of the plan event; null where there is none.
json::Value memory_part(const RunFolder& folder);

/// [{"index", "name", "curves": {name: {"x", "y"}}, "mean": {name: number}, "last": {...}, "throttle":
/// text}].
json::Value telemetry_part(const RunRecord& record);

/// [[name, text], ...] of a JSON object; members of inner objects as "outer inner", to two levels.
json::Array facts_part(const json::Value& object, std::initializer_list<std::string_view> left_out);

/// {"columns": [...], "rows": [[...], ...]}: the last logged steps.
json::Value steps_part(const RunRecord& record);

/// [{"label", "value", "note"}, ...]: the figures at the top of the page.
json::Array tiles_part(const RunFolder& folder);

}  // namespace deltatune::report
