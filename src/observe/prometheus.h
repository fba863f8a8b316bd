// metrics.prom: the latest numbers of a run for node_exporter's textfile collector, in Prometheus' text
// format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats): gauges deltatune_NAME{run="..."}.
//
// The file is replaced as a whole, so a scrape never sees half of one; at most once a second.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "observe/run_logger.h"

namespace deltatune {

/// The text for these numbers. "train/loss" becomes deltatune_train_loss, "system/gpu3/power_w" the gauge
/// deltatune_gpu_power_w with the label gpu="3".
std::string prometheus_text(const std::map<std::string, double>& values, const std::string& run);

std::unique_ptr<RunLogger> open_prometheus(const LoggerOptions& options);

}  // namespace deltatune
