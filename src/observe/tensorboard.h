// TensorBoard event files: scalars, as TensorFlow's summary writer lays them out.
//
// A file is a sequence of TFRecords: length (u64), masked CRC-32C of it, bytes, masked CRC-32C of them, all
// little-endian (tensorflow/core/lib/io/record_writer.h). The bytes are an Event message of protocol buffers
// (tensorflow/core/util/event.proto): 1 wall_time double, 2 step varint, 3 file_version string, 5 summary;
// a Summary (summary.proto) is repeated 1 Value, of which 1 is the tag and 2 simple_value, a float. A record
// is written by one call, so a killed run leaves at most one that is cut, at the end, which readers stop at
// and a resumed run removes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "observe/run_logger.h"

namespace deltatune {

/// CRC-32C (Castagnoli), rotated and offset as TFRecords have it.
uint32_t masked_crc32c(std::string_view bytes);

/// One TFRecord.
std::string tfrecord(std::string_view bytes);

/// The Event of a step.
std::string scalar_event(int64_t step, double time, const std::vector<Scalar>& scalars);

/// The whole records at the start of `file`, without those of steps above `last_step`. Bytes of any kind.
std::string records_up_to(std::string_view file, int64_t last_step);

/// Continues the latest event file of the logging folder, or begins one: events.out.tfevents.TIME.HOST.PID.0.
/// In a folder that the user has named the name ends with a hash of output_dir, by which the run knows its
/// file.
std::unique_ptr<RunLogger> open_tensorboard(const LoggerOptions& options, double time);

}  // namespace deltatune
