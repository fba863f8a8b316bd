// ParamStore: rows of the embedding's table in place of the table.
//
// All ranks know what all of them look up. Forward: each makes the rows of all, with zeros where it does not
// have the elements, and a reduction hands every rank the sum of its own: one term of each is not zero, so
// the sum is exact. Backward: the gradients of what was looked up go to all, and each adds up those of its
// chunk. n T rows travel either way, in storage dtype. They lie in the slots that the embedding would be
// gathered to and reduced from, so that nothing but the ids takes memory of its own; which chunk an element
// is in, and all that is saved, is as it would be otherwise. Both directions run on the stream of the
// collectives.
#include "base/error.h"
#include "ops/ops.h"
#include "shard/param_store.h"

namespace deltatune {
namespace {

Tensor flat(Tensor x) {
  return x.reshaped({x.count()});
}
CTensor flat(CTensor x) {
  return x.reshaped({x.count()});
}

}  // namespace

void ParamStore::share_ids(Stream& stream, CTensor ids_2T) {
  DELTATUNE_ASSERT(reduces_rows() && ids_2T.dim(1) == options_.lookups);
  comm_follows(stream);  // they may have just been written
  collective("gather", ids_R2T_, [&] { comm_.all_gather(*comm_stream_, flat(ids_R2T_), flat(ids_2T)); });
}

void ParamStore::look_up(Stream& stream, Tensor x_TD) {
  DELTATUNE_ASSERT(looks_up_rows() && x_TD.dim(0) == options_.lookups && x_TD.dtype == options_.storage);
  comm_follows(stream);  // the chunks may have just been written
  WeightSlot& slot = weight_slots_[static_cast<size_t>(own_weight_slot_[0])];
  const Shape all{layout_.world_size, x_TD.dim(0), x_TD.dim(1)};
  const Tensor rows_RTD = slot.memory.slice(0, all.count()).reshaped(all);
  ops::embedding_part_forward(*comm_stream_, rows_RTD, ids_R2T_, groups_[0].weights, groups_[0].begin);
  const bool narrow = x_TD.dtype != DType::f32;
  const Tensor sum_TD = narrow ? Tensor{rows_RTD.data + rows_RTD.bytes(), DType::f32, x_TD.shape} : x_TD;
  collective("reduce", rows_RTD, [&] { comm_.reduce_scatter(*comm_stream_, flat(sum_TD), flat(rows_RTD)); });
  record(*comm_stream_, slot.gathered);
  wait_for_comm(stream, slot.gathered);
  if (narrow) ops::cast(stream, x_TD, sum_TD);
  record(stream, slot.released);
}

void ParamStore::begin_looked_up(Stream& stream, bool fresh) {
  DELTATUNE_ASSERT(reduces_rows());
  if (!fresh) return;
  comm_follows(stream);
  if (options_.release) {
    const Edge& updated = release_slots_[release_slot_[0]].updated;
    if (updated.set) comm_stream_->wait(updated.event);
  }
  ops::fill(*comm_stream_, groups_[0].grads, 0);
}

void ParamStore::reduce_looked_up(Stream& stream, CTensor dx_TD) {
  DELTATUNE_ASSERT(reduces_rows() && dx_TD.dim(0) == options_.lookups);
  const auto s = static_cast<size_t>(own_grad_slot_[0]);
  GradSlot& slot = grad_slots_[s];
  held_.grads[s] = 0;
  const Tensor all_RTD{slot.memory.data, dx_TD.dtype, {layout_.world_size, dx_TD.dim(0), dx_TD.dim(1)}};
  comm_follows(stream);
  collective("gather", all_RTD, [&] { comm_.all_gather(*comm_stream_, flat(all_RTD), flat(dx_TD)); });
  ops::embedding_part_backward(*comm_stream_, groups_[0].grads, all_RTD, ids_R2T_, groups_[0].begin);
  record(*comm_stream_, slot.reduced);
  release_update(stream, 0);
}

}  // namespace deltatune
