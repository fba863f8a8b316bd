// Running, recording, replaying.
#include "train/bench_op.h"

#include <algorithm>
#include <map>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "ops/op_recorder.h"
#include "ops/scratch.h"
#include "train/bench_model.h"
#include "train/kernel_report.h"

namespace deltatune {
namespace {

class OpBench {
 public:
  OpBench(Device& device, const BenchOpOptions& options)
      : device_(device), options_(options), comm_(make_solo_communicator()) {
    const ModelConfig config = with_layers(options.model, one_of_each_kind(options.model));
    batch_ = bench_batch(options.lengths, options.tokens, config.vocab_size);
    EngineOptions engine;
    engine.storage = options.storage;
    engine.tokens = options.tokens;
    engine.max_documents = static_cast<int64_t>(batch_.cu_seqlens.size()) - 1;  // what the data needs
    engine.keep = Keep::all();  // each layer's activations stay what they are
    engine.max_grad_norm = 1;
    engine.deterministic = options.deterministic;
    engine.allow_slow_kernels = true;  // looked at below, for the chosen ops alone
    engine.graph = GraphMode::never;
    engine.prefer_kernel = options.kernel;
    engine.tune_matmuls = options.tune_matmuls;
    engine.cache_folder = options.cache_folder;
    options.optimizer.set(engine);
    engine_ = std::make_unique<Engine>(device, *comm_, config, config.tie_word_embeddings, engine);
    check_selection();
    fill_random(*engine_);
    engine_->begin_window();
    engine_->micro_step(batch_);
    engine_->update(1e-5, 1, batch_.num_targets);
  }

  BenchOpReport run() {
    BenchOpReport report;
    report.device = device_.name();
    report.model = options_.model_name;
    report.dtype = name_of(options_.storage);
    report.optimizer = options_.optimizer.to_text(options_.storage);
    report.tokens = options_.tokens;
    report.documents = batch_.documents;
    Stream& stream = engine_->stream();
    BenchTimer timer(device_, stream);
    report.rates = timer.rates(stream, options_.storage);
    OpRecorder recorder(device_);
    engine_->give_step(recorder, batch_);
    std::map<std::string, size_t> seen;
    for (const RecordedCall& call : recorder.calls()) {
      if (!wanted(call.op)) {
        call.run(stream);
        continue;
      }
      const auto [at, fresh] =
          seen.try_emplace(std::string(name_of(call.op)) + " " + call.shape, report.rows.size());
      if (!fresh) {
        ++report.rows[at->second].calls;
        call.run(stream);
        continue;
      }
      report.rows.push_back(time(timer, report.rates, call));
    }
    stream.sync();
    if (report.rows.empty()) {
      if (!options_.kernel.empty()) {
        throw Error(ErrorKind::usage,
                    format("no op that {} names has a kernel {} which takes this model", options_.glob,
                           options_.kernel),
                    "--kernel", "docs/kernels.md names them; without --kernel the chosen ones are timed");
      }
      throw Error(ErrorKind::usage, format("no op of this model is called {}", options_.glob), "bench op",
                  "`deltatune bench op` alone times all of them");
    }
    return report;
  }

 private:
  /// A CPU's caches are part of what its kernels are made for; reading past them takes longer than most ops.
  bool cold() const { return device_.target() == Target::cuda; }
  bool wanted(Op op) const {
    const KernelEntry& kernel = *engine_->kernels()[op].kernel;
    if (!options_.kernel.empty() && short_name(kernel) != options_.kernel) return false;
    return glob_match(options_.glob, name_of(op));
  }

  void check_selection() const {
    if (device_.target() != Target::cuda) return;
    KernelSelection chosen = engine_->kernels();
    for (size_t i = 0; i < chosen.ops.size(); ++i)
      chosen.ops[i].used = chosen.ops[i].used && wanted(static_cast<Op>(i));
    // A kernel that was asked for by name is no surprise.
    refuse_slow_kernels(chosen, options_.allow_slow_kernels || !options_.kernel.empty());
  }

  BenchOpRow time(BenchTimer& timer, const MachineRates& rates, const RecordedCall& call) {
    const SelectedKernel& selected = engine_->kernels()[call.op];
    BenchOpRow row;
    row.op = name_of(call.op);
    row.kernel = short_name(*selected.kernel);
    row.slow = selected.slow();
    row.shape = call.shape;
    row.bytes = call.cost.bytes;
    row.flops = call.cost.flops;
    row.calls = 1;
    row.us = timer.median_seconds(engine_->stream(), call.run, cold()) * 1e6;
    if (call.op == Op::matmul && device_.target() == Target::cuda && row.kernel != "cublaslt")
      row.cublas_us = cublas_us(timer, call);
    const double limit =
        std::max(row.bytes / (rates.copy_gb_s * 1e3), row.flops / (rates.gemm_tflop_s * 1e6));
    row.share = limit / row.us;
    log::debug("{} {}: {:.1f} us", row.op, row.shape, row.us);
    return row;
  }

  /// The same product by cuBLASLt, on a stream and with a workspace of its own.
  double cublas_us(BenchTimer& timer, const RecordedCall& call) {
    if (!cublas_) {
      KernelChoice choice{};
      choice[static_cast<size_t>(Op::matmul)] = find_kernel("matmul.cublaslt");
      workspace_ = device_.allocate(scratch::cuda_library_cap, "workspace", "bench", Lifetime::op);
      cublas_ = device_.make_stream("cublas", choice);
      cublas_->set_scratch(workspace_.span());
    }
    engine_->stream().sync();
    return timer.median_seconds(*cublas_, call.run, cold()) * 1e6;
  }

  Device& device_;
  const BenchOpOptions& options_;
  std::unique_ptr<Communicator> comm_;
  Batch batch_;
  std::unique_ptr<Engine> engine_;
  Buffer workspace_;
  std::unique_ptr<Stream> cublas_;
};

}  // namespace

bool glob_match(std::string_view glob, std::string_view text) {
  size_t g = 0, t = 0;
  size_t star = std::string_view::npos, resume = 0;  // the last star, and where what follows it was tried
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

json::Value BenchOpReport::to_json() const {
  json::Array list;
  for (const BenchOpRow& row : rows) {
    json::Value item;
    item.set("op", row.op);
    item.set("kernel", row.kernel);
    if (row.slow) item.set("slow_kernels", true);
    item.set("shape", row.shape);
    item.set("calls", row.calls);
    item.set("us", row.us);
    item.set("bytes", row.bytes);
    item.set("flops", row.flops);
    item.set("gb_s", row.gb_s());
    item.set("tflop_s", row.tflop_s());
    item.set("roofline_share", row.share);
    if (row.cublas_us > 0) item.set("cublas_ratio", row.cublas_us / row.us);
    list.push_back(std::move(item));
  }
  json::Value out;
  out.set("device", device);
  out.set("model", model);
  out.set("dtype", dtype);
  out.set("optimizer", optimizer);
  out.set("tokens", tokens);
  out.set("documents", documents);
  out.set("copy_gb_s", rates.copy_gb_s);
  out.set("gemm_tflop_s", rates.gemm_tflop_s);
  out.set("gemm_size", rates.gemm_size);
  out.set("ops", std::move(list));
  return out;
}

std::string BenchOpReport::to_text() const {
  std::string out = format(
      "{} shapes, {} in {}, {}, {}, on {}; copy {:.0f} GB/s, matrix product of {} {:.1f} "
      "TFLOP/s\n",
      model, counted(tokens, "token"), counted(documents, "document"), dtype, optimizer, device,
      rates.copy_gb_s, rates.gemm_size, rates.gemm_tflop_s);
  out += format("{:<23} {:<10} {:<32} {:>5} {:>11} {:>8} {:>8} {:>9}\n", "op", "kernel", "shape", "calls",
                "us", "GB/s", "TFLOP/s", "roofline");
  for (const BenchOpRow& row : rows) {
    out += format("{:<23} {:<10} {:<32} {:>5} {:>11.1f} {:>8.0f} {:>8.1f} {:>8.1f}%{}{}\n", row.op,
                  row.kernel, row.shape, row.calls, row.us, row.gb_s(), row.tflop_s(), 100 * row.share,
                  row.slow ? "  slow kernels" : "",
                  row.cublas_us > 0 ? format("  {:.2f} of cuBLAS's speed", row.cublas_us / row.us) : "");
  }
  return out;
}

BenchOpReport bench_ops(Device& device, const BenchOpOptions& options) {
  return OpBench(device, options).run();
}

}  // namespace deltatune
