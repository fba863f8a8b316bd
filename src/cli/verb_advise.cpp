// `deltatune advise output_dir [--json]`: findings about a finished or a running job.
#include <cstdio>

#include "cli/run_advice.h"
#include "cli/run_files.h"
#include "cli/verbs.h"

namespace deltatune::cli {

int verb_advise(const Invocation& call) {
  const RunFolder folder = open_run(call.arguments[0]);
  const Advice advice = advice_on(folder, Plans::computed);
  const std::string text = call.config().json ? json::dump(advice.to_json(), 2) + "\n" : advice.to_text();
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace deltatune::cli
