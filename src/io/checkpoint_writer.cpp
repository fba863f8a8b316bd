// From a rank's values to pieces of files.
#include "io/checkpoint_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "base/error.h"
#include "base/format.h"
#include "io/finite.h"

namespace deltatune {
namespace {

double value_at(DType dtype, const std::byte* data, int64_t i) {
  double out = 0;
  convert(&out, DType::f64, data + static_cast<size_t>(i) * size_of(dtype), dtype, 1);
  return out;
}

// `written` holds elements [begin, begin + n) of the tensor as they would go to the file, `memory` the same
// as they were.
void refuse_nonfinite(const StoredTensor& target, DType file_dtype, std::span<const std::byte> written,
                      int64_t begin, DType memory_dtype, const std::byte* memory) {
  const NonFinite found = count_nonfinite(file_dtype, written);
  if (!found.any()) return;
  const double value = value_at(memory_dtype, memory, found.first);
  const std::string place = format("tensor {}, element {}", target.name, begin + found.first);
  if (!std::isfinite(value)) {
    throw Error(
        ErrorKind::diverged,
        format("refusing to save: {} is {}", shown(target.name), std::isnan(value) ? "NaN" : "infinite"),
        place, "training has diverged: go back to an earlier checkpoint and lower learning_rate");
  }
  throw Error(ErrorKind::model,
              format("refusing to save: {} has become {}, which {} cannot hold", shown(target.name), value,
                     target.dtype),
              place, "start from a BF16 or F32 copy of the checkpoint, whose range is larger");
}

// Elements [first, first + count) in the file's dtype.
void fill_trained(const StoredTensor& target, DType file_dtype, const PartSource& values, int64_t first,
                  int64_t count, std::byte* to, StagingLanes::Lane& lane) {
  const DType memory_dtype = values.find(target.name)->dtype;
  const auto most = static_cast<int64_t>(StagingLanes::block / size_of(memory_dtype));
  for (int64_t at = 0; at < count; at += most) {
    const int64_t n = std::min(most, count - at);
    const std::byte* from = values.values(target.name, first + at, n, lane.second, *lane.stream);
    const std::span<std::byte> written(to + static_cast<size_t>(at) * size_of(file_dtype),
                                       static_cast<size_t>(n) * size_of(file_dtype));
    if (file_dtype == memory_dtype) {
      std::memcpy(written.data(), from, written.size());
    } else {
      convert(written.data(), file_dtype, from, memory_dtype, n);
    }
    refuse_nonfinite(target, file_dtype, written, first + at, memory_dtype, from);
  }
}

}  // namespace

std::vector<FilePiece> weight_pieces(const WeightFiles& files, const HfCheckpoint* source,
                                     std::span<const TensorInfo> trained, const PartSource& values, int rank,
                                     int world_size) {
  std::set<std::string_view> trained_names;
  for (const TensorInfo& info : trained) trained_names.insert(info.name);
  std::vector<FilePiece> out;
  int turn = 0;
  for (size_t f = 0; f < files.files.size(); ++f) {
    const WeightFile& file = files.files[f];
    if (rank == 0) {
      cut_range(0, file.head.size(), 1, [&](size_t begin, size_t bytes) {
        out.push_back({f, begin, bytes, [&file, begin, bytes](std::byte* to, StagingLanes::Lane&) {
                         std::memcpy(to, file.head.data() + begin, bytes);
                       }});
      });
    }
    for (const StoredTensor& tensor : file.tensors) {
      const size_t data = file.head.size() + tensor.begin;
      if (trained_names.count(tensor.name)) {
        const TensorInfo* info = values.find(tensor.name);
        if (!info || info->shape != tensor.shape) {
          throw Error(ErrorKind::internal,
                      info ? format("{} has shape {} in memory and {} in the file", shown(tensor.name),
                                    shown(info->shape), shown(tensor.shape))
                           : "no value for trained tensor " + shown(tensor.name));
        }
        const DType dtype = dtype_from_safetensors(tensor.dtype).value();
        const size_t unit = size_of(dtype);
        const PartSource::Part part = values.part(tensor.name);
        cut_range(data + static_cast<size_t>(part.first) * unit, static_cast<size_t>(part.count) * unit, unit,
                  [&](size_t begin, size_t bytes) {
                    const auto first = static_cast<int64_t>((begin - data) / unit);
                    const auto count = static_cast<int64_t>(bytes / unit);
                    out.push_back(
                        {f, begin, bytes,
                         [&tensor, &values, dtype, first, count](std::byte* to, StagingLanes::Lane& lane) {
                           fill_trained(tensor, dtype, values, first, count, to, lane);
                         }});
                  });
      } else if (turn++ % world_size == rank) {
        cut_range(data, tensor.size, 1, [&](size_t begin, size_t bytes) {
          out.push_back({f, begin, bytes,
                         [&tensor, source, first = begin - data, bytes](std::byte* to, StagingLanes::Lane&) {
                           source->read_part(tensor.name, first, bytes, to);
                         }});
        });
      }
    }
  }
  return out;
}

}  // namespace deltatune
