// `deltatune parity case-folder`: exit code 0 only when every quantity is inside its bound.
#include <cstdio>

#include "cli/device.h"
#include "cli/verbs.h"
#include "train/parity.h"
#include "train/recompute.h"
#include "train/setup.h"

namespace deltatune::cli {

int verb_parity(const Invocation& call) {
  const Config& config = call.config();
  const auto device = open_device(config);
  ParityOptions options;
  // The stored numbers are fp32; bf16 is compared where it is asked for.
  options.storage = call.loaded.origins.contains("dtype") ? storage_dtype(config) : DType::f32;
  options.reverse = config.order == "reverse";
  options.micro_batches = config.micro_batches;
  options.deterministic = config.deterministic;
  if (config.recompute != "auto") options.keep = keep_of(config.recompute);
  const ParityReport report = run_parity(call.arguments[0], *device, options);
  const std::string text = config.json ? json::dump(report.to_json(), 2) + "\n" : report.to_text();
  std::fwrite(text.data(), 1, text.size(), stdout);
  return report.ok() ? 0 : 1;
}

}  // namespace deltatune::cli
