// Files of loggers that a resumed run reads again: TensorBoard's records, as they are and behind right
// checksums, and MLflow's metric lines.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "observe/mlflow.h"
#include "observe/tensorboard.h"

using namespace deltatune;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string kept = records_up_to(bytes, 100);
  DELTATUNE_ASSERT(kept.size() <= size);
  DELTATUNE_ASSERT(records_up_to(kept, 100) == kept);
  const std::string record = tfrecord(bytes);
  const std::string all = records_up_to(record + record, INT64_MAX);
  DELTATUNE_ASSERT(all.empty() || all == record + record);
  const std::string lines = metric_lines_up_to(bytes, 100);
  DELTATUNE_ASSERT(metric_lines_up_to(lines, 100) == lines);
  return 0;
}
