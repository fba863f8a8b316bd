// ParamStore: placing flat groups. Gathering and reducing them is group_slots.cpp, updating param_update.cpp.
#include "shard/param_store.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"
#include "ops/moment_codes.h"
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
  DELTATUNE_ASSERT(!whole_states() || (options.reduce == DType::f32 && !options.moments.offload));
  place_groups();
  if (takes_turns()) place_gather_slots();
  if (sharded()) comm_stream_ = device.make_stream("comm");
  if (options_.train && options_.release) place_release_slots();
}

void ParamStore::place_groups() {
  const bool master = options_.train && options_.master && options_.storage != DType::f32;
  const auto count_groups = table_.groups.size();
  // One buffer per kind of state over all groups: a handful of allocations, and the plan reads like a table.
  int64_t elements = 0;
  for (size_t g = 0; g < count_groups; ++g) elements += layout_.chunk(static_cast<int>(g));
  // How many chunks of a group there are here, of the weights and of the rest.
  const int64_t parts = options_.whole_weights || options_.whole_states ? layout_.world_size : 1;
  const int64_t state_parts = options_.whole_states ? layout_.world_size : 1;
  const Tensor weights = take(device_, buffers_, options_.storage, elements * parts,
                              format("weights {}", name_of(options_.storage)));
  elements *= state_parts;
  const int64_t with_f32 = elements + layout_.f32_elements;
  const Tensor f32_weights = take(device_, buffers_, DType::f32, layout_.f32_elements, "weights kept in f32");
  Tensor masters, grads;
  const bool all_gradients = options_.train && !options_.release;
  if (options_.train) {
    grads = take(device_, buffers_, DType::f32, all_gradients ? with_f32 : layout_.f32_elements,
                 all_gradients ? "gradients f32" : "gradients of weights kept in f32");
    if (master) masters = take(device_, buffers_, DType::f32, elements, "master weights f32");
    std::vector<int64_t> counts;
    for (size_t g = 0; g < count_groups; ++g)
      counts.push_back(layout_.chunk(static_cast<int>(g)) * state_parts);
    moments_ = std::make_unique<Moments>(device_, options_.moments, counts);
    // A few thousand values each: rounding them would save nothing.
    f32_m_ = take(device_, buffers_, DType::f32, layout_.f32_elements, "Adam m of weights kept in f32");
    f32_v_ = take(device_, buffers_, DType::f32, layout_.f32_elements, "Adam v of weights kept in f32");
    sum_squares_ = take(device_, buffers_, DType::f64, 1, "gradient norm");
    own_squares_ = take(device_, buffers_, DType::f64, 1, "gradient norm of this rank");
  }
  int64_t at = 0;
  for (size_t g = 0; g <= count_groups; ++g) {
    const bool f32_group = g == count_groups;
    const int index = f32_group ? -1 : static_cast<int>(g);
    const int64_t count = f32_group ? layout_.f32_elements : layout_.chunk(index);
    // All of the group that is here, then this rank's chunk of it.
    const int64_t here = f32_group ? count : count * state_parts;
    Group whole;
    whole.weights = f32_group ? f32_weights : part(weights, at * parts, count * parts);
    if (options_.train) {
      if (all_gradients) whole.grads = part(grads, at * state_parts, here);
      if (!all_gradients && f32_group) whole.grads = grads;
      if (master && !f32_group) whole.master = part(masters, at * state_parts, here);
    }
    Group group = whole;
    const int64_t own = f32_group ? 0 : count * comm_.rank();
    if (parts > 1) group.weights = part(whole.weights, own, count);
    if (state_parts > 1) {
      if (!whole.grads.empty()) group.grads = part(whole.grads, own, count);
      if (!whole.master.empty()) group.master = part(whole.master, own, count);
    }
    group.begin = own;
    group.ranges = layout_.ranges(table_, index, own, count);
    groups_.push_back(group);
    if (whole_states()) {
      whole.ranges = layout_.ranges(table_, index, 0, here);
      whole_.push_back(whole);
    }
    if (!f32_group && !takes_turns()) {
      point_weights(index, whole.weights);
      if (all_gradients) point_grads(index, whole.grads);
    } else if (!f32_group && options_.whole_weights) {
      weight_slots_.push_back({whole.weights, {}, {}});
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

void ParamStore::point_grads(int group, Tensor flat, Tensor summed) {
  for (const int index : table_.groups[static_cast<size_t>(group)].params) {
    const auto i = static_cast<size_t>(index);
    const Placement& place = layout_.placements[i];
    const Shape shape = table_.params[i].shape;
    const bool apart = !summed.empty() && place.offset < layout_.summed[static_cast<size_t>(group)];
    if (!place.in_f32_group)
      grads_[i] = part(apart ? summed : flat, place.offset, shape.count()).reshaped(shape);
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

MomentViews ParamStore::own_moments(size_t group) const {
  const MomentViews& here = moments_->of(group);
  return whole_states() ? here.slice(groups_[group].begin, groups_[group].weights.count()) : here;
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
    const MomentViews moments = f32_group ? MomentViews{f32_m_, f32_v_, {}, {}} : own_moments(g);
    add(".m", moments.m);
    add(".v", moments.v);
    if (moments.m_unit.empty()) continue;
    for (const auto& [part_name, units] : {std::pair(".m_unit", moments.m_unit), {".v_unit", moments.v_unit}})
      out.push_back({name + part_name, units, group.begin / moment_block, false});
  }
  return out;
}

void ParamStore::refresh_storage(Stream& stream) {
  if (whole_states()) gather_states(stream);
  for (const Group& group : to_update()) {
    if (!group.master.empty()) ops::cast(stream, group.weights, group.master);
  }
  drop_gathered();
}

}  // namespace deltatune
