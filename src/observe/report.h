// report.html: one self-contained page about a run, or about two side by side.
//
// Made from the files of an output folder, at any time during a run and after it. Data, style and the
// plotting library (dygraphs, MIT licence, kept in the page) are inside the file: it opens without network.
// Invariants: the size is bounded however long the run was (curves are thinned, tables cut, texts shortened;
// what was left out is said); any text of the run is shown as text. Not done here: reading the files
// (run_folder.h), finding what is wrong with a run (src/advise hands its findings in).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "observe/run_folder.h"

namespace deltatune {

/// What the page shows of one run. `findings`: objects with the members of `finding` events.
json::Value report_data(const RunFolder& folder, const json::Array& findings);

/// The page of one run or of two (the first is "A"); `runs` are values of report_data().
std::string report_html(std::span<const json::Value> runs, std::string_view title);

/// Writes folder/report.html atomically. Throws Error{resource} when it cannot be written.
void write_report(const RunFolder& folder, const json::Array& findings);

/// The same from the files alone, with the findings that metrics.jsonl has.
void write_report(const fs::path& output_dir);

}  // namespace deltatune
