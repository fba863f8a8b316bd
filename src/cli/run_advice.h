// Advice on the run of an output folder, and the page that a run writes about itself.
#pragma once

#include "advise/advise.h"
#include "observe/run_folder.h"

namespace deltatune::cli {

/// Whether rules may try other settings by planning them: tens of milliseconds each for a large model.
enum class Plans { none, computed };

/// The run's model and configuration are read again for plans; where they cannot be, rules go without.
Advice advice_on(const RunFolder& folder, Plans plans);

/// What RunContext::report calls: report.html with findings; when the run has ended `finding` events and the
/// first three findings in the log as well.
class RunPage {
 public:
  explicit RunPage(const fs::path& output_dir) : folder_(output_dir) {}
  void operator()(bool ended);

 private:
  RunFolder folder_;
};

}  // namespace deltatune::cli
