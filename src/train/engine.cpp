// Engine: memory first, then the calls of a step.
#include "train/engine.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/exchange.h"
#include "ops/matmul_tuning.h"
#include "ops/null_device.h"
#include "ops/ops.h"
#include "train/kernel_report.h"
#include "train/random_fill.h"

namespace deltatune {
namespace {

// GEMM tiles of GPUs are 128 rows high: fewer would cost the same. The products of the head then have few
// shapes, which matters to libraries that choose an algorithm per shape.
constexpr int64_t cuda_row_unit = 128;

// Weights and gradients that have a shape but no memory, for the measuring step.
template <class V>
std::vector<V> shapes_only(const ParamTable& table, DType storage, bool gradients) {
  Arena arena;
  std::vector<V> out;
  for (const Param& param : table.params) {
    const DType dtype = gradients || param.keep_f32 ? compute_dtype(storage) : storage;
    out.push_back(arena.take(dtype, param.shape));
  }
  return out;
}

EngineOptions completed(EngineOptions options) {
  if (options.max_documents <= 0) options.max_documents = default_max_documents(options.tokens);
  options.max_documents = std::min(options.max_documents, options.tokens);
  return options;
}

}  // namespace

int64_t default_max_documents(int64_t tokens) {
  return std::min(tokens, std::max<int64_t>(16, tokens / 32));
}

KernelRequest kernel_request(const ModelConfig& config, const EngineOptions& options,
                             const DeviceFacts& facts) {
  KernelRequest out;
  out.device = facts;
  out.storage = options.storage;
  const auto attention = std::count(config.full_attention.begin(), config.full_attention.end(), true);
  if (attention > 0) out.attention = config.attention;
  if (attention < config.layers()) out.gdn = config.gdn;
  out.hidden = config.hidden_size;
  out.intermediate = config.intermediate_size;
  out.vocabulary = config.vocab_size;
  out.tokens = options.tokens;
  out.max_documents = options.max_documents;
  out.training = options.train;
  out.deterministic = options.deterministic;
  // Where a step may be captured, a kernel that cannot be is worth less than the capture of all others.
  out.graph = options.graph != GraphMode::never;
  out.prefer = options.prefer_kernel;
  out.prefer_for_products = options.prefer_for_products;
  return out;
}

Batch synthetic_batch(int64_t tokens, int64_t length, int64_t max_documents) {
  Batch batch;
  batch.tokens.assign(static_cast<size_t>(tokens), 0);
  batch.targets.assign(static_cast<size_t>(tokens), 0);
  batch.cu_seqlens = {0};
  const int64_t documents = std::min(max_documents, (tokens + length - 1) / length);
  for (int64_t d = 0; d < documents; ++d) {
    const int64_t begin = d * length;
    // The last document takes what is left.
    const int64_t end = d + 1 == documents ? tokens : begin + length;
    for (int64_t t = begin; t < end; ++t) batch.positions.push_back(static_cast<int32_t>(t - begin));
    batch.targets[static_cast<size_t>(end - 1)] = -100;
    batch.cu_seqlens.push_back(static_cast<int32_t>(end));
    batch.lengths.push_back(static_cast<int32_t>(end - begin));
  }
  batch.documents = documents;
  batch.real_tokens = tokens;
  batch.num_targets = tokens - documents;
  return batch;
}

Engine::Engine(Device& device, Communicator& comm, const ModelConfig& config, bool tied,
               const EngineOptions& options)
    : device_(device),
      comm_(comm),
      options_(completed(options)),
      batch_(options_.tokens, options_.max_documents, device.target() == Target::cuda ? cuda_row_unit : 1),
      graphs_(options_.graph),
      launches_(device.target() == Target::cuda && !device.is_null()) {
  DELTATUNE_ASSERT(options_.tokens >= 1);
  kernels_ = select_kernels(kernel_request(config, options_, device.facts()));
  if (!device.is_null()) begin_with_kernels(kernels_, options_.allow_slow_kernels);
  model_ = std::make_unique<Model>(config, make_params(config, tied), options_.storage, options_.tokens,
                                   options_.max_documents);
  stream_ = device.make_stream("compute", kernels_.choice());
  graphs_.check(*stream_);
  ParamStore::Options store;
  store.storage = options_.storage;
  store.train = options_.train;
  store.decay_all = options_.decay_all;
  store.weight_decay = options_.weight_decay;
  store.adamw = options_.adamw;
  store.moments = options_.moments;
  store.master = options_.master_weights;
  store.reduce = options_.reduce;
  store.whole_weights = options_.whole_weights;
  store.whole_states = options_.whole_states;
  store.ends_take_turns = !tied;
  store.release = options_.gradient_release;
  if (!tied && options_.embedding_by_rows && comm.world_size() > 1) {
    const int64_t vocabulary = config.vocab_size, tokens = options_.tokens;
    const int64_t most = max_over_ranks(comm, options_.ranks_per_machine);
    const int per_machine = most > 0 ? static_cast<int>(most) : comm.world_size();
    if (ParamStore::gradient_rows_pay(vocabulary, tokens, options_.storage, comm.world_size()))
      store.lookups = tokens;
    store.look_up_rows = ParamStore::lookup_rows_pay(vocabulary, tokens, comm.world_size(), per_machine);
  }
  store_ = std::make_unique<ParamStore>(device, comm, model_->params().table, store);
  place();
}

// Work that is queued still uses the memory.
Engine::~Engine() {
  try {
    stream_->sync();
    if (!store_) return;
    store_->sync();
    store_->sync_updates();
  } catch (const Error& error) {
    log::error("{}", error.what());
  }
}

Buffer Engine::region(const Arena& arena, const char* name, Lifetime lifetime) {
  return device_.allocate(arena.high_water(), name, "activations", lifetime);
}

void Engine::place() {
  Arena kept, shared, work, batch;
  measure(kept, shared, work, batch);
  const size_t scratch = stream_->scratch_wish();
  buffers_.push_back(region(kept, "block inputs and kept activations", Lifetime::step));
  buffers_.push_back(region(shared, "activations recomputed per block", Lifetime::block));
  buffers_.push_back(region(work, "working buffers", Lifetime::block));
  buffers_.push_back(region(batch, "batch", Lifetime::step));
  buffers_.push_back(device_.allocate(scratch, "kernel scratch", "activations", Lifetime::op));
  kept_ = Arena(buffers_[0].span());
  shared_ = Arena(buffers_[1].span());
  work_ = Arena(buffers_[2].span());
  batch_arena_ = Arena(buffers_[3].span());
  stream_->set_scratch(buffers_[4].span());
  batch_.allocate(device_);
  exchange_memory_ =
      device_.allocate_staging(sizeof(Exchange), "staging of the step's scalars", "activations");
  exchange_ = new (exchange_memory_.data()) Exchange{};
  bind(kept_, shared_, work_, batch_arena_);
  const Stopwatch tuning;
  prepare_matmuls();
  tuning_seconds_ = tuning.seconds();
  model_->initialise(*stream_);
  stream_->sync();
}

void Engine::bind(Arena& kept, Arena& shared, Arena& work, Arena& batch) {
  model_->bind(kept, shared, work, options_.keep);
  batch_.bind(batch);
  loss_sum_1_ = batch.take(DType::f64, {1});
  scalars_8_ = batch.take(DType::f32, {StepScalar::count});
}

void Engine::measure(Arena& kept, Arena& shared, Arena& work, Arena& batch) {
  bind(kept, shared, work, batch);
  const auto null_device = make_null_device(device_.facts());
  const auto stream = null_device->make_stream("measure", kernels_.choice());
  const auto& table = model_->params().table;
  const auto weights = shapes_only<CTensor>(table, options_.storage, false);
  const auto grads = shapes_only<Tensor>(table, options_.storage, true);
  // The two extremes of document lengths bound every scratch size in between.
  for (const int64_t length :
       {options_.tokens, std::max<int64_t>(1, options_.tokens / options_.max_documents)}) {
    rehearse(*stream, weights, grads,
             batch_.upload(*stream, synthetic_batch(options_.tokens, length, options_.max_documents)));
  }
  stream_->require_scratch(stream->scratch_wish());
  if (options_.train) {
    // Scratch of the optimizer's ops depends on the largest buffer they see.
    Arena fake;
    int64_t largest = 0;
    for (const StateTensor& state : store_->state()) largest = std::max(largest, state.data.count());
    const Tensor x = fake.take(DType::f32, {largest});
    ops::sum_squares(*stream, fake.take(DType::f64, {1}), x);
    stream_->require_scratch(stream->scratch_wish());
  }
}

// The ops of one row, given to a stream that runs none of them.
void Engine::rehearse(Stream& stream, const std::vector<CTensor>& weights, const std::vector<Tensor>& grads,
                      const RowInputs& row) {
  model_->embed(stream, weights, row);
  for (int64_t l = 0; l < model_->config().layers(); ++l) model_->forward_block(stream, weights, l, row);
  model_->loss(stream, weights, grads, loss_sum_1_, options_.train, row);
  if (!options_.train) {
    model_->logits(stream, weights, row.targets, row, [](int64_t, CTensor) {});
    return;
  }
  for (int64_t l = model_->config().layers(); l-- > 0;)
    model_->backward_block(stream, weights, grads, l, row);
  model_->backward_embedding(stream, grads, row);
}

// Weights have not been read yet: tuning may write anything into them and into the activations.
void Engine::prepare_matmuls() {
  if (device_.is_null() || device_.target() != Target::cuda) return;
  MatmulTuning tuning;
  MatmulRecorder recorder(device_, tuning.calls);
  RowInputs row =
      batch_.upload(recorder, synthetic_batch(options_.tokens, options_.tokens, options_.max_documents));
  std::vector<CTensor> weights;
  std::vector<Tensor> grads;
  store_->lend(weights, grads);
  // Weight gradients are written by the first row of a window and added to by the others.
  for (const bool fresh : {true, false}) {
    row.fresh_gradients = fresh;
    rehearse(recorder, weights, grads, row);
    if (!options_.train) break;
  }
  tuning.time = options_.tune_matmuls;
  tuning.folder = options_.cache_folder;
  RandomFill random;
  tuning.fill = [&](Stream& stream, Tensor x) { random.normal(stream, x); };
  // Rank 0 chooses, the others of its machine find its choices in the cache.
  if (comm_.rank() > 0) comm_.exchange("");
  device_.prepare(*stream_, tuning);
  if (comm_.rank() == 0) comm_.exchange("");
  report_tuning(tuning, options_.allow_slow_kernels);
}

void Engine::give_step(Stream& recorder, const Batch& batch) {
  RowInputs row = batch_.upload(*stream_, batch);
  row.fresh_gradients = true;
  stream_->sync();
  zero_window(recorder);
  rehearse(recorder, store_->weights(), store_->grads(), row);
  if (options_.train) store_->step(recorder, scalars_8_, options_.max_grad_norm);
}

void Engine::zero_window(Stream& stream) {
  store_->zero_summed_gradients(stream);
  ops::fill(stream, loss_sum_1_, 0);
}

void Engine::part(StepGraphs::Part which, const std::function<void()>& ops) {
  const ParamStore::Held before = store_->held();
  bool ran = false;
  launches_.begin_part(*stream_);
  graphs_.run(*stream_, which, [&] {
    store_->set_held(before);  // a capture that failed has changed it
    launches_.watch_ops(!graphs_.capturing());
    store_->begin_part(*stream_);
    ops();
    store_->end_part(*stream_);
    ran = true;
  });
  ParamStore::Held& after = held_after_[which];
  if (ran) {
    after = store_->held();
  } else {
    store_->set_held(after);
  }
  launches_.end_part(*stream_, !ran);
}

void Engine::drop_untraced_graphs() {
  stream_->sync();
  store_->sync();
  store_->sync_updates();
  graphs_.drop_untraced();
}

void Engine::begin_window() {
  {
    const TraceSpan span("wait for updates", TraceKind::wait);
    store_->sync_updates();
  }
  part(StepGraphs::begin_window, [&] { zero_window(*stream_); });
  fresh_ = true;
}

void Engine::settle() {
  if (fresh_ && !options_.gradient_release) store_->zero_gradients(*stream_);
  fresh_ = false;
}

// The first block needs its weights and its input: which of them comes first does not matter.
void Engine::embed(const RowInputs& row) {
  const ModelParams& params = model_->params();
  const int first_block = params.block_groups.front();
  if (store_->reduces_rows()) store_->share_ids(*stream_, row.ids_2T);
  if (store_->looks_up_rows()) {
    store_->prefetch(*stream_, first_block);
    store_->look_up(*stream_, model_->begin_embedded());
    return;
  }
  store_->prefetch(*stream_, params.embedding_group);
  store_->prefetch(*stream_, first_block);
  store_->acquire(*stream_, params.embedding_group);
  model_->embed(*stream_, store_->weights(), row);
  store_->release(*stream_, params.embedding_group);
}

void Engine::forward(const RowInputs& row) {
  const TracePhaseScope phase(TracePhase::forward);
  const ModelParams& params = model_->params();
  const auto& blocks = params.block_groups;
  part(StepGraphs::forward, [&] {
    store_->drop_gathered();
    embed(row);
    for (size_t l = 0; l < blocks.size(); ++l) {
      store_->acquire(*stream_, blocks[l]);
      store_->prefetch(*stream_, l + 1 < blocks.size() ? blocks[l + 1] : params.final_group);
      model_->forward_block(*stream_, store_->weights(), static_cast<int64_t>(l), row);
      store_->release(*stream_, blocks[l]);
    }
  });
  launches_.begin_part(*stream_);  // of the head; who only looks does not end it
  store_->acquire(*stream_, params.final_group);
}

void Engine::backward(const RowInputs& row) {
  const TracePhaseScope phase(TracePhase::backward);
  const ModelParams& params = model_->params();
  if (options_.gradient_release) store_->begin_release(*stream_, scalars_8_);
  store_->reduce(*stream_, params.final_group, fresh_);
  const bool rows = store_->reduces_rows();
  for (size_t l = params.block_groups.size(); l-- > 0;) {
    const int group = params.block_groups[l];
    store_->acquire(*stream_, group);
    if (l > 0) store_->prefetch(*stream_, params.block_groups[l - 1]);
    store_->begin_gradients(*stream_, group);
    if (rows && l == 0) store_->begin_looked_up(*stream_, fresh_);
    model_->backward_block(*stream_, store_->weights(), store_->grads(), static_cast<int64_t>(l), row);
    store_->release(*stream_, group);
    store_->reduce(*stream_, group, fresh_);
  }
  if (rows) {
    store_->reduce_looked_up(*stream_, model_->embedded_gradient_TD());
  } else {
    if (!params.tied()) store_->begin_gradients(*stream_, params.embedding_group);
    model_->backward_embedding(*stream_, store_->grads(), row);
    store_->reduce(*stream_, params.embedding_group, fresh_);
  }
  if (options_.gradient_release) store_->end_release(*stream_);
}

void Engine::micro_step(const Batch& batch) {
  const ModelParams& params = model_->params();
  RowInputs row = batch_.upload(*stream_, batch);
  // With cut gradients those of every row are written, and added to those of the window afterwards.
  row.fresh_gradients = fresh_ || !store_->gradients_add_up();
  forward(row);
  store_->begin_gradients(*stream_, params.final_group);
  if (params.tied()) store_->begin_gradients(*stream_, params.embedding_group);
  {
    const TraceSpan span("loss");
    const TracePhaseScope phase(TracePhase::forward);
    model_->loss(*stream_, store_->weights(), store_->grads(), loss_sum_1_, true, row);
  }
  launches_.end_part(*stream_, false);
  part(fresh_ ? StepGraphs::backward_first : StepGraphs::backward, [&] { backward(row); });
  fresh_ = false;
}

UpdateResult Engine::update(double learning_rate, int64_t n, int64_t target_count) {
  DELTATUNE_ASSERT(!options_.gradient_release);
  settle();
  set_scalars(learning_rate, n, target_count);
  return finish_update();
}

UpdateResult Engine::single_step(const Batch& batch, double learning_rate, int64_t n, int64_t target_count) {
  begin_window();
  // Release updates inside of micro_step(); without it the order of the two does not matter.
  set_scalars(learning_rate, n, target_count);
  micro_step(batch);
  return finish_update();
}

void Engine::set_scalars(double learning_rate, int64_t n, int64_t target_count) {
  // Free since the previous step has seen its results.
  auto& scalars = exchange_->given;
  scalars[StepScalar::learning_rate] = static_cast<float>(learning_rate);
  scalars[StepScalar::bias_correction1] =
      static_cast<float>(1 - std::pow(double{options_.adamw.beta1}, static_cast<double>(n)));
  scalars[StepScalar::bias_correction2] =
      static_cast<float>(1 - std::pow(double{options_.adamw.beta2}, static_cast<double>(n)));
  scalars[StepScalar::step] = static_cast<float>(n);
  scalars[StepScalar::inverse_count] =
      static_cast<float>(1.0 / static_cast<double>(std::max<int64_t>(1, target_count)));
  const TraceSpan span("copy scalars", TraceKind::op, stream_->name(),
                       static_cast<double>(scalars_8_.bytes()));
  stream_->upload(scalars_8_, exchange_->given);
}

UpdateResult Engine::finish_update() {
  const TracePhaseScope phase(TracePhase::update);
  const bool several = comm_.world_size() > 1;
  if (several) {
    const TraceSpan span("copy results", TraceKind::op, stream_->name(), 8);
    stream_->download(&exchange_->own_loss_sum, loss_sum_1_);
  }
  store_->all_reduce(*stream_, loss_sum_1_);
  part(StepGraphs::measure, [&] { store_->measure_gradients(*stream_, scalars_8_, options_.max_grad_norm); });
  {
    const TraceSpan span("copy results", TraceKind::op, stream_->name(),
                         static_cast<double>(scalars_8_.bytes()) + 8);
    stream_->download(&exchange_->loss_sum, loss_sum_1_);
    stream_->download(exchange_->results, scalars_8_);
    if (several) stream_->download(&exchange_->own_squares, store_->own_squares());
  }
  stream_->record(results_known_);
  launches_.mark_results(*stream_);
  // While the device updates, the host reports and prepares the next row: the device does not wait for it.
  part(StepGraphs::update, [&] { store_->apply_gradients(*stream_, scalars_8_); });
  const TraceSpan waiting("wait for the device", TraceKind::wait);
  stream_->host_wait(results_known_);
  launches_.end_step(*stream_);
  store_->sync();  // a collective that failed has left the results wrong
  UpdateResult result;
  result.loss_sum = exchange_->loss_sum;
  result.grad_norm = double{exchange_->results[StepScalar::gradient_norm]};
  result.nonfinite = exchange_->results[StepScalar::nonfinite] != 0;
  result.own_nonfinite =
      several ? !std::isfinite(exchange_->own_loss_sum) || !std::isfinite(exchange_->own_squares)
              : result.nonfinite;
  return result;
}

UpdateResult Engine::inspect_window(int64_t target_count) {
  settle();
  UpdateResult result;
  stream_->download(&result.loss_sum, loss_sum_1_);
  double squares = 0;
  std::vector<float> values;
  for (const Param& param : model_->params().table.params) {
    for (const ParamSlice& slice : param.slices) {
      values.resize(static_cast<size_t>(slice.rows * (param.shape.rank == 2 ? param.shape[1] : 1)));
      store_->read_gradient(*stream_, param, slice, values.data());
      for (const float value : values) squares += double{value} * double{value};
    }
  }
  result.grad_norm = std::sqrt(squares) / static_cast<double>(std::max<int64_t>(1, target_count));
  result.nonfinite = !std::isfinite(result.grad_norm);
  return result;
}

double Engine::evaluate(const Batch& batch) {
  const RowInputs row = batch_.upload(*stream_, batch);
  ops::fill(*stream_, loss_sum_1_, 0);
  forward(row);
  model_->loss(*stream_, store_->weights(), store_->grads(), loss_sum_1_, false, row);
  double sum = 0;
  stream_->download(&sum, loss_sum_1_);
  stream_->sync();
  store_->sync();
  return sum;
}

void Engine::logits(const Batch& batch, const std::vector<int32_t>& rows,
                    const std::function<void(int64_t, int64_t, const float*)>& each) {
  // The chosen rows stand in for the targets; their target ids are not looked at.
  Batch chosen = batch;
  std::fill(chosen.targets.begin(), chosen.targets.end(), -100);
  for (const int32_t row : rows) chosen.targets[static_cast<size_t>(row)] = 0;
  chosen.num_targets = static_cast<int64_t>(rows.size());
  const RowInputs row = batch_.upload(*stream_, chosen);
  forward(row);
  std::vector<std::byte> bytes;
  std::vector<float> values;
  model_->logits(*stream_, store_->weights(), row.targets, row, [&](int64_t first, CTensor logits) {
    bytes.resize(logits.bytes());
    values.resize(static_cast<size_t>(logits.count()));
    stream_->download(bytes.data(), logits);
    stream_->sync();
    convert(values.data(), DType::f32, bytes.data(), logits.dtype, logits.count());
    each(first, logits.dim(0), values.data());
  });
}

}  // namespace deltatune
