// An MLflow file store: output_dir/mlruns, as MLflow's own FileStore lays it out
// (mlflow/store/tracking/file_store.py).
//
//   0/meta.yaml                      the experiment "Default", which MLflow wants to be there
//   1/meta.yaml                      the experiment "deltatune"
//   1/RUN/meta.yaml                  name, start, end, status (1 running, 3 finished, 4 failed, 5 killed)
//   1/RUN/metrics/train/loss         lines "milliseconds value step", one appended at a time
//   1/RUN/params/learning_rate       the value
//   1/RUN/tags/mlflow.runName        the value
//
// MLflow 3.7 and later read it where MLFLOW_ALLOW_FILE_STORE=true is set, or take it over into a database
// with `mlflow migrate-filestore`; its database is not written here, since its tables change with its
// version.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "observe/run_logger.h"

namespace deltatune {

/// The lines of a metric file without a cut one at the end, and without those of steps above `last_step`.
std::string metric_lines_up_to(std::string_view text, int64_t last_step);

std::unique_ptr<RunLogger> open_mlflow(const LoggerOptions& options, double time);

}  // namespace deltatune
