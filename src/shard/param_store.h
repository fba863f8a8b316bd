// ParamStore: all parameters, their gradients and optimizer states, of which this rank holds its chunk.
//
// Verbs: acquire(group) fills the group's entries of weights() (gathering them first where the world has more
// than one rank); gradients(group) fills grads(); reduce(group) sends them where they belong; step() updates.
// Invariants: gradients are those of the loss sum over all micro-batches since zero_gradients(), in fp32; the
// storage copy of a parameter is always its master rounded to nearest (or is the master itself, in f32 runs
// and without master weights); results of acquire stay valid until the second acquire of another block group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "ops/kernels.h"
#include "shard/layout.h"
#include "tensor/device.h"
#include "tensor/param_source.h"
#include "tensor/params.h"

namespace deltatune {

/// A named flat buffer of resumable state: "block 3.master", "f32.m", ...
struct StateTensor {
  std::string name;
  Tensor data;
};

class ParamStore {
 public:
  struct Options {
    DType storage = DType::f32;
    bool train = true;       ///< gradients and optimizer states wanted
    bool decay_all = false;  ///< weight decay on every parameter (`parity`), else where Param::decay says
    float weight_decay = 0;
    AdamwOptions adamw;          ///< its weight_decay is not looked at
    DType moments = DType::f32;  ///< of m and v, f32 or bf16; the f32 group's are f32
    bool master = true;          ///< bf16 runs: an fp32 copy of the weights
  };

  ParamStore(Device&, Communicator&, const ParamTable&, Options);

  /// Views indexed like ParamTable::params; only acquired groups may be used.
  const std::vector<CTensor>& weights() const { return weights_; }
  const std::vector<Tensor>& grads() const { return grads_; }

  void acquire(Stream&, int group);
  /// Makes the group's gradient views writable; they accumulate across calls when the world has one rank, and
  /// start from zero otherwise (reduce() adds them to the chunk).
  void begin_gradients(Stream&, int group);
  void reduce(Stream&, int group);
  void zero_gradients(Stream&);
  /// Zeroes what the next micro-batch adds to; product gradients (Param::product_gradient), which it then has
  /// to write, keep what they hold. Only where the world has one rank.
  void zero_summed_gradients(Stream&);

  /// scalars_8: learning rate, bias corrections and inverse_count are set; norm, scale and nonfinite are
  /// written. Clips by the global norm (max_norm <= 0: no clipping) and updates all parameters.
  void step(Stream&, Tensor scalars_8, float max_norm);
  /// The two halves of step(): the norm and what follows from it, then the update.
  void measure_gradients(Stream&, Tensor scalars_8, float max_norm);
  void apply_gradients(Stream&, CTensor scalars_8);

  /// Reads every slice from a checkpoint (Error{model} naming missing tensors or wrong shapes); moments start
  /// at zero.
  void load(Stream&, const ParamSource&);
  /// Hugging Face's initialiser, each element a pure function of (seed, parameter, index).
  void initialise(Stream&, uint64_t seed, double range);
  /// One parameter's slice as f32 on the host, from the master where there is one. For checkpoints and tests.
  void read_slice(Stream&, const Param&, const ParamSlice&, float* to) const;
  /// Same for the gradient of the loss sum (world of one rank).
  void read_gradient(Stream&, const Param&, const ParamSlice&, float* to) const;

  /// Everything a resumed run needs, in a fixed order.
  std::vector<StateTensor> state() const;
  /// After the state was written from outside: makes the storage copies from the masters again.
  void refresh_storage(Stream&);

  const ParamTable& table() const { return table_; }
  const Options& options() const { return options_; }

 private:
  struct Group {
    Tensor weights;     ///< storage dtype: this rank's chunk
    Tensor master;      ///< f32 chunk; empty in f32 runs and without master weights
    Tensor m, v;        ///< chunk in Options::moments
    Tensor grads;       ///< f32 chunk
    int64_t begin = 0;  ///< first element of the chunk in the padded group
    std::vector<OptimizerRange> ranges;
  };
  bool sharded() const { return comm_.world_size() > 1; }
  void place_groups();
  void place_gather_slots();
  void point(int group, Tensor weights, Tensor grads);
  void point_f32_group();
  int slot_of(int group);
  void update(Stream&, size_t group, CTensor scalars_8);
  /// Weights, moments and gradients become zero, padding included: memory starts undefined.
  void clear(Stream&);
  /// What this rank holds (the master where there is one) of `count` elements of a parameter from `element`
  /// on; empty: nothing. `skipped` of them lie before it.
  struct OwnPart {
    Tensor view;
    int64_t skipped = 0;
  };
  OwnPart own_part(const Param&, int64_t element, int64_t count) const;
  void write_slice(Stream&, const Param&, const ParamSlice&, const float* from);

  Device& device_;
  Communicator& comm_;
  const ParamTable& table_;
  Options options_;
  ShardLayout layout_;
  std::vector<Buffer> buffers_;
  std::vector<Group> groups_;  ///< per table group, and one more at the end: the f32 group
  std::vector<CTensor> weights_;
  std::vector<Tensor> grads_;
  Tensor sum_squares_;  ///< f64 [1]
  // Gathered copies, where the world has more than one rank: two slots for blocks, one each for the others.
  struct Slot {
    Tensor weights, grads;
    int group = -1;
  };
  std::vector<Slot> slots_;
  int next_block_slot_ = 0;
  std::vector<int> own_slot_;  ///< per group: its own slot, or -1 for blocks
};

}  // namespace deltatune
