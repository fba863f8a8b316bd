// matmul by cuBLASLt: plans by shape, tuned before the first step. The workspace is the op's scratch.
//
// Tuning times the library's suggestions on the operands of a recorded call: each once to warm up and a few
// times for a first ranking, then the best of them in turns, so that a clock that drifts meets all alike. The
// library's first suggestion stays where nothing is faster by more than the noise.
#include "cuda/matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/median.h"
#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "cuda/matmul_choices.h"
#include "cuda/matmul_plan.h"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

struct Tuning {
  static constexpr int suggestions = 16;
  static constexpr int finalists = 4;
  static constexpr int first_runs = 3;
  static constexpr int final_runs = 9;
  static constexpr double noise = 0.005;  ///< of the first suggestion's time: no reason to leave it
};

std::byte* workspace_of(Stream& stream) {
  return stream.scratch(scratch::cuda_library_cap);
}

/// Times one key's algorithms on the call's operands.
class Race {
 public:
  Race(cublasLtHandle_t handle, Stream& stream, const MatmulPlan& plan, const MatmulCall& call)
      : handle_(handle), stream_(stream), plan_(plan), call_(call) {}

  MatmulChoice run() {
    for (const MatmulAlgorithm& algorithm : plan_.suggestions(handle_, Tuning::suggestions)) {
      Entry entry{algorithm, {}};
      try {
        time(entry);
      } catch (const Error&) {
        continue;  // a suggestion that fails to start is none
      }
      entry.times.clear();
      for (int i = 0; i < Tuning::first_runs; ++i) time(entry);
      entries_.push_back(std::move(entry));
    }
    if (entries_.empty()) return {plan_.algorithm(), 0, 0};
    // The first suggestion is always a finalist: the gain is measured against it.
    std::stable_sort(entries_.begin() + 1, entries_.end(),
                     [](const Entry& x, const Entry& y) { return median(x.times) < median(y.times); });
    entries_.resize(std::min<size_t>(entries_.size(), Tuning::finalists));
    for (Entry& entry : entries_) entry.times.clear();
    for (int i = 0; i < Tuning::final_runs; ++i) {
      for (Entry& entry : entries_) time(entry);
    }
    const double first = median(entries_[0].times);
    const Entry* best = &entries_[0];
    double best_time = first * (1 - Tuning::noise);
    for (const Entry& entry : entries_) {
      const double seconds = median(entry.times);
      if (seconds >= best_time) continue;
      best = &entry;
      best_time = seconds;
    }
    return {best->algorithm, median(best->times) * 1e6, first * 1e6};
  }

 private:
  struct Entry {
    MatmulAlgorithm algorithm;
    std::vector<double> times;
  };

  void time(Entry& entry) {
    stream_.mark(begin_);
    plan_.run(handle_, stream_, entry.algorithm, workspace_of(stream_), call_.c, call_.a, call_.b);
    stream_.mark(end_);
    entry.times.push_back(stream_.seconds_between(begin_, end_));
  }

  cublasLtHandle_t handle_;
  Stream& stream_;
  const MatmulPlan& plan_;
  const MatmulCall& call_;
  std::vector<Entry> entries_;
  Moment begin_, end_;
};

Tensor writable(CTensor x) {
  return {const_cast<std::byte*>(x.data), x.dtype, x.shape};
}

}  // namespace

struct MatmulPlans::Impl {
  std::mutex mutex;
  cublasLtHandle_t handle = nullptr;
  std::map<MatmulKey, MatmulPlan> plans;  // a plan never moves and is never removed

  MatmulPlan& plan_of(const MatmulKey& key) {
    const std::lock_guard lock(mutex);
    if (!handle) check_blas(cublasLtCreate(&handle), "cublasLtCreate");
    return plans.try_emplace(key, handle, key).first->second;
  }
};

MatmulPlans::MatmulPlans() : impl_(std::make_unique<Impl>()) {}

MatmulPlans::~MatmulPlans() {
  impl_->plans.clear();
  if (impl_->handle) cublasLtDestroy(impl_->handle);
}

void MatmulPlans::prepare(Stream& stream, const std::string& gpu, MatmulTuning& tuning) {
  const Stopwatch clock;
  std::map<MatmulKey, MatmulCall> shapes;
  for (const MatmulCall& call : tuning.calls) {
    if (call.c.count() > 0 && call.a.count() > 0)
      shapes.try_emplace(key_of(call.c, call.a, call.b, call.spec), call);
  }
  tuning.shapes = static_cast<int64_t>(shapes.size());
  const size_t version = cublasLtGetVersion();
  const bool stores = tuning.time && !tuning.folder.empty();
  const auto path = choices_path(tuning.folder, gpu, version);
  const MatmulChoices stored = stores ? read_choices(path, gpu, version, tuning.warnings) : MatmulChoices{};
  MatmulChoices fresh;
  for (const auto& [key, call] : shapes) {
    MatmulPlan& plan = impl_->plan_of(key);
    const std::string name = to_string(key);
    if (!plan.usable()) {
      tuning.plain.push_back(name);
      continue;
    }
    if (!tuning.time) continue;
    if (const auto known = stored.find(name); known != stored.end()) {
      MatmulAlgorithm algorithm = known->second.algorithm;
      if (plan.accepts(impl_->handle, algorithm)) {
        plan.use(algorithm);
        ++tuning.stored;
        continue;
      }
      tuning.warnings.push_back(path.string() + ": cuBLASLt refuses the algorithm of " + name +
                                "; it is tuned again");
    }
    tuning.fill(stream, writable(call.a));
    tuning.fill(stream, writable(call.b));
    if (call.spec.accumulate) tuning.fill(stream, call.c);
    const MatmulChoice choice = Race(impl_->handle, stream, plan, call).run();
    plan.use(choice.algorithm);
    tuning.first_us += choice.first_us;
    tuning.chosen_us += choice.us;
    ++tuning.timed;
    fresh[name] = choice;
  }
  if (stores && !fresh.empty()) write_choices(path, gpu, version, fresh, tuning.warnings);
  tuning.seconds = clock.seconds();
}

bool MatmulPlans::run(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  const MatmulPlan& plan = impl_->plan_of(key_of(c, a, b, spec));
  if (!plan.usable()) return false;
  plan.run(impl_->handle, stream, plan.algorithm(), workspace_of(stream), c, a, b);
  return true;
}

void matmul(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  if (c.count() == 0) return;
  // An empty sum is no product to cuBLASLt.
  const bool some = a.count() > 0;
  auto& device = static_cast<CudaDevice&>(stream.device());
  if (!some || !device.matmul_plans().run(stream, c, a, b, spec)) matmul_plain(stream, c, a, b, spec);
}

}  // namespace deltatune::cuda
