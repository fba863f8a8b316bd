// ParamStore: memory that groups take turns in, and the two streams that touch it. Where the world has one
// rank there are only the slots of gradient release.
#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/trace.h"
#include "ops/ops.h"
#include "ops/scratch.h"
#include "shard/param_store.h"

namespace deltatune {

void ParamStore::place_gather_slots() {
  // Blocks share two slots; the embedding and the final group are used far apart.
  const auto last = table_.groups.size() - 1;
  int64_t largest = 0;
  int64_t largest_summed = 0;
  for (size_t g = 1; g < last; ++g) {
    largest = std::max(largest, layout_.padded[g]);
    largest_summed = std::max(largest_summed, layout_.summed[g]);
  }
  const auto take = [&](DType dtype, int64_t count, const std::string& name, Lifetime lifetime) {
    buffers_.push_back(
        device_.allocate(static_cast<size_t>(count) * size_of(dtype), name, "parameters", lifetime));
    return Tensor{buffers_.back().data(), dtype, {count}};
  };
  const bool gather = !options_.whole_weights;  // else each group has its place already
  const auto add = [&](int64_t count, const std::string& name, Lifetime lifetime, DType reduce = DType::f32) {
    if (gather)
      weight_slots_.push_back({take(options_.storage, count, "gathered weights, " + name, lifetime), {}, {}});
    if (!options_.train) return;
    GradSlot slot;
    slot.memory = take(reduce, count, "full gradients, " + name, lifetime);
    if (reduce != DType::f32 && largest_summed > 0)
      slot.summed = take(DType::f32, largest_summed, "gradients to be rounded, " + name, lifetime);
    grad_slots_.push_back(slot);
  };
  for (const char* name : {"block slot 0", "block slot 1"})
    add(largest, name, Lifetime::block, options_.reduce);
  if (options_.ends_take_turns) {
    add(std::max(layout_.padded[0], layout_.padded[last]), "embedding and head in turns", Lifetime::step);
  } else {
    for (const size_t g : {size_t{0}, last}) add(layout_.padded[g], table_.groups[g].name, Lifetime::step);
  }
  for (size_t g = 0; g <= last; ++g) {
    const int own = g == 0 ? 2 : g < last ? -1 : options_.ends_take_turns ? 2 : 3;
    own_grad_slot_.push_back(own);
    own_weight_slot_.push_back(gather ? own : static_cast<int>(g));
  }
  held_.weights.assign(weight_slots_.size(), -1);
  held_.grads.assign(grad_slots_.size(), -1);
  if (!reduces_rows()) return;
  const Shape table = table_.params[static_cast<size_t>(table_.groups[0].params.at(0))].shape;
  const int64_t ranks = layout_.world_size, lookups = options_.lookups;
  DELTATUNE_ASSERT(table_.groups[0].params.size() == 1 && table.rank == 2);
  DELTATUNE_ASSERT(gradient_rows_pay(table[0], lookups, options_.storage, layout_.world_size));
  DELTATUNE_ASSERT(!looks_up_rows() || lookup_rows_pay(table[0], lookups, layout_.world_size, 1));
  ids_R2T_ = take(DType::i32, ranks * 2 * lookups, "token ids of all ranks", Lifetime::step)
                 .reshaped({ranks, 2, lookups});
}

// Blocks share two slots where their updates run beside the next block's backward, else one.
void ParamStore::place_release_slots() {
  const bool beside = sharded() || options_.moments.offload;
  const size_t last = table_.groups.size() - 1;
  const size_t blocks = beside ? 2 : 1;
  const bool turns = options_.ends_take_turns;
  std::vector<int64_t> counts(blocks + (turns ? 1 : 2));
  for (size_t g = 0; g <= last; ++g) {
    const bool end = g == 0 || g == last;
    release_slot_.push_back(!end ? g % blocks : blocks + (!turns && g == last ? 1 : 0));
    int64_t& count = counts[release_slot_.back()];
    count = std::max(count, to_update()[g].weights.count());
  }
  const auto take = [&](size_t bytes, const std::string& name, Lifetime lifetime) {
    buffers_.push_back(device_.allocate(bytes, name, "parameters", lifetime));
    return buffers_.back().data();
  };
  for (size_t s = 0; s < counts.size(); ++s) {
    const std::string name = s < blocks ? format("block slot {}", s)
                             : turns    ? "embedding and head in turns"
                                        : table_.groups[s == blocks ? 0 : last].name;
    const Lifetime lifetime = s < blocks ? Lifetime::block : Lifetime::step;
    std::byte* memory = take(static_cast<size_t>(counts[s]) * 4, "gradients f32, " + name, lifetime);
    release_slots_.push_back({{memory, DType::f32, {counts[s]}}, {}});
  }
  int64_t largest = 0;
  for (size_t g = 0; g <= last; ++g) {
    const Tensor& slot = release_slots_[release_slot_[g]].memory;
    const Tensor grads = slot.slice(0, to_update()[g].weights.count());
    largest = std::max(largest, grads.count());
    if (!takes_turns()) point_grads(static_cast<int>(g), grads);
    Group& group = groups_[g];
    group.grads = grads;
    if (!whole_states()) continue;
    whole_[g].grads = grads;
    group.grads = grads.slice(group.begin, group.weights.count());
  }
  if (!beside) return;
  update_stream_ = device_.make_stream("update");
  const size_t scratch = scratch::sum_squares(device_.target(), largest);
  update_stream_->set_scratch({take(scratch, "scratch of updates", Lifetime::op), scratch});
}

void ParamStore::lend(std::vector<CTensor>& weights, std::vector<Tensor>& grads) {
  const auto own_weights = weights_;
  const auto own_grads = grads_;
  for (size_t g = 0; takes_turns() && g < table_.groups.size(); ++g) {
    const auto w = static_cast<size_t>(std::max(own_weight_slot_[g], 0));
    const auto s = static_cast<size_t>(std::max(own_grad_slot_[g], 0));
    point_weights(static_cast<int>(g), weight_slots_[w].memory);
    if (options_.train) point_grads(static_cast<int>(g), grad_slots_[s].memory, grad_slots_[s].summed);
  }
  weights = std::exchange(weights_, own_weights);
  grads = std::exchange(grads_, own_grads);
}

void ParamStore::record(Stream& stream, Edge& edge) {
  stream.record(edge.event);
  edge.set = true;
}

// What compute waits for here is communication that nothing hides.
void ParamStore::wait_for_comm(Stream& stream, const Edge& edge) const {
  if (!edge.set) return;
  comm_.begin_wait(stream);
  stream.wait(edge.event);
  comm_.end_wait(stream);
}

void ParamStore::comm_follows(Stream& stream) {
  stream.record(handed_);
  comm_stream_->wait(handed_);
}

void ParamStore::follow_comm(Stream& stream) {
  comm_stream_->record(taken_);
  comm_.begin_wait(stream);
  stream.wait(taken_);
  comm_.end_wait(stream);
}

void ParamStore::forget_edges() {
  for (WeightSlot& slot : weight_slots_) slot.gathered.set = slot.released.set = false;
  for (GradSlot& slot : grad_slots_) slot.reduced.set = false;
}

void ParamStore::begin_part(Stream& stream) {
  if (!sharded()) return;
  forget_edges();
  comm_follows(stream);
}

void ParamStore::end_part(Stream& stream) {
  if (!sharded()) return;
  follow_comm(stream);
  forget_edges();
}

void ParamStore::drop_gathered() {
  std::fill(held_.weights.begin(), held_.weights.end(), -1);
  held_.last_weights = 1;
  // Whoever gathers next follows all work on the chunks, not only what has read the slot.
  for (WeightSlot& slot : weight_slots_) slot.released.set = false;
}

int ParamStore::weight_slot(int group) const {
  const int own = own_weight_slot_[static_cast<size_t>(group)];
  if (own >= 0) return own;
  for (int s = 0; s < 2; ++s) {
    if (held_.weights[static_cast<size_t>(s)] == group) return s;
  }
  return 1 - held_.last_weights;
}

int ParamStore::grad_slot(int group) const {
  const int own = own_grad_slot_[static_cast<size_t>(group)];
  if (own >= 0) return own;
  const int last = held_.last_grads;
  return held_.grads[static_cast<size_t>(last)] == group ? last : 1 - last;
}

void ParamStore::prefetch(Stream& stream, int group) {
  if (!takes_turns()) return;
  const auto g = static_cast<size_t>(group);
  const auto s = static_cast<size_t>(weight_slot(group));
  if (held_.weights[s] == group) return;
  WeightSlot& slot = weight_slots_[s];
  if (slot.released.set) {
    comm_stream_->wait(slot.released.event);
  } else {
    comm_follows(stream);  // the chunks may have just been written
  }
  {
    const Tensor whole = slot.memory.slice(0, layout_.padded[g]);
    const TracePhaseScope phase(TracePhase::comm);
    const TraceSpan span("gather", TraceKind::op, comm_stream_->name(), static_cast<double>(whole.bytes()));
    comm_.all_gather(*comm_stream_, whole, groups_[g].weights);
  }
  record(*comm_stream_, slot.gathered);
  held_.weights[s] = group;
}

void ParamStore::acquire(Stream& stream, int group) {
  if (!takes_turns()) return;
  prefetch(stream, group);
  const int s = weight_slot(group);
  const WeightSlot& slot = weight_slots_[static_cast<size_t>(s)];
  wait_for_comm(stream, slot.gathered);
  point_weights(group, slot.memory);
  if (own_weight_slot_[static_cast<size_t>(group)] < 0) held_.last_weights = s;
}

void ParamStore::release(Stream& stream, int group) {
  if (!takes_turns()) return;
  const auto s = static_cast<size_t>(weight_slot(group));
  DELTATUNE_ASSERT(held_.weights[s] == group);
  record(stream, weight_slots_[s].released);
}

void ParamStore::begin_gradients(Stream& stream, int group) {
  if (!takes_turns()) return begin_release_gradients(stream, group);
  const auto g = static_cast<size_t>(group);
  const int own = own_grad_slot_[g];
  const int s = own >= 0 ? own : 1 - held_.last_grads;
  if (own < 0) held_.last_grads = s;
  held_.grads[static_cast<size_t>(s)] = group;
  GradSlot& slot = grad_slots_[static_cast<size_t>(s)];
  wait_for_comm(stream, slot.reduced);
  slot.reduced.set = false;
  for (const Stretch& gap : layout_.unwritten[g]) {
    const bool apart = !slot.summed.empty() && gap.begin < layout_.summed[g];
    ops::fill(stream, (apart ? slot.summed : slot.memory).slice(gap.begin, gap.count), 0);
  }
  point_grads(group, slot.memory, slot.summed);
}

void ParamStore::reduce(Stream& stream, int group, bool fresh) {
  const auto g = static_cast<size_t>(group);
  if (whole_states() && options_.release) {
    comm_follows(stream);
    sum_over_ranks(g);
    comm_stream_->record(summed_);
  }
  if (!takes_turns()) return release_update(stream, group);
  const auto s = static_cast<size_t>(grad_slot(group));
  DELTATUNE_ASSERT(held_.grads[s] == group);
  GradSlot& slot = grad_slots_[s];
  if (const int64_t count = layout_.summed[g]; !slot.summed.empty() && count > 0)
    ops::cast(stream, slot.memory.slice(0, count), slot.summed.slice(0, count));
  comm_follows(stream);
  if (options_.release) {
    const Edge& updated = release_slots_[release_slot_[g]].updated;
    if (updated.set) comm_stream_->wait(updated.event);
  }
  const Tensor full = slot.memory.slice(0, layout_.padded[g]);
  {
    const TracePhaseScope phase(TracePhase::comm);
    const TraceSpan span("reduce", TraceKind::op, comm_stream_->name(), static_cast<double>(full.bytes()));
    if (fresh) {
      comm_.reduce_scatter(*comm_stream_, groups_[g].grads, full);
    } else {
      comm_.reduce_scatter_add(*comm_stream_, groups_[g].grads, full);
    }
  }
  record(*comm_stream_, slot.reduced);
  release_update(stream, group);
}

// Whole states. An all-reduce in two halves, both of them collectives that use all links: every rank adds up
// its chunk, in the order of the ranks, then gets the others'.
void ParamStore::sum_over_ranks(size_t group) {
  comm_.reduce_scatter(*comm_stream_, groups_[group].grads, whole_[group].grads);
  comm_.all_gather(*comm_stream_, whole_[group].grads, groups_[group].grads);
}

// Whole states, of which each rank has read or made its chunks.
void ParamStore::gather_states(Stream& stream) {
  comm_follows(stream);
  const auto gather = [&](const Tensor& whole, const Tensor& own) {
    if (own.count() > 0) comm_.all_gather(*comm_stream_, whole, own);
  };
  for (size_t g = 0; g + 1 < groups_.size(); ++g) {
    if (groups_[g].weights.count() == 0) continue;
    gather(values_of(whole_[g]), values_of(groups_[g]));
    if (!options_.train) continue;
    const MomentViews& whole = moments_->of(g);
    const MomentViews own = own_moments(g);
    gather(whole.m, own.m);
    gather(whole.v, own.v);
    if (whole.m_unit.empty()) continue;
    gather(whole.m_unit, own.m_unit);
    gather(whole.v_unit, own.v_unit);
  }
  follow_comm(stream);
}

void ParamStore::wait_for_reductions(Stream& stream) const {
  for (const GradSlot& slot : grad_slots_) wait_for_comm(stream, slot.reduced);
}

void ParamStore::all_reduce(Stream& stream, Tensor x) {
  if (!sharded() || x.count() == 0) return;
  comm_follows(stream);
  {
    const TracePhaseScope phase(TracePhase::comm);
    const TraceSpan span("all-reduce", TraceKind::op, comm_stream_->name(), static_cast<double>(x.bytes()));
    comm_.all_reduce(*comm_stream_, x);
  }
  follow_comm(stream);
}

void ParamStore::sync() {
  if (comm_stream_) comm_stream_->sync();
  comm_.check_peers();
}

void ParamStore::sync_updates() {
  if (update_stream_) update_stream_->sync();
  if (moments_) moments_->sync();
}

}  // namespace deltatune
