// ParamStore's dealings with the outside: checkpoints in, initial values, slices out.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "base/thread_pool.h"
#include "ops/ops.h"
#include "shard/param_store.h"

namespace deltatune {
namespace {

constexpr int64_t conversion_grain = 1 << 16;

int64_t columns_of(const Param& param) {
  return param.shape.rank == 2 ? param.shape[1] : 1;
}

// One element of log_uniform: a pure function of (seed, parameter, element).
float log_uniform_value(uint64_t seed, uint64_t parameter, uint64_t element) {
  const Philox4 r = philox(seed, parameter, element);
  return static_cast<float>(normal::log_positive(0.01 + (16 - 0.01) * normal::uniform(r.x[0], r.x[1])));
}

// What the checkpoint has for a slice.
const TensorInfo& stored_info(const ParamSource& source, const ParamSlice& slice) {
  const TensorInfo* info = source.find(slice.hf_name);
  if (!info) {
    throw Error(ErrorKind::model, "the checkpoint has no tensor " + slice.hf_name, "model weights",
                "download the checkpoint again, or take one whose config.json matches its weights");
  }
  if (info->shape == slice.hf_shape) return *info;
  const auto text = [](const std::vector<int64_t>& shape) {
    std::string out;
    for (const int64_t size : shape) out += (out.empty() ? "[" : ", ") + std::to_string(size);
    return out + "]";
  };
  throw Error(ErrorKind::model,
              format("tensor {} has shape {}, config.json asks for {}", slice.hf_name, text(info->shape),
                     text(slice.hf_shape)),
              "model weights", "use the config.json that belongs to these weights");
}

// How many of `count` values at `from` are not finite.
int64_t count_bad(const std::byte* from, DType dtype, int64_t count) {
  int64_t bad = 0;
  if (dtype == DType::bf16) {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, from + 2 * i, sizeof bits);
      bad += (bits & 0x7f80u) == 0x7f80u;
    }
    return bad;
  }
  constexpr int64_t most = 4096;
  float values[most];
  for (int64_t at = 0; at < count; at += most) {
    const int64_t n = std::min(most, count - at);
    convert(values, DType::f32, from + static_cast<size_t>(at) * size_of(dtype), dtype, n);
    for (int64_t i = 0; i < n; ++i) bad += !std::isfinite(values[i]);
  }
  return bad;
}

// Values in `from_dtype` at `from`, which stays as it is until this returns. Returns how many are not finite.
int64_t upload_values(Tensor to, const std::byte* from, DType from_dtype, StagingLanes::Lane& lane) {
  const int64_t bad = count_bad(from, from_dtype, to.count());
  if (from_dtype == to.dtype) {
    lane.stream->upload(to, from);
    lane.stream->sync();
    return bad;
  }
  const auto most = static_cast<int64_t>(StagingLanes::block / size_of(to.dtype));
  for (int64_t at = 0; at < to.count(); at += most) {
    const int64_t n = std::min(most, to.count() - at);
    convert(lane.second, to.dtype, from + static_cast<size_t>(at) * size_of(from_dtype), from_dtype, n);
    lane.stream->upload(to.slice(at, n), lane.second);
    lane.stream->sync();
  }
  return bad;
}

}  // namespace

ParamStore::OwnPart ParamStore::own_part(const Param& param, int64_t element, int64_t count,
                                         const std::vector<Group>& groups) const {
  const auto index = static_cast<size_t>(&param - table_.params.data());
  const Placement& place = layout_.placements[index];
  OwnPart out;
  out.group = place.in_f32_group ? &groups.back() : &groups[static_cast<size_t>(param.group)];
  const int64_t first = place.offset + element;
  const int64_t begin = std::max(first, out.group->begin);
  const int64_t end = std::min(first + count, out.group->begin + out.group->weights.count());
  if (begin >= end) return out;
  out.begin = begin - out.group->begin;
  out.count = end - begin;
  out.skipped = begin - first;
  return out;
}

void ParamStore::write_slice(Stream& stream, const Param& param, const ParamSlice& slice, const float* from) {
  const int64_t columns = columns_of(param);
  const OwnPart own = own_part(param, slice.row * columns, slice.rows * columns, groups_);
  if (own.count == 0) return;
  const Tensor view = own.of(values_of(*own.group));
  const float* values = from + own.skipped;
  std::vector<std::byte> bytes;
  if (view.dtype != DType::f32) {
    bytes.resize(view.bytes());
    parallel_for(view.count(), conversion_grain, [&, to = view.dtype](int64_t b, int64_t e, int) {
      convert(bytes.data() + static_cast<size_t>(b) * size_of(to), to, values + b, DType::f32, e - b);
    });
  }
  stream.upload(view, bytes.empty() ? static_cast<const void*>(values) : bytes.data());
  stream.sync();
}

void ParamStore::clear(Stream& stream) {
  const auto zero = [&](const Tensor& x) {
    if (!x.empty() && x.count() > 0) ops::fill(stream, x, 0);
  };
  for (const Group& group : to_update()) {
    for (const Tensor& values : {group.weights, group.master, group.grads}) zero(values);
  }
  // The other chunks of whole states come with refresh_storage().
  for (const StateTensor& state : state()) {
    if (!state.name.ends_with(".weights")) zero(state.data);
  }
}

ParamStore::SlicePart ParamStore::slice_part(const Param& param, const ParamSlice& slice) const {
  const int64_t columns = columns_of(param);
  const OwnPart own = own_part(param, slice.row * columns, slice.rows * columns, groups_);
  SlicePart out;
  out.replicated = own.group == &groups_.back();
  if (own.count == 0) return out;
  out.first = own.skipped;
  out.count = own.count;
  out.values = own.of(values_of(*own.group));
  return out;
}

void ParamStore::load(Stream& stream, const ParamSource& source) {
  clear(stream);
  stream.sync();
  // Stretches of files, as many as lanes at a time.
  struct FileStretch {
    size_t slice;
    size_t begin, bytes;  // of the tensor in the file
    Tensor to;
  };
  std::vector<const TensorInfo*> infos;
  std::vector<FileStretch> stretches;
  for (const Param& param : table_.params) {
    for (const ParamSlice& slice : param.slices) {
      infos.push_back(&stored_info(source, slice));
      const size_t unit = size_of(infos.back()->dtype);
      const SlicePart part = slice_part(param, slice);
      const auto end = static_cast<size_t>(part.first + part.count) * unit;
      for (size_t at = static_cast<size_t>(part.first) * unit; at < end;) {
        const size_t next = std::min(end, source.next_cut(slice.hf_name, at, StagingLanes::block));
        const auto first = static_cast<int64_t>(at / unit), count = static_cast<int64_t>((next - at) / unit);
        stretches.push_back({infos.size() - 1, at, next - at, part.values.slice(first - part.first, count)});
        at = next;
      }
    }
  }
  std::vector<std::atomic<int64_t>> bad(infos.size());
  lanes_.run(static_cast<int64_t>(stretches.size()), [&](int64_t i, StagingLanes::Lane& lane) {
    const FileStretch& stretch = stretches[static_cast<size_t>(i)];
    const TensorInfo& info = *infos[stretch.slice];
    source.read_part(info.name, stretch.begin, stretch.bytes, lane.first);
    bad[stretch.slice] += upload_values(stretch.to, lane.first, info.dtype, lane);
  });
  for (size_t i = 0; i < infos.size(); ++i) {
    if (bad[i] == 0) continue;
    throw Error(ErrorKind::model,
                format("tensor {} holds {} NaN or infinite values", infos[i]->name, bad[i].load()),
                "model weights", "the checkpoint is damaged; take an earlier one or download it again");
  }
  refresh_storage(stream);
}

void ParamStore::initialise(Stream& stream, uint64_t seed, double range) {
  clear(stream);
  std::vector<float> values;
  for (size_t p = 0; p < table_.params.size(); ++p) {
    const Param& param = table_.params[p];
    const int64_t count = param.shape.count();
    if (param.init == Init::log_uniform) {  // a value a head: not worth an op
      values.resize(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        values[static_cast<size_t>(i)] = log_uniform_value(seed, p, static_cast<uint64_t>(i));
      }
      write_slice(stream, param, {"", 0, param.shape[0], {}}, values.data());
      continue;
    }
    const OwnPart own = own_part(param, 0, count, groups_);
    if (own.count == 0) continue;
    const Tensor view = own.of(values_of(*own.group));
    if (param.init == Init::normal) {
      ops::fill_normal(stream, view, range, {seed, p, static_cast<uint64_t>(own.skipped)});
    } else {
      ops::fill(stream, view, param.init == Init::ones ? 1 : 0);
    }
  }
  refresh_storage(stream);
}

void ParamStore::read_part(Stream& stream, const OwnPart& own, Tensor flat, bool sum, float* to) const {
  std::vector<float> values(static_cast<size_t>(own.count));
  const Tensor view = own.of(flat);
  std::vector<std::byte> bytes(view.bytes());
  stream.download(bytes.data(), view);
  stream.sync();
  float* direct = sharded() ? values.data() : to;
  convert(direct, DType::f32, bytes.data(), view.dtype, view.count());
  if (!sharded()) return;
  const bool replicated = own.group == &groups_.back() || (sum && whole_states());
  if (replicated && !sum && comm_.rank() != 0) values.clear();
  const std::vector<std::string> parts =
      comm_.collect({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  // Chunks lie in rank order; of the replicated group every rank has all.
  bool first = true;
  for (const std::string& part : parts) {
    values.resize(part.size() / sizeof(float));
    if (!part.empty()) std::memcpy(values.data(), part.data(), part.size());
    if (replicated && !first) {
      for (size_t i = 0; i < values.size(); ++i) to[i] += values[i];
    } else {
      to = std::copy(values.begin(), values.end(), to) - (replicated ? own.count : 0);
    }
    first = false;
  }
}

void ParamStore::read_slice(Stream& stream, const Param& param, const ParamSlice& slice, float* to) const {
  const int64_t columns = columns_of(param);
  const OwnPart own = own_part(param, slice.row * columns, slice.rows * columns, groups_);
  read_part(stream, own, values_of(*own.group), false, to);
}

void ParamStore::read_gradient(Stream& stream, const Param& param, const ParamSlice& slice, float* to) const {
  wait_for_reductions(stream);
  const int64_t columns = columns_of(param);
  const OwnPart own = own_part(param, slice.row * columns, slice.rows * columns, to_update());
  read_part(stream, own, own.group->grads, true, to);
}

}  // namespace deltatune
