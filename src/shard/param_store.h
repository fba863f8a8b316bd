// ParamStore: all parameters, their gradients and optimizer states, of which this rank holds its chunk.
//
// With whole_states it holds all of them: nothing is gathered, gradients add up on their rank as in a world
// of one and are summed over the ranks before the update; the chunk is then what this rank sums, measures,
// reads and writes. Verbs: acquire(group) fills the group's entries of weights(), prefetch(group) gathers
// them ahead of that, release(group) says that queued work was the last to read them; begin_gradients(group)
// fills grads(); reduce(group) sends them where they belong; step() updates. Where the world has more than
// one rank, gathers and reductions run on a stream of their own beside the stream that the verbs are given:
// an event in either direction orders every buffer that both touch. With gradient release there are no
// gradients of all groups, but slots that groups share: reduce() also updates the group, between
// begin_release() and end_release(), on the given stream or on one of its own where there is something to
// wait for (other ranks, moments on their way). A step consists of parts (begin_part, end_part), each of
// which may be captured as a graph: all work of the two streams before a part is done before it starts, all
// work in it before what follows it. Invariants: gradients are those of the loss sum over all micro-batches
// since zero_gradients(), in fp32; the storage copy of a parameter is always its master rounded to nearest
// (or is the master itself, in f32 runs and without master weights); what was acquired stays valid until the
// second acquire of another block group; at most two gathered blocks are alive. Of a first
// group that is only looked up in, rows may travel in place of the table (Options::lookups, row_lookup.cpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/trace.h"
#include "comm/communicator.h"
#include "ops/kernels.h"
#include "shard/layout.h"
#include "shard/moments.h"
#include "tensor/device.h"
#include "tensor/param_source.h"
#include "tensor/params.h"
#include "tensor/staging_lanes.h"

namespace deltatune {

/// A named flat buffer of resumable state: "block 3.weights", "f32.m", ... `data` is this rank's part of it.
struct StateTensor {
  std::string name;
  Tensor data;
  int64_t begin = 0;        ///< of data in the whole buffer
  bool replicated = false;  ///< every rank has the whole buffer
};

class ParamStore {
 public:
  struct Options {
    DType storage = DType::f32;
    bool train = true;       ///< gradients and optimizer states wanted
    bool decay_all = false;  ///< weight decay on every parameter (`parity`), else where Param::decay says
    float weight_decay = 0;
    AdamwOptions adamw;             ///< its weight_decay is not looked at
    Moments::Options moments = {};  ///< the f32 group's are f32, on the device
    bool release = false;           ///< gradient release: one micro-batch a step, no clipping
    /// With more ranks, of the blocks' gradients of one row on their way to the chunk, f32 or (in bf16 runs)
    /// bf16. They are added up in f32.
    DType reduce = DType::f32;
    /// With more ranks: every rank has all weights; gradients and states are cut.
    bool whole_weights = false;
    /// With more ranks: every rank has all weights, gradients and states. Not together with bf16 reduction or
    /// offloaded moments.
    bool whole_states = false;
    /// The head is no part of the embedding: what is gathered of the two, and their gradients, take turns in
    /// the same memory. Without it all of it stays.
    bool ends_take_turns = false;
    bool master = true;  ///< bf16 runs: an fp32 copy of the weights
    /// With more ranks and cut gradients: above 0 the first group is one table [V, D] that is looked up in, T
    /// = lookups times a row, and no gradient of all of it is made. gradient_rows_pay().
    int64_t lookups = 0;
    bool look_up_rows = false;  ///< nor is it gathered, where weights are cut. lookup_rows_pay()
  };
  /// Whether the gradients of what n ranks look up, n T rows in storage dtype, are at most as many bytes as
  /// an f32 gradient of a table of V rows, in whose slot they lie.
  static bool gradient_rows_pay(int64_t vocabulary, int64_t lookups, DType storage, int world_size) {
    return world_size > 1 && world_size * lookups * static_cast<int64_t>(size_of(storage)) <= 4 * vocabulary;
  }
  /// Whether n T rows are less to send than the table, and lie in its slot together with T rows in f32. A
  /// table goes once to each machine, rows go to each rank: on several machines they are compared per
  /// machine.
  static bool lookup_rows_pay(int64_t vocabulary, int64_t lookups, int world_size, int per_machine) {
    const int copies = per_machine < world_size ? per_machine : 1;
    return world_size > 1 && (world_size + 2) * lookups <= vocabulary &&
           copies * world_size * lookups <= vocabulary;
  }

  ParamStore(Device&, Communicator&, const ParamTable&, Options);

  /// Views indexed like ParamTable::params; only acquired groups may be used.
  const std::vector<CTensor>& weights() const { return weights_; }
  const std::vector<Tensor>& grads() const { return grads_; }

  /// Around a part of a step. A part that is replayed as a graph runs without these calls: held() after it is
  /// what it was after the part ran last, and has to be set again.
  void begin_part(Stream&);
  void end_part(Stream&);
  /// Which groups lie in which memory: what the verbs below go by.
  struct Held {
    std::vector<int> weights, grads;       ///< group of each slot, -1: none
    int last_weights = 1, last_grads = 1;  ///< block slot that was used last
  };
  const Held& held() const { return held_; }
  void set_held(const Held& held) { held_ = held; }
  /// What was gathered is gathered again. Each forward pass starts with it, so that all gather alike.
  void drop_gathered();

  /// Memory of the parameters' shapes for whoever times the work on them, before the weights are there: what
  /// is gathered takes turns, so some of it is the same.
  void lend(std::vector<CTensor>& weights, std::vector<Tensor>& grads);

  /// Starts to gather a group. For a block: into the slot that the block last acquired does not have, so that
  /// acquire(l), prefetch(l + 1) gathers while block l is used.
  void prefetch(Stream&, int group);
  /// Without a prefetch before it, the gather is not hidden behind anything.
  void acquire(Stream&, int group);
  /// To be called for each acquired group behind the last work that reads its weights.
  void release(Stream&, int group);
  /// Makes the group's gradient views writable. Where gradients_add_up() they accumulate across calls.
  /// Otherwise they are of this micro-batch alone: product gradients (Param::product_gradient) have to be
  /// written, the others start from zero.
  void begin_gradients(Stream&, int group);
  /// A world of one rank, or whole states; without release.
  bool gradients_add_up() const { return !takes_turns() && !options_.release; }
  /// Adds the gradients of all ranks to the chunk; fresh: the chunk becomes their sum. Where
  /// gradients_add_up() the update does that, once.
  void reduce(Stream&, int group, bool fresh);

  /// The first group is not acquired, but looked up in by look_up().
  bool looks_up_rows() const { return reduces_rows() && options_.look_up_rows && !options_.whole_weights; }
  /// It is not reduced, but by reduce_looked_up(), for which every forward pass has to share_ids().
  bool reduces_rows() const { return takes_turns() && options_.lookups > 0; }
  /// ids_2T, i32: tokens_T and order_T of this rank (ops/embedding.h), which stay until the next collective.
  void share_ids(Stream&, CTensor ids_2T);
  /// x_TD = the table's rows tokens_T of the ids that were shared last. Every rank makes zeros of what it
  /// does not have, and the sum of all is the row.
  void look_up(Stream&, Tensor x_TD);
  /// The gradient of what was looked up will come; fresh: the chunk becomes zero meanwhile.
  void begin_looked_up(Stream&, bool fresh);
  /// As reduce(): adds the gradient of x_TD, of all ranks, to this rank's chunk. To the bit what a gradient
  /// of the whole table on each rank and their sum would give.
  void reduce_looked_up(Stream&, CTensor dx_TD);

  /// Release: brackets the reduce() calls of a step. scalars_8: learning rate, bias corrections and
  /// inverse_count are set. A group whose gradient is not finite and all groups behind it are left as they
  /// are; with more ranks each looks at what it updates. Groups before it have been updated.
  void begin_release(Stream&, Tensor scalars_8);
  void end_release(Stream&);
  /// x = sum over ranks in stream order; queued behind the gathers and reductions.
  void all_reduce(Stream&, Tensor x);
  /// Returns when the gathers and reductions queued so far are done; rethrows an error of theirs.
  void sync();
  /// The same for updates and copies of moments on streams of the store.
  void sync_updates();
  void zero_gradients(Stream&);
  /// Zeroes what the next micro-batch adds to. What it has to write keeps what it holds: product gradients
  /// where gradients_add_up(), all that reduce() is called for (fresh) otherwise.
  void zero_summed_gradients(Stream&);

  /// scalars_8: learning rate, bias corrections and inverse_count are set; norm, scale and nonfinite are
  /// written. Clips by the global norm (max_norm <= 0: no clipping) and updates all parameters.
  void step(Stream&, Tensor scalars_8, float max_norm);
  /// The two halves of step(): the norm and what follows from it, then the update. With release only the f32
  /// group is left to update; the norm is that of all.
  void measure_gradients(Stream&, Tensor scalars_8, float max_norm);
  void apply_gradients(Stream&, CTensor scalars_8);
  /// f64 [1], after measure_gradients() where the world has more than one rank: sum of squares of what this
  /// rank itself gave to the f32 group's gradients. Every layer has a part in them, and what is not finite in
  /// a gradient makes those of the layers before it so: it tells whose it was.
  CTensor own_squares() const { return own_squares_; }

  /// Which parameters' gradients hold a NaN or an infinity, by index in the table, ascending; over the step's
  /// rows of all ranks. Behind a step() that has updated nothing for that: its gradients are still there.
  /// With release only those of the f32 group are. All ranks call it together; waits for the device once a
  /// parameter.
  std::vector<int> nonfinite_gradients(Stream&);

  /// Reads this rank's part of every slice from a checkpoint, in stretches and on several threads
  /// (Error{model} naming missing tensors, wrong shapes, NaN or infinity); moments start at zero. Collective
  /// with whole states only.
  void load(Stream&, const ParamSource&);
  /// Hugging Face's initialiser, each element a pure function of (seed, parameter, index). Collective
  /// likewise.
  void initialise(Stream&, uint64_t seed, double range);
  /// One parameter's slice as f32 on the host of rank 0, from the master where there is one. For checkpoints
  /// and tests. All ranks call it together; `to` is not looked at on the others.
  void read_slice(Stream&, const Param&, const ParamSlice&, float* to) const;
  /// Same for the gradient of the loss sum over all ranks. To be called before the update.
  void read_gradient(Stream&, const Param&, const ParamSlice&, float* to) const;

  /// Elements [first, first + count) of a slice are this rank's; `values` is where they are (the master where
  /// there is one).
  struct SlicePart {
    int64_t first = 0;
    int64_t count = 0;
    Tensor values;
    bool replicated = false;  ///< every rank has the whole slice
  };
  SlicePart slice_part(const Param&, const ParamSlice&) const;
  /// For transfers between files and the device.
  const StagingLanes& lanes() const { return lanes_; }
  /// All state and gradients become zero, padding included.
  void clear(Stream&);

  /// Everything a resumed run needs, in a fixed order.
  std::vector<StateTensor> state() const;
  /// After the state was written from outside: makes the storage copies from the masters again. With whole
  /// states all ranks call it together, and get each other's parts.
  void refresh_storage(Stream&);

  const ParamTable& table() const { return table_; }
  const Options& options() const { return options_; }
  /// The stream that updates run on beside the one they are given; nullptr: none.
  const Stream* update_stream() const { return update_stream_.get(); }
  /// The stream of gathers and reductions, which looks up rows as well; nullptr: a world of one.
  const Stream* comm_stream() const { return comm_stream_.get(); }

 private:
  struct Group {
    Tensor weights;     ///< storage dtype: this rank's chunk
    Tensor master;      ///< f32 chunk; empty in f32 runs and without master weights
    Tensor grads;       ///< f32 chunk; with release that of a slot
    int64_t begin = 0;  ///< first element of the chunk in the padded group
    std::vector<OptimizerRange> ranges;
  };
  bool sharded() const { return comm_.world_size() > 1; }
  bool whole_states() const { return options_.whole_states && sharded(); }
  /// Groups are gathered to and reduced from slots.
  bool takes_turns() const { return sharded() && !options_.whole_states; }
  /// What this rank updates.
  const std::vector<Group>& to_update() const { return whole_states() ? whole_ : groups_; }
  MomentViews own_moments(size_t group) const;
  void sum_over_ranks(size_t group);
  void gather_states(Stream&);
  void place_groups();
  void place_gather_slots();
  void place_release_slots();
  void point_weights(int group, Tensor flat);
  /// `summed`: memory of its own for what lies in front of the product gradients; empty: none.
  void point_grads(int group, Tensor flat, Tensor summed = {});
  void point_f32_group();
  void update(Stream&, size_t group, CTensor scalars_8);
  void update_range(Stream&, size_t group, const OptimizerRange&, const MomentViews&, CTensor scalars_8);
  void begin_release_gradients(Stream&, int group);
  void release_update(Stream&, int group);
  /// Where this rank has its part of `count` elements of a parameter from `element` on: [begin, begin +
  /// count) of its chunk of the group. `skipped` of them lie before it. count 0: nothing.
  struct OwnPart {
    const Group* group = nullptr;
    int64_t begin = 0;
    int64_t count = 0;
    int64_t skipped = 0;
    Tensor of(Tensor flat) const { return flat.slice(begin, count); }
  };
  OwnPart own_part(const Param&, int64_t element, int64_t count, const std::vector<Group>& groups) const;
  /// The master where there is one.
  static Tensor values_of(const Group& group) { return group.master.empty() ? group.weights : group.master; }
  /// Parts of a flat buffer of all ranks, as f32, to rank 0. sum: what is in the f32 group is not the same on
  /// all ranks but to be added.
  void read_part(Stream&, const OwnPart&, Tensor flat, bool sum, float* to) const;
  void wait_for_reductions(Stream&) const;
  void write_slice(Stream&, const Param&, const ParamSlice&, const float* from);

  Device& device_;
  Communicator& comm_;
  const ParamTable& table_;
  Options options_;
  ShardLayout layout_;
  StagingLanes lanes_;
  std::vector<Buffer> buffers_;
  std::vector<Group> groups_;  ///< per table group, and one more at the end: the f32 group
  std::vector<Group> whole_;   ///< whole states: the groups whose chunks groups_ has
  std::vector<CTensor> weights_;
  std::vector<Tensor> grads_;
  Tensor sum_squares_, own_squares_;  ///< f64 [1]
  std::unique_ptr<Moments> moments_;  ///< of all groups but the f32 one; trained runs only
  Tensor f32_m_, f32_v_;
  // Where the world has more than one rank: memory for whole groups, two slots for blocks, one each (or one)
  // for the others.
  /// A point in the work of one of the two streams, in the part of a step that is under way. Nobody waits for
  /// one that is not set: begin_part() has ordered all that came before it.
  struct Edge {
    Event event;
    bool set = false;
  };
  struct WeightSlot {
    Tensor memory;
    Edge gathered;  ///< comm: weights are there
    Edge released;  ///< compute: weights are read no more
  };
  struct GradSlot {
    Tensor memory;
    Tensor summed;  ///< f32, where memory is bf16: what lies in front of the product gradients
    Edge reduced;   ///< comm: gradients are read no more
  };
  /// Release: gradients of one group at a time, of the whole group in a world of one, of the chunk otherwise.
  struct ReleaseSlot {
    Tensor memory;
    Edge updated;  ///< update stream: gradients are read no more
  };
  static void record(Stream& stream, Edge& edge);
  /// Calls f, which queues a collective on the stream of those, as what a trace has by `name`: "gather" or
  /// "reduce". whole: what is gathered or reduced.
  template <class F>
  void collective(const char* name, CTensor whole, const F& f) const {
    const TracePhaseScope phase(TracePhase::comm);
    const TraceSpan span(name, TraceKind::op, comm_stream_->name(), static_cast<double>(whole.bytes()));
    f();
  }
  void wait_for_comm(Stream& stream, const Edge& edge) const;
  void comm_follows(Stream& stream);
  void follow_comm(Stream& stream);
  void forget_edges();
  int weight_slot(int group) const;
  int grad_slot(int group) const;
  Held held_;
  std::vector<WeightSlot> weight_slots_;
  std::vector<GradSlot> grad_slots_;
  std::vector<int> own_weight_slot_, own_grad_slot_;  ///< per group: its own slot, or -1: blocks share
  Event handed_, taken_;                              ///< work passes from compute to comm and back
  Tensor ids_R2T_;                                    ///< i32: what all ranks look up
  std::vector<ReleaseSlot> release_slots_;
  std::vector<size_t> release_slot_;  ///< per group
  Tensor release_scalars_8_;
  Event release_begun_, gradients_written_, summed_, release_ended_;
  std::unique_ptr<Stream> update_stream_;
  std::unique_ptr<Stream> comm_stream_;  ///< last: it ends before the memory that its work uses
};

}  // namespace deltatune
