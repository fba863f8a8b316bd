// Two depths, timed, and a line through them.
#include "train/bench_step.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/median.h"
#include "comm/communicator.h"
#include "observe/nvml.h"
#include "observe/telemetry.h"
#include "ops/matmul_tuning.h"
#include "ops/op_recorder.h"
#include "ops/ops.h"
#include "train/bench_model.h"
#include "train/random_fill.h"
#include "train/recompute.h"

namespace deltatune {
namespace {

constexpr int64_t warm_up_steps = 3;   // op by op, captured, replayed
constexpr double gemm_seconds = 0.08;  // per distinct product
constexpr int64_t traced_steps = 3;

// What tells two products apart.
using Product = std::tuple<MatmulLayout, DType, DType, int64_t, int64_t, int64_t, bool>;

Product product_of(const MatmulCall& call) {
  const int64_t depth = call.spec.layout == MatmulLayout::tn ? call.a.dim(0) : call.a.dim(1);
  return {call.spec.layout, call.a.dtype, call.c.dtype,        call.c.dim(0),
          call.c.dim(1),    depth,        call.spec.accumulate};
}

Tensor writable(const CTensor& x) {
  return {const_cast<std::byte*>(x.data), x.dtype, x.shape};
}

// What the driver says meanwhile: the "GPU utilisation" of nvidia-smi.
class Driver {
 public:
  explicit Driver(const std::string& pci_bus_id) {
    std::string why;
    if (pci_bus_id.empty()) return;
    const std::shared_ptr<NvmlGpu> gpu = NvmlGpu::open(pci_bus_id, why);
    if (gpu) looks_ = std::make_unique<Telemetry>([gpu] { return gpu->sample(); }, 20);
  }
  double utilisation() const { return looks_ ? looks_->take().utilisation().value_or(-1) : -1; }

 private:
  std::unique_ptr<Telemetry> looks_;
};

class StepBench {
 public:
  StepBench(Device& device, const BenchStepOptions& options, int64_t layers)
      : device_(device),
        comm_(make_solo_communicator()),
        tracer_(options.tracer),
        pci_bus_id_(options.pci_bus_id),
        timed_seconds_(options.timed_seconds),
        parts_(options.parts),
        title_((options.title.empty() ? "" : options.title + ", ") + counted(layers, "layer")) {
    say("laying out memory and filling it");
    rows_ = bench_rows(options);
    engine_ = bench_engine(device, *comm_, options, layers, rows_);
    out_.figures.layers = static_cast<double>(layers);
    out_.figures.bytes = static_cast<double>(device.allocated_bytes());
    for (const Param& param : engine_->store().table().params) {
      if (param.product_gradient) out_.figures.parameters += static_cast<double>(param.shape.count());
    }
  }

  const Batch& batch() const { return rows_.front(); }
  const Engine& engine() const { return *engine_; }
  Stream& stream() { return engine_->stream(); }

  BenchStepDepth run(BenchTimer& timer) {
    time_steps();
    watch_steps();
    count_launches();
    if (parts_) {
      time_ops();
      time_products(timer);  // last: it writes over the weights
    }
    return out_;
  }

 private:
  struct Marks {
    Moment begin, passed, updated;
  };
  // Also by a line, where there has been none for a while.
  void say(const std::string& what) const {
    constexpr double silence = 3;  // seconds
    set_activity(title_ + ": " + what);
    if (silence_s() > silence) log::info("{}: {}", title_, what);
  }
  void step(Marks& marks) {
    Stream& s = stream();
    const Batch& row = rows_[static_cast<size_t>(updates_) % rows_.size()];
    s.mark(marks.begin);
    engine_->begin_window();
    engine_->micro_step(row);
    s.mark(marks.passed);
    const Stopwatch waiting;
    engine_->update(1e-6, ++updates_, row.num_targets);
    waited_ = waiting.seconds();
    s.mark(marks.updated);
  }

  void time_steps() {
    Stream& s = stream();
    Marks marks;
    for (int64_t i = 0; i < warm_up_steps; ++i) {
      say(format("warm-up step {} of {}", i + 1, warm_up_steps));
      step(marks);
    }
    const double once = s.seconds_between(marks.begin, marks.updated);
    out_.steps = std::clamp<int64_t>(static_cast<int64_t>(timed_seconds_ / once), 5, 200);
    std::vector<Marks> all(static_cast<size_t>(out_.steps));
    std::vector<double> passes, updates, idle, queueing;
    const Driver driver(pci_bus_id_);
    for (size_t i = 0; i < all.size(); ++i) {
      say(format("timed step {} of {}", i + 1, all.size()));
      Marks& m = all[i];
      const Stopwatch clock;
      step(m);
      queueing.push_back(clock.seconds() - waited_);
    }
    out_.figures.utilisation = driver.utilisation();
    for (size_t i = 0; i < all.size(); ++i) {
      passes.push_back(s.seconds_between(all[i].begin, all[i].passed));
      updates.push_back(s.seconds_between(all[i].passed, all[i].updated));
      if (i > 0) idle.push_back(s.seconds_between(all[i - 1].updated, all[i].begin));
    }
    out_.figures.pass_ms = median(passes) * 1e3;
    out_.fastest_ms = *std::min_element(passes.begin(), passes.end()) * 1e3;
    out_.slowest_ms = *std::max_element(passes.begin(), passes.end()) * 1e3;
    out_.figures.update_ms = median(updates) * 1e3;
    out_.figures.host_ms = median(queueing) * 1e3;
    out_.idle_ms = median(idle) * 1e3;
  }

  // As the timed steps were: graphs are replayed, and the host waits only where a step makes it.
  void watch_steps() {
    if (!tracer_.start) return;
    say("traced steps");
    Marks marks;
    out_.traced =
        trace_steps(tracer_, traced_steps, out_.figures.pass_ms + out_.figures.update_ms + out_.idle_ms,
                    [&] { step(marks); });
    out_.figures.traced_ms = out_.traced.step_ms();
    out_.figures.busy_ms = out_.traced.busy_ms();
    out_.figures.host_calls = out_.traced.host_calls();
  }

  void count_launches() {
    Stream& s = stream();
    if (!s.can_capture()) return;
    OpRecorder recorder(device_);
    engine_->give_step(recorder, batch());
    try {
      s.begin_capture();
      for (const RecordedCall& call : recorder.calls()) call.run(s);
      // The row and the step's scalars go up, the loss and the scalars come back.
      out_.figures.launches = static_cast<double>(s.end_capture().nodes + 4);
    } catch (const Error& error) {
      s.abandon_capture();
      log::warn("launches are not counted: {}", error.what());
    }
  }

  void time_ops() {
    Stream& s = stream();
    OpRecorder recorder(device_);
    engine_->give_step(recorder, batch());
    constexpr int rounds = 3;
    for (int round = 0; round < rounds; ++round) {
      say(format("ops one by one, round {} of {}", round + 1, rounds));
      std::vector<Moment> marks(recorder.calls().size() + 1);
      s.mark(marks[0]);
      for (size_t i = 0; i < recorder.calls().size(); ++i) {
        recorder.calls()[i].run(s);
        s.mark(marks[i + 1]);
      }
      for (size_t i = 0; i < recorder.calls().size(); ++i) {
        out_.figures.op_ms[name_of(recorder.calls()[i].op)] +=
            s.seconds_between(marks[i], marks[i + 1]) * 1e3 / rounds;
      }
    }
  }

  void time_products(BenchTimer& timer) {
    Stream& s = stream();
    std::vector<MatmulCall> calls;
    MatmulRecorder recorder(device_, calls);
    engine_->give_step(recorder, batch());
    std::map<Product, std::pair<const MatmulCall*, int64_t>> distinct;
    for (const MatmulCall& call : calls) {
      auto& [example, count] = distinct[product_of(call)];
      if (count++ == 0) example = &call;
    }
    out_.products = static_cast<int64_t>(calls.size());
    RandomFill random;
    size_t done = 0;
    for (const auto& [product, first] : distinct) {
      say(format("matrix product {} of {}", ++done, distinct.size()));
      const MatmulCall& call = *first.first;
      for (const Tensor& x : {call.c, writable(call.a), writable(call.b)}) random.normal(s, x);
      const double seconds = timer.median_seconds(
          s, [&](Stream& on) { ops::matmul(on, call.c, call.a, call.b, call.spec); }, false, gemm_seconds);
      out_.figures.gemm_ms += seconds * 1e3 * static_cast<double>(first.second);
    }
  }

  Device& device_;
  std::unique_ptr<Communicator> comm_;
  ActivityTracer tracer_;
  std::string pci_bus_id_;
  double timed_seconds_;
  bool parts_;
  std::string title_;
  std::vector<Batch> rows_;
  std::unique_ptr<Engine> engine_;
  BenchStepDepth out_;
  int64_t updates_ = 0;
  double waited_ = 0;
};

// a + (b - a) along the line through two depths; not below the deeper one, whatever else the machine did
// meanwhile.
StepFigures extended(const StepFigures& a, const StepFigures& b, double layers) {
  const double t = (layers - a.layers) / (b.layers - a.layers);
  const auto line = [&](double x, double y) { return std::max(x + (y - x) * t, y); };
  StepFigures out;
  out.layers = layers;
  out.flat = b.pass_ms <= a.pass_ms || b.update_ms <= a.update_ms;
  out.pass_ms = line(a.pass_ms, b.pass_ms);
  out.update_ms = line(a.update_ms, b.update_ms);
  out.gemm_ms = line(a.gemm_ms, b.gemm_ms);
  out.launches = line(a.launches, b.launches);
  out.host_ms = line(a.host_ms, b.host_ms);
  if (a.traced_ms > 0 && b.traced_ms > 0) {
    out.traced_ms = line(a.traced_ms, b.traced_ms);
    out.busy_ms = line(a.busy_ms, b.busy_ms);
    out.host_calls = line(a.host_calls, b.host_calls);
  }
  out.utilisation = b.utilisation;  // a share: of the deeper one
  out.bytes = line(a.bytes, b.bytes);
  out.parameters = line(a.parameters, b.parameters);
  for (const auto& [op, ms] : b.op_ms) {
    const auto at = a.op_ms.find(op);
    out.op_ms[op] = line(at == a.op_ms.end() ? 0 : at->second, ms);
  }
  return out;
}

// The line through two depths is that of the model only where they have its mixture of layers.
void warn_about_mixture(const BenchStepOptions& options) {
  const std::vector<bool>& kinds = options.model.full_attention;
  const auto attention = [&](int64_t layers) {
    return std::count(kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(layers), true);
  };
  const int64_t all = options.model.layers();
  for (const int64_t depth : {options.depths.front(), options.depths.back()}) {
    if (attention(depth) * all == attention(all) * depth) continue;
    log::warn(
        "{} of the first {} layers have full attention, {} of all {}: what is extended from them is that of "
        "another mixture",
        attention(depth), depth, attention(all), all);
  }
}

std::string layers_text(const StepFigures& f) {
  return counted(static_cast<int64_t>(f.layers), "layer");
}

json::Value figures_json(const BenchStepReport& report, const StepFigures& f) {
  json::Value out;
  out.set("layers", static_cast<int64_t>(f.layers));
  out.set("forward_backward_ms", f.pass_ms);
  out.set("optimizer_ms", f.update_ms);
  out.set("gemm_ms", f.gemm_ms);
  out.set("ratio_to_gemm", report.ratio(f));
  out.set("tokens_per_s", report.tokens_per_s(f));
  if (report.peak_tflop_s > 0) out.set("mfu_6n", report.mfu(f));
  if (f.flat) out.set("lower_bound", true);
  out.set("launches", static_cast<int64_t>(f.launches));
  out.set("host_ms", f.host_ms);
  if (f.traced_ms > 0) {
    out.set("traced_step_ms", f.traced_ms);
    out.set("device_busy_ms", f.busy_ms);
    out.set("host_calls", f.host_calls);
    out.set("device_idle_share", 1 - f.busy_ms / f.traced_ms);
  }
  if (f.utilisation >= 0) out.set("gpu_utilisation", f.utilisation);
  out.set("memory_bytes", static_cast<int64_t>(f.bytes));
  json::Value ops{json::Object{}};
  for (const auto& [op, ms] : f.op_ms) ops.set(op, ms);
  out.set("ops_ms", std::move(ops));
  return out;
}

}  // namespace

std::vector<Batch> bench_rows(const BenchStepOptions& options) {
  if (!options.rows.empty()) return options.rows;
  return {bench_batch(options.lengths, options.tokens, options.model.vocab_size)};
}

std::unique_ptr<Engine> bench_engine(Device& device, Communicator& comm, const BenchStepOptions& options,
                                     int64_t layers, const std::vector<Batch>& rows) {
  std::vector<size_t> first;
  for (int64_t l = 0; l < layers; ++l) first.push_back(static_cast<size_t>(l));
  const ModelConfig config = with_layers(options.model, first);
  EngineOptions engine;
  engine.storage = options.storage;
  engine.tokens = options.tokens;
  for (const Batch& row : rows)
    engine.max_documents = std::max(engine.max_documents, static_cast<int64_t>(row.cu_seqlens.size()) - 1);
  engine.keep = options.keep ? options.keep(layers) : keep_of(options.recompute);
  engine.prefer_kernel = options.kernel;
  engine.prefer_for_products = false;
  engine.max_grad_norm = 1;
  options.optimizer.set(engine);
  engine.graph = options.graph;
  engine.deterministic = options.deterministic;
  engine.allow_slow_kernels = options.allow_slow_kernels;
  engine.tune_matmuls = options.tune_matmuls;
  engine.cache_folder = options.cache_folder;
  auto out = std::make_unique<Engine>(device, comm, config, config.tie_word_embeddings, engine);
  fill_random(*out);
  return out;
}

double BenchStepReport::mfu(const StepFigures& f) const {
  if (peak_tflop_s <= 0) return 0;
  return 6 * f.parameters * static_cast<double>(tokens) / (f.pass_ms * 1e-3) / (peak_tflop_s * 1e12);
}

json::Value BenchStepReport::to_json() const {
  json::Value out;
  out.set("device", device);
  out.set("model", model);
  out.set("dtype", dtype);
  out.set("tokens", tokens);
  out.set("documents", documents);
  out.set("supervised", targets);
  out.set("recompute", recompute);
  out.set("optimizer", optimizer);
  out.set("cuda_graph", graph);
  if (slow) out.set("slow_kernels", true);
  out.set("copy_gb_s", rates.copy_gb_s);
  out.set("gemm_tflop_s", rates.gemm_tflop_s);
  out.set("gemm_size", rates.gemm_size);
  json::Array list;
  for (const BenchStepDepth& depth : depths) {
    json::Value item = figures_json(*this, depth.figures);
    item.set("steps", depth.steps);
    item.set("fastest_ms", depth.fastest_ms);
    item.set("slowest_ms", depth.slowest_ms);
    item.set("idle_between_steps_ms", depth.idle_ms);
    item.set("idle_share", depth.idle_ms / (depth.figures.pass_ms + depth.figures.update_ms));
    item.set("matrix_products", depth.products);
    if (depth.traced.steps > 0 || !depth.traced.why.empty())
      item.set("activity", deltatune::to_json(depth.traced));
    list.push_back(std::move(item));
  }
  out.set("depths", std::move(list));
  if (depths.size() > 1) out.set("extrapolated", figures_json(*this, whole));
  return out;
}

std::string BenchStepReport::to_text() const {
  std::string out = format(
      "{}, {} in {} ({} supervised), {}, recompute {}, {}, cuda_graph {}, on {}; copy "
      "{:.0f} "
      "GB/s, matrix product of {} {:.1f} TFLOP/s{}\n",
      model, counted(tokens, "token"), counted(documents, "document"), targets, dtype, recompute, optimizer,
      graph, device, rates.copy_gb_s, rates.gemm_size, rates.gemm_tflop_s, slow ? "  slow kernels" : "");
  out += format("{:<28}", "layers");
  for (const BenchStepDepth& d : depths) out += format("{:>12.0f}", d.figures.layers);
  const bool extended = depths.size() > 1;
  out += extended ? format("{:>12.0f}  extrapolated\n", whole.layers) : "\n";
  const auto row = [&](const char* what, auto&& value) {
    out += format("{:<28}", what);
    for (const BenchStepDepth& d : depths) out += format("{:>12.3f}", value(d.figures));
    out += extended ? format("{:>12.3f}\n", value(whole)) : "\n";
  };
  row("forward and backward, ms", [](const StepFigures& f) { return f.pass_ms; });
  row("its matrix products, ms", [](const StepFigures& f) { return f.gemm_ms; });
  row("ratio", [&](const StepFigures& f) { return ratio(f); });
  row("optimizer, ms", [](const StepFigures& f) { return f.update_ms; });
  row("tokens/s, all of it", [&](const StepFigures& f) { return tokens_per_s(f); });
  if (peak_tflop_s > 0) row("MFU (6N), %", [&](const StepFigures& f) { return 100 * mfu(f); });
  row("launches", [](const StepFigures& f) { return f.launches; });
  row("host, ms to queue a step", [](const StepFigures& f) { return f.host_ms; });
  row("memory, GiB", [](const StepFigures& f) { return f.bytes / double(1 << 30); });
  for (const BenchStepDepth& d : depths) {
    out += format(
        "{}: {}, forward and backward {:.3f} to {:.3f} ms; idle between steps {:.3f} ms, "
        "{:.2f} %\n",
        layers_text(d.figures), counted(d.steps, "step"), d.fastest_ms, d.slowest_ms, d.idle_ms,
        100 * d.idle_ms / (d.figures.pass_ms + d.figures.update_ms));
    if (d.traced.steps > 0 || !d.traced.why.empty()) {
      out += format("{}: {}\n", layers_text(d.figures), deltatune::to_text(d.traced));
    }
  }
  if (extended && whole.traced_ms > 0) {
    out += format("{}: device busy {:.3f} ms of {:.3f} ms a step: idle {:.3f} %, extrapolated\n",
                  layers_text(whole), whole.busy_ms, whole.traced_ms,
                  100 * (1 - whole.busy_ms / whole.traced_ms));
  }
  std::vector<std::pair<double, std::string>> ops;
  for (const auto& [op, ms] : whole.op_ms) ops.emplace_back(ms, op);
  std::sort(ops.rbegin(), ops.rend());
  if (whole.flat) out += flat_note();
  out += "by op, ms (one after the other, with marks between):\n";
  for (const auto& [ms, op] : ops) {
    out += format("  {:<26}", op);
    for (const BenchStepDepth& d : depths) {
      const auto at = d.figures.op_ms.find(op);
      out += format("{:>12.3f}", at == d.figures.op_ms.end() ? 0 : at->second);
    }
    out += extended ? format("{:>12.3f}\n", ms) : "\n";
  }
  return out;
}

std::string flat_note() {
  return "the deeper model took no longer than the other: what is extended from them is a lower bound; use "
         "depths further apart, longer rows, or a machine with nothing else to do\n";
}

BenchStepReport bench_step(Device& device, const BenchStepOptions& options) {
  const int64_t layers = options.model.layers();
  for (size_t i = 0; i < options.depths.size(); ++i) {
    if (options.depths[i] < 1 || options.depths[i] > layers ||
        (i > 0 && options.depths[i] <= options.depths[i - 1])) {
      throw Error(ErrorKind::usage, format("{} is no depth to measure", options.depths[i]), "--depths",
                  format("name one or more numbers of layers from 1 to {}, in ascending order", layers));
    }
  }
  if (options.depths.size() > 1) warn_about_mixture(options);
  BenchStepReport report;
  report.device = device.name();
  report.model = options.model_name;
  report.dtype = name_of(options.storage);
  report.recompute = options.recompute;
  report.optimizer = options.optimizer.to_text(options.storage);
  report.tokens = options.tokens;
  report.peak_tflop_s = options.peak_tflop_s;
  for (const int64_t depth : options.depths) {
    log::info("measuring {}", counted(depth, "layer"));
    StepBench bench(device, options, depth);
    BenchTimer timer(device, bench.stream());
    if (report.rates.gemm_size == 0) report.rates = timer.rates(bench.stream(), options.storage);
    report.depths.push_back(bench.run(timer));
    report.documents = bench.batch().documents;
    report.targets = bench.batch().num_targets;
    report.slow = bench.engine().kernels().slow();
    report.graph = bench.engine().graphs().nodes(StepGraphs::forward) > 0 ? "true" : "false";
  }
  const StepFigures& first = report.depths.front().figures;
  const StepFigures& last = report.depths.back().figures;
  report.whole = report.depths.size() > 1 ? extended(first, last, static_cast<double>(layers)) : last;
  return report;
}

}  // namespace deltatune
