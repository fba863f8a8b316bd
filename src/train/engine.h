// Engine: model, parameters and memory on one device, ready to take micro-batches.
//
// It owns the order of things: measure every arena by running the step on the null table, allocate, bind,
// run. After the constructor the device's allocation count never changes. `train`, `eval`, `generate`,
// `parity` and `plan` all run this one.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/batch.h"
#include "model/model.h"
#include "ops/kernel_list.h"
#include "shard/param_store.h"
#include "tensor/device.h"
#include "train/device_batch.h"
#include "train/launch_meter.h"
#include "train/step_graphs.h"

namespace deltatune {

struct EngineOptions {
  DType storage = DType::f32;
  int64_t tokens = 0;         ///< T
  int64_t max_documents = 0;  ///< S_max, filler included; 0: default_max_documents(T)
  Keep keep = Keep::nothing();
  bool train = true;
  bool deterministic = false;       ///< only kernels that repeat bit for bit
  bool allow_slow_kernels = false;  ///< run even where an op has only its plain kernel on this GPU
  bool tune_matmuls = false;        ///< time the library's algorithms for each shape, where there are several
  std::string prefer_kernel;        ///< see KernelRequest::prefer
  bool prefer_for_products = true;  ///< see KernelRequest::prefer_for_products
  std::string cache_folder;         ///< where tuned choices are stored; empty: nowhere
  bool decay_all = false;
  AdamwOptions adamw;
  Moments::Options moments = {};  ///< Adam's m and v: storage and place
  bool master_weights = true;     ///< bf16 runs: an fp32 copy of the weights
  DType reduce = DType::f32;      ///< ParamStore::Options::reduce
  bool whole_weights = false;     ///< likewise
  bool whole_states = false;      ///< likewise
  /// With more ranks and an embedding that is not the head: rows travel in place of the table, and of its
  /// gradient, where that pays (ParamStore::lookup_rows_pay, gradient_rows_pay).
  bool embedding_by_rows = true;
  int ranks_per_machine = 0;      ///< at most; only that choice depends on it. 0: all on one
  bool gradient_release = false;  ///< update inside of backward; one micro-batch a step, max_grad_norm 0
  float weight_decay = 0;
  float max_grad_norm = 0;
  GraphMode graph = GraphMode::automatic;
};

/// The most segments a row may hold where the user says nothing: one per 32 slots, at least 16. It bounds the
/// chunk table and the delta-rule states; rows of shorter conversations than that are closed early.
int64_t default_max_documents(int64_t tokens);

/// What kernels are selected for: the shapes of an engine's model on a device. `options` as the engine
/// completes them (max_documents above 0).
KernelRequest kernel_request(const ModelConfig&, const EngineOptions& options, const DeviceFacts&);

/// What one optimizer step did.
struct UpdateResult {
  double loss_sum = 0;         ///< over the window
  double grad_norm = 0;        ///< of the mean loss, before clipping
  bool nonfinite = false;      ///< of all ranks together: nothing was updated
  bool own_nonfinite = false;  ///< as far as it is known, this rank's own loss or gradient
};

class Engine {
 public:
  /// Throws Error{usage} where an op has no kernel for the model, or a slow one that is not allowed, before
  /// anything is allocated; Error{resource} when the memory is not there; Error{usage} when graphs are asked
  /// for that the device does not have. The engine does not own device and communicator.
  Engine(Device&, Communicator&, const ModelConfig&, bool tied, const EngineOptions&);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const EngineOptions& options() const { return options_; }
  const Model& model() const { return *model_; }
  const KernelSelection& kernels() const { return kernels_; }
  ParamStore& store() { return *store_; }
  const ParamStore& store() const { return *store_; }
  Stream& stream() { return *stream_; }
  const Stream& stream() const { return *stream_; }
  Device& device() const { return device_; }
  Communicator& comm() const { return comm_; }

  /// Starts an accumulation window: gradients and loss sum count as zero.
  void begin_window();
  /// Queues forward and backward of one row; gradients of the loss sum accumulate.
  void micro_step(const Batch&);
  /// Clips, updates: step n (from 1), divided by `target_count` (of all ranks and micro-batches; at least 1).
  /// Returns when loss and norm are known; the update itself may still be under way.
  UpdateResult update(double learning_rate, int64_t n, int64_t target_count);
  /// A whole step of one micro-batch, the only way to make one with gradient release: begin_window(),
  /// micro_step() and update(). With release a gradient that is not finite leaves what had been updated
  /// before it, see ParamStore::begin_release.
  UpdateResult single_step(const Batch&, double learning_rate, int64_t n, int64_t target_count);
  /// Loss sum of this rank's row without gradients. Between windows only; all ranks do it together.
  double evaluate(const Batch&);
  /// Logits of the row's slots `rows` (ascending), f32 [rows.size(), V], handed over in pieces as they are
  /// computed: each(index of the first row of the piece, rows in it, values).
  void logits(const Batch&, const std::vector<int32_t>& rows,
              const std::function<void(int64_t, int64_t, const float*)>& each);
  /// Uploads a row, and gives the ops of a whole step on it - gradients zeroed, forward, backward, update -
  /// to a stream that records them (ops/op_recorder.h).
  void give_step(Stream& recorder, const Batch&);
  /// Global gradient norm and loss sum of the window so far, without an update (world of one).
  UpdateResult inspect_window(int64_t target_count);
  /// What choosing and timing the library's matrix products took at the start.
  double tuning_seconds() const { return tuning_seconds_; }
  /// How much of the step is captured so far.
  const StepGraphs& graphs() const { return graphs_; }
  /// How far the host holds the device up, step by step.
  LaunchMeter& launches() { return launches_; }
  /// Before steps are traced (base/trace.h): see StepGraphs::drop_untraced. Waits for the device.
  void drop_untraced_graphs();

 private:
  /// What crosses between host and device in update(), in staging memory.
  struct Exchange {
    double loss_sum;
    double own_loss_sum, own_squares;  ///< before they are summed over ranks
    float given[StepScalar::count];
    float results[StepScalar::count];
  };
  void place();
  void measure(Arena& kept, Arena& shared, Arena& work, Arena& batch);
  void rehearse(Stream&, const std::vector<CTensor>& weights, const std::vector<Tensor>& grads,
                const RowInputs& row);
  void prepare_matmuls();
  void bind(Arena& kept, Arena& shared, Arena& work, Arena& batch);
  /// Runs a part of a step, as a graph where there is one.
  void part(StepGraphs::Part, const std::function<void()>& ops);
  void embed(const RowInputs&);
  void forward(const RowInputs&);
  void backward(const RowInputs&);
  void set_scalars(double learning_rate, int64_t n, int64_t target_count);
  UpdateResult finish_update();
  /// What begin_window() queues.
  void zero_window(Stream&);
  /// After a window without a micro-batch: zeroes what begin_window() left.
  void settle();
  Buffer region(const Arena& arena, const char* name, Lifetime lifetime);

  Device& device_;
  Communicator& comm_;
  EngineOptions options_;
  KernelSelection kernels_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<ParamStore> store_;
  DeviceBatch batch_;
  StepGraphs graphs_;
  LaunchMeter launches_;
  std::array<ParamStore::Held, StepGraphs::part_count> held_after_;
  std::vector<Buffer> buffers_;
  Arena kept_, shared_, work_, batch_arena_;
  bool fresh_ = false;  ///< product gradients hold those of another window still
  double tuning_seconds_ = 0;
  Tensor loss_sum_1_, scalars_8_;
  Buffer exchange_memory_;
  Exchange* exchange_ = nullptr;
  Event results_known_;
};

/// A row that fills T slots with documents of `length` tokens, every token with a target where there can be
/// one: what the plan and the measuring step run on. Token ids are 0.
Batch synthetic_batch(int64_t tokens, int64_t length, int64_t max_documents);

}  // namespace deltatune
