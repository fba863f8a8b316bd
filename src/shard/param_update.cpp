// ParamStore: gradients to zero, their norm, and the update - of all groups at once, or group by group inside
// of backward (gradient release).
#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/trace.h"
#include "ops/ops.h"
#include "shard/param_store.h"

namespace deltatune {
namespace {

Tensor part(Tensor flat, int64_t begin, int64_t count) {
  return flat.slice(begin, count);
}

}  // namespace

void ParamStore::zero_gradients(Stream& stream) {
  wait_for_reductions(stream);  // of a window that was given up
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Tensor& grads = to_update()[g].grads;
    const bool in_slot = options_.release && g + 1 < groups_.size();
    if (grads.count() > 0 && !in_slot) ops::fill(stream, grads, 0);
  }
}

void ParamStore::zero_summed_gradients(Stream& stream) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = to_update()[g];
    const bool f32_group = g + 1 == groups_.size();
    const int64_t count = f32_group ? group.grads.count() : gradients_add_up() ? layout_.summed[g] : 0;
    if (count > 0) ops::fill(stream, part(group.grads, 0, count), 0);
  }
}

// In a slot there is what another group has left.
void ParamStore::begin_release_gradients(Stream& stream, int group) {
  if (!options_.release) return;
  const auto g = static_cast<size_t>(group);
  const Edge& updated = release_slots_[release_slot_[g]].updated;
  if (updated.set) stream.wait(updated.event);
  for (const Stretch& gap : layout_.unwritten[g])
    ops::fill(stream, part(to_update()[g].grads, gap.begin, gap.count), 0);
}

void ParamStore::begin_release(Stream& stream, Tensor scalars_8) {
  release_scalars_8_ = scalars_8;
  ops::fill(stream, sum_squares_, 0);
  moments_->begin(stream);
  if (!update_stream_) return;
  stream.record(release_begun_);
  update_stream_->wait(release_begun_);
}

void ParamStore::end_release(Stream& stream) {
  if (update_stream_) {
    update_stream_->record(release_ended_);
    stream.wait(release_ended_);
  }
  moments_->end(stream);
  for (ReleaseSlot& slot : release_slots_) slot.updated.set = false;
}

// The running sum of squares stays what it is once it is not finite: grad_scale then holds up this group and
// all that come behind it.
void ParamStore::release_update(Stream& stream, int group) {
  if (!options_.release) return;
  const TracePhaseScope phase(TracePhase::update);
  const auto g = static_cast<size_t>(group);
  Stream& on = update_stream_ ? *update_stream_ : stream;
  if (whole_states()) {
    on.wait(summed_);
  } else if (sharded()) {
    on.wait(grad_slots_[static_cast<size_t>(grad_slot(group))].reduced.event);
  } else if (update_stream_) {
    stream.record(gradients_written_);
    on.wait(gradients_written_);
  }
  ops::sum_squares(on, sum_squares_, to_update()[g].grads);
  ops::grad_scale(on, release_scalars_8_, sum_squares_, 0);
  update(on, g, release_scalars_8_);
  if (update_stream_) record(on, release_slots_[release_slot_[g]].updated);
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
  if (whole_states() && !options_.release) {
    comm_follows(stream);
    for (size_t g = 0; g + 1 < groups_.size(); ++g) sum_over_ranks(g);
    follow_comm(stream);
  }
  if (!options_.release) {
    ops::fill(stream, sum_squares_, 0);
    for (size_t g = 0; g + 1 < groups_.size(); ++g) ops::sum_squares(stream, sum_squares_, groups_[g].grads);
  }
  // The f32 group is the same on every rank: it enters the global sum once. With whole states and release
  // every rank has the whole sum, since what holds up an update has to be the same on all.
  const bool whole_sum = whole_states() && options_.release;
  if ((comm_.rank() == 0 || whole_sum) && f32_group.grads.count() > 0)
    ops::sum_squares(stream, sum_squares_, f32_group.grads);
  if (!whole_sum) all_reduce(stream, sum_squares_);
  ops::grad_scale(stream, scalars_8, sum_squares_, max_norm);
}

std::vector<int> ParamStore::nonfinite_gradients(Stream& stream) {
  std::string own(table_.params.size(), '0');
  for (size_t i = 0; i < own.size(); ++i) {
    const Param& param = table_.params[i];
    const OwnPart part = own_part(param, 0, param.shape.count(), groups_);
    const bool f32_group = part.group == &groups_.back();
    if (part.count == 0 || (options_.release && !f32_group)) continue;
    // Its figure of the step has been read.
    ops::fill(stream, own_squares_, 0);
    ops::sum_squares(stream, own_squares_, part.of(part.group->grads));
    double squares = 0;
    stream.download(&squares, own_squares_);
    stream.sync();
    if (!std::isfinite(squares)) own[i] = '1';
  }
  std::vector<int> out;
  const std::vector<std::string> all = comm_.exchange(own);
  for (size_t i = 0; i < own.size(); ++i) {
    const auto bad = [&](const std::string& rank) { return i < rank.size() && rank[i] == '1'; };
    if (std::any_of(all.begin(), all.end(), bad)) out.push_back(static_cast<int>(i));
  }
  return out;
}

void ParamStore::apply_gradients(Stream& stream, CTensor scalars_8) {
  moments_->begin(stream);
  const size_t first = options_.release ? groups_.size() - 1 : 0;
  for (size_t g = first; g < groups_.size(); ++g) update(stream, g, scalars_8);
  moments_->end(stream);
  drop_gathered();
}

void ParamStore::update(Stream& stream, size_t index, CTensor scalars_8) {
  const Group& group = to_update()[index];
  if (index + 1 == groups_.size()) {
    MomentViews moments;
    moments.m = f32_m_;
    moments.v = f32_v_;
    for (const OptimizerRange& range : group.ranges)
      update_range(stream, index, range, moments.slice(range.begin, range.count), scalars_8);
    return;
  }
  moments_->each_piece(stream, index, [&](int64_t begin, const MomentViews& moments) {
    const int64_t end = begin + moments.m.count();
    for (const OptimizerRange& range : group.ranges) {
      const int64_t first = std::max(begin, range.begin);
      const int64_t last = std::min(end, range.begin + range.count);
      if (first >= last) continue;
      update_range(stream, index, {first, last - first, range.decay},
                   moments.slice(first - begin, last - first), scalars_8);
    }
  });
}

void ParamStore::update_range(Stream& stream, size_t index, const OptimizerRange& range,
                              const MomentViews& moments, CTensor scalars_8) {
  const Group& group = to_update()[index];
  AdamwTensors t;
  t.param_n = part(group.weights, range.begin, range.count);
  if (!group.master.empty()) t.master_n = part(group.master, range.begin, range.count);
  t.m_n = moments.m;
  t.v_n = moments.v;
  t.m_unit_b = moments.m_unit;
  t.v_unit_b = moments.v_unit;
  t.grad_n = part(group.grads, range.begin, range.count);
  t.first = group.begin + range.begin;
  t.group = static_cast<uint32_t>(index);
  AdamwOptions options = options_.adamw;
  options.weight_decay = options_.decay_all || range.decay ? options_.weight_decay : 0;
  ops::adamw(stream, t, scalars_8, options);
}

}  // namespace deltatune
