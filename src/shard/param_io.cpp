// ParamStore's dealings with the outside: checkpoints in, initial values, slices out.
#include <algorithm>
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

}  // namespace

ParamStore::OwnPart ParamStore::own_part(const Param& param, int64_t element, int64_t count) const {
  const auto index = static_cast<size_t>(&param - table_.params.data());
  const Placement& place = layout_.placements[index];
  OwnPart out;
  out.group = place.in_f32_group ? &groups_.back() : &groups_[static_cast<size_t>(param.group)];
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
  const OwnPart own = own_part(param, slice.row * columns, slice.rows * columns);
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
  for (const Group& group : groups_) {
    for (const Tensor& state : {group.weights, group.master, group.m, group.v, group.grads}) {
      if (!state.empty() && state.count() > 0) ops::fill(stream, state, 0);
    }
  }
}

void ParamStore::load(Stream& stream, const ParamSource& source) {
  clear(stream);
  std::vector<std::byte> bytes;
  std::vector<float> values;
  for (const Param& param : table_.params) {
    for (const ParamSlice& slice : param.slices) {
      const TensorInfo* info = source.find(slice.hf_name);
      if (!info) {
        throw Error(ErrorKind::model, "the checkpoint has no tensor " + slice.hf_name, "model weights",
                    "download the checkpoint again, or take one whose config.json matches its weights");
      }
      if (info->shape != slice.hf_shape) {
        const auto text = [](const std::vector<int64_t>& shape) {
          std::string out;
          for (const int64_t size : shape) out += (out.empty() ? "[" : ", ") + std::to_string(size);
          return out + "]";
        };
        throw Error(ErrorKind::model,
                    format("tensor {} has shape {}, config.json asks for {}", slice.hf_name,
                           text(info->shape), text(slice.hf_shape)),
                    "model weights", "use the config.json that belongs to these weights");
      }
      const auto count = static_cast<size_t>(slice.rows * columns_of(param));
      bytes.resize(count * size_of(info->dtype));
      values.resize(count);
      source.read(slice.hf_name, bytes.data());
      convert(values.data(), DType::f32, bytes.data(), info->dtype, static_cast<int64_t>(count));
      int64_t bad = 0;
      for (const float value : values) bad += !std::isfinite(value);
      if (bad > 0) {
        throw Error(ErrorKind::model, format("tensor {} holds {} NaN or infinite values", slice.hf_name, bad),
                    "model weights", "the checkpoint is damaged; take an earlier one or download it again");
      }
      write_slice(stream, param, slice, values.data());
    }
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
    const OwnPart own = own_part(param, 0, count);
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
  const bool replicated = own.group == &groups_.back();
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
  const OwnPart own = own_part(param, slice.row * columns, slice.rows * columns);
  read_part(stream, own, values_of(*own.group), false, to);
}

void ParamStore::read_gradient(Stream& stream, const Param& param, const ParamSlice& slice, float* to) const {
  wait_for_reductions(stream);
  const int64_t columns = columns_of(param);
  const OwnPart own = own_part(param, slice.row * columns, slice.rows * columns);
  read_part(stream, own, own.group->grads, true, to);
}

}  // namespace deltatune
