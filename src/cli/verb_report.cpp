// `deltatune report output_dir [other]`: writes report.html anew from the files of a running or finished run,
// or one page with two runs side by side into the first folder.
#include <cstdio>

#include "base/format.h"
#include "cli/run_advice.h"
#include "cli/run_files.h"
#include "cli/verbs.h"
#include "observe/report.h"

namespace deltatune::cli {
namespace {

json::Array findings_of(const RunFolder& folder) {
  return findings_json(advice_on(folder, Plans::computed).findings);
}

std::string folder_name(const fs::path& path) {
  const fs::path clean = fs::absolute(path).lexically_normal();
  return (clean.filename().empty() ? clean.parent_path() : clean).filename().string();
}

}  // namespace

int verb_report(const Invocation& call) {
  const RunFolder first = open_run(call.arguments[0]);
  fs::path page = first.folder() / "report.html";
  if (call.arguments.size() == 1) {
    write_report(first, findings_of(first));
  } else {
    const RunFolder second = open_run(call.arguments[1]);
    page = first.folder() / format("report-with-{}.html", folder_name(second.folder()));
    const json::Value runs[] = {report_data(first, findings_of(first)),
                                report_data(second, findings_of(second))};
    write_file_atomic(page, report_html(runs, first.title() + " and " + second.title()));
  }
  std::printf("%s\n", page.c_str());
  return 0;
}

}  // namespace deltatune::cli
