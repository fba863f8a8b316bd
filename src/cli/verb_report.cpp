// `deltatune report output_dir`: writes report.html anew from the files of a running or finished run.
#include <cstdio>

#include "base/error.h"
#include "base/format.h"
#include "cli/verbs.h"
#include "observe/report.h"

namespace deltatune::cli {

int verb_report(const Invocation& call) {
  const fs::path folder = call.arguments[0];
  std::error_code code;
  if (!fs::exists(folder / "metrics.jsonl", code)) {
    throw Error(ErrorKind::data, format("there is no metrics.jsonl in {}", folder.string()), folder.string(),
                "give the output_dir of a run");
  }
  write_report(folder);
  std::printf("%s\n", (folder / "report.html").c_str());
  return 0;
}

}  // namespace deltatune::cli
