// ParamStore: placing and updating flat groups. Gathering and reducing them is group_slots.cpp.
#include "shard/param_store.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"
#include "ops/ops.h"

namespace deltatune {
namespace {

Tensor part(Tensor flat, int64_t begin, int64_t count) {
  return flat.slice(begin, count);
}

Tensor take(Device& device, std::vector<Buffer>& buffers, DType dtype, int64_t count, const std::string& name,
            Lifetime lifetime = Lifetime::run) {
  buffers.push_back(
      device.allocate(static_cast<size_t>(count) * size_of(dtype), name, "parameters", lifetime));
  return {buffers.back().data(), dtype, {count}};
}

}  // namespace

ParamStore::ParamStore(Device& device, Communicator& comm, const ParamTable& table, Options options)
    : device_(device),
      comm_(comm),
      table_(table),
      options_(options),
      layout_(table, comm.world_size()),
      lanes_(device),
      weights_(table.params.size()),
      grads_(table.params.size()) {
  DELTATUNE_ASSERT(options.storage == DType::f32 || options.storage == DType::bf16);
  place_groups();
  if (sharded()) {
    place_gather_slots();
    comm_stream_ = device.make_stream("comm");
  }
}

void ParamStore::place_groups() {
  const bool master = options_.train && options_.master && options_.storage != DType::f32;
  const auto count_groups = table_.groups.size();
  // One buffer per kind of state over all groups: a handful of allocations, and the plan reads like a table.
  int64_t elements = 0;
  for (size_t g = 0; g < count_groups; ++g) elements += layout_.chunk(static_cast<int>(g));
  const int64_t with_f32 = elements + layout_.f32_elements;
  const Tensor weights =
      take(device_, buffers_, options_.storage, elements, format("weights {}", name_of(options_.storage)));
  const Tensor f32_weights = take(device_, buffers_, DType::f32, layout_.f32_elements, "weights kept in f32");
  Tensor masters, m, v, f32_m, f32_v, grads;
  if (options_.train) {
    grads = take(device_, buffers_, DType::f32, with_f32, "gradients f32");
    if (master) masters = take(device_, buffers_, DType::f32, elements, "master weights f32");
    const DType dtype = options_.moments;
    m = take(device_, buffers_, dtype, elements, format("Adam m {}", name_of(dtype)));
    v = take(device_, buffers_, dtype, elements, format("Adam v {}", name_of(dtype)));
    // A few thousand values each: rounding them would save nothing.
    f32_m = take(device_, buffers_, DType::f32, layout_.f32_elements, "Adam m of weights kept in f32");
    f32_v = take(device_, buffers_, DType::f32, layout_.f32_elements, "Adam v of weights kept in f32");
    sum_squares_ = take(device_, buffers_, DType::f64, 1, "gradient norm");
    own_squares_ = take(device_, buffers_, DType::f64, 1, "gradient norm of this rank");
  }
  int64_t at = 0;
  for (size_t g = 0; g <= count_groups; ++g) {
    const bool f32_group = g == count_groups;
    const int index = f32_group ? -1 : static_cast<int>(g);
    const int64_t count = f32_group ? layout_.f32_elements : layout_.chunk(index);
    Group group;
    group.weights = f32_group ? f32_weights : part(weights, at, count);
    if (options_.train) {
      group.grads = part(grads, at, count);
      group.m = f32_group ? f32_m : part(m, at, count);
      group.v = f32_group ? f32_v : part(v, at, count);
      if (master && !f32_group) group.master = part(masters, at, count);
    }
    group.begin = f32_group ? 0 : count * comm_.rank();
    group.ranges = layout_.ranges(table_, index, group.begin, count);
    groups_.push_back(group);
    if (!f32_group && !sharded()) {
      point_weights(index, group.weights);
      if (options_.train) point_grads(index, group.grads);
    }
    at += count;
  }
  point_f32_group();
}

void ParamStore::point_weights(int group, Tensor flat) {
  for (const int index : table_.groups[static_cast<size_t>(group)].params) {
    const auto i = static_cast<size_t>(index);
    const Placement& place = layout_.placements[i];
    const Shape shape = table_.params[i].shape;
    if (!place.in_f32_group) weights_[i] = part(flat, place.offset, shape.count()).reshaped(shape);
  }
}

void ParamStore::point_grads(int group, Tensor flat) {
  for (const int index : table_.groups[static_cast<size_t>(group)].params) {
    const auto i = static_cast<size_t>(index);
    const Placement& place = layout_.placements[i];
    const Shape shape = table_.params[i].shape;
    if (!place.in_f32_group) grads_[i] = part(flat, place.offset, shape.count()).reshaped(shape);
  }
}

void ParamStore::point_f32_group() {
  const Group& group = groups_.back();
  for (size_t i = 0; i < table_.params.size(); ++i) {
    const Placement& place = layout_.placements[i];
    if (!place.in_f32_group) continue;
    const Shape shape = table_.params[i].shape;
    weights_[i] = part(group.weights, place.offset, shape.count()).reshaped(shape);
    if (options_.train) grads_[i] = part(group.grads, place.offset, shape.count()).reshaped(shape);
  }
}

void ParamStore::zero_gradients(Stream& stream) {
  wait_for_reductions(stream);  // of a window that was given up
  for (const Group& group : groups_) {
    if (group.grads.count() > 0) ops::fill(stream, group.grads, 0);
  }
}

void ParamStore::zero_summed_gradients(Stream& stream) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const bool f32_group = g + 1 == groups_.size();
    const int64_t count = f32_group ? group.grads.count() : sharded() ? 0 : layout_.summed[g];
    if (count > 0) ops::fill(stream, part(group.grads, 0, count), 0);
  }
}

void ParamStore::step(Stream& stream, Tensor scalars_8, float max_norm) {
  measure_gradients(stream, scalars_8, max_norm);
  apply_gradients(stream, scalars_8);
}

void ParamStore::measure_gradients(Stream& stream, Tensor scalars_8, float max_norm) {
  wait_for_reductions(stream);
  const Group& f32_group = groups_.back();
  if (sharded()) {
    ops::fill(stream, own_squares_, 0);
    if (f32_group.grads.count() > 0) ops::sum_squares(stream, own_squares_, f32_group.grads);
  }
  all_reduce(stream, f32_group.grads);
  ops::fill(stream, sum_squares_, 0);
  for (size_t g = 0; g + 1 < groups_.size(); ++g) ops::sum_squares(stream, sum_squares_, groups_[g].grads);
  // The f32 group is the same on every rank: it enters the global sum once.
  if (comm_.rank() == 0 && f32_group.grads.count() > 0)
    ops::sum_squares(stream, sum_squares_, f32_group.grads);
  all_reduce(stream, sum_squares_);
  ops::grad_scale(stream, scalars_8, sum_squares_, max_norm);
}

void ParamStore::apply_gradients(Stream& stream, CTensor scalars_8) {
  for (size_t g = 0; g < groups_.size(); ++g) update(stream, g, scalars_8);
  drop_gathered();
}

void ParamStore::update(Stream& stream, size_t index, CTensor scalars_8) {
  const Group& group = groups_[index];
  for (const OptimizerRange& range : group.ranges) {
    AdamwTensors t;
    t.param_n = part(group.weights, range.begin, range.count);
    if (!group.master.empty()) t.master_n = part(group.master, range.begin, range.count);
    t.m_n = part(group.m, range.begin, range.count);
    t.v_n = part(group.v, range.begin, range.count);
    t.grad_n = part(group.grads, range.begin, range.count);
    t.first = group.begin + range.begin;
    t.group = static_cast<uint32_t>(index);
    AdamwOptions options = options_.adamw;
    options.weight_decay = options_.decay_all || range.decay ? options_.weight_decay : 0;
    ops::adamw(stream, t, scalars_8, options);
  }
}

std::vector<StateTensor> ParamStore::state() const {
  std::vector<StateTensor> out;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.weights.count() == 0) continue;
    const bool f32_group = g + 1 == groups_.size();
    const std::string name = f32_group ? "f32" : table_.groups[g].name;
    const auto add = [&](const char* part_name, Tensor data) {
      out.push_back({name + part_name, data, group.begin, f32_group});
    };
    add(".weights", values_of(group));
    if (!options_.train) continue;
    add(".m", group.m);
    add(".v", group.v);
  }
  return out;
}

void ParamStore::refresh_storage(Stream& stream) {
  for (const Group& group : groups_) {
    if (!group.master.empty()) ops::cast(stream, group.weights, group.master);
  }
  drop_gathered();
}

}  // namespace deltatune
