// report.html: one self-contained page with the curves of a run.
//
// Made from metrics.jsonl and run.json of an output folder, at any time during a run and after it. Data,
// style and the plotting library (dygraphs, MIT licence, kept in the page) are inside the file: it opens
// without network. Not done here: comparing runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace deltatune {

/// The page for these metrics lines (see metrics.h) and this run.json (null: none). Any text in them is shown
/// as text. Series with more than 4000 points are thinned evenly; the last point stays.
std::string report_html(const std::vector<json::Value>& metrics, const json::Value& run,
                        std::string_view title);

/// Writes output_dir/report.html atomically from the files in output_dir; the title is the run_name in
/// run.json, else the folder's name. Throws Error{resource} when it cannot be written, Error{data} when
/// run.json or metrics.jsonl cannot be read.
void write_report(const fs::path& output_dir);

}  // namespace deltatune
