// Golden cases: pack, run, compare.
#include "train/parity.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/format.h"
#include "base/median.h"
#include "comm/communicator.h"
#include "io/safetensors.h"
#include "train/engine.h"
#include "train/model_source.h"

namespace deltatune {
namespace {

// Bounds for f32: the agreement of an independent float64 evaluation (logits 1e-6, loss 1e-7, gradients 4e-5,
// updates 6e-4), with room for fp32 sums in another order.
constexpr double f32_logits = 1e-5, f32_loss = 1e-6, f32_norm = 1e-5, f32_gradient = 1e-4, f32_update = 5e-3;
// Bounds for bf16 are the reference's own bf16 error, which is one draw of rounding noise: whole-model
// quantities may exceed it by a tenth, a tensor of bf16_enough values or more by a quarter. Smaller tensors
// are judged together, by kind over the layers: see noise_bound.
constexpr double bf16_whole = 1.1, bf16_tensor = 1.25, bf16_loss = 1e-3;
constexpr int64_t bf16_enough = 1000;
// No row of logits may be this many times worse than the median row.
constexpr double bf16_worst_row = 5;
// After an update the loss also has the noise of the update (5 to 15 % of it in bf16): the same sequences in
// two orders already differ by 1e-3.
constexpr double f32_later_loss = 1e-5, bf16_later_loss = 3e-3;

struct Sequence {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  int64_t first_row = 0;  // in the stored logits
};

struct Case {
  std::string name;
  std::vector<Sequence> sequences;
  json::Value root;
  int64_t tokens = 0;
  int64_t targets = 0;
};

std::vector<int32_t> integers(const json::Value& list) {
  std::vector<int32_t> out;
  for (const json::Value& item : list.as_array()) out.push_back(static_cast<int32_t>(item.as_integer()));
  return out;
}

Case read_case(const fs::path& folder) {
  Case c;
  c.root = json::parse_file((folder / "case.json").string());
  c.name = c.root.at("case").as_string();
  for (const json::Value& item : c.root.at("sequences").as_array()) {
    Sequence s{integers(item.at("input_ids")), integers(item.at("labels")), c.tokens};
    if (s.ids.size() != s.labels.size() || s.ids.empty()) {
      throw Error(ErrorKind::data, "a sequence has no tokens, or not one label per token",
                  (folder / "case.json").string(), "make the case again");
    }
    c.tokens += static_cast<int64_t>(s.ids.size());
    for (size_t t = 1; t < s.labels.size(); ++t) c.targets += s.labels[t] != -100;
    c.sequences.push_back(std::move(s));
  }
  if (c.targets != c.root.at("supervised_tokens").as_integer()) {
    throw Error(ErrorKind::data, "supervised_tokens does not match the labels",
                (folder / "case.json").string(), "make the case again");
  }
  return c;
}

// A packed row and, for each slot of a document, the row of the stored logits it corresponds to.
struct CaseRow {
  Batch batch;
  std::vector<int32_t> slots;
  std::vector<int64_t> stored;
};

CaseRow make_row(std::span<const Sequence* const> sequences, int64_t tokens) {
  CaseRow row;
  Batch& b = row.batch;
  b.cu_seqlens = {0};
  for (const Sequence* s : sequences) {
    for (size_t t = 0; t < s->ids.size(); ++t) {
      row.slots.push_back(static_cast<int32_t>(b.tokens.size()));
      row.stored.push_back(s->first_row + static_cast<int64_t>(t));
      b.tokens.push_back(s->ids[t]);
      b.positions.push_back(static_cast<int32_t>(t));
      const bool last = t + 1 == s->ids.size();
      b.targets.push_back(last ? -100 : s->labels[t + 1]);
      b.num_targets += b.targets.back() != -100;
    }
    b.cu_seqlens.push_back(static_cast<int32_t>(b.tokens.size()));
  }
  b.documents = static_cast<int64_t>(sequences.size());
  b.real_tokens = static_cast<int64_t>(b.tokens.size());
  for (int32_t at = 0; static_cast<int64_t>(b.tokens.size()) < tokens; ++at) {
    b.tokens.push_back(0);
    b.positions.push_back(at);
    b.targets.push_back(-100);
  }
  if (b.cu_seqlens.back() != tokens) b.cu_seqlens.push_back(static_cast<int32_t>(tokens));
  return row;
}

std::vector<CaseRow> pack(const Case& c, const ParityOptions& options) {
  std::vector<const Sequence*> order;
  for (const Sequence& s : c.sequences) order.push_back(&s);
  if (options.reverse) std::reverse(order.begin(), order.end());
  const auto rows =
      static_cast<size_t>(std::clamp<int64_t>(options.micro_batches, 1, static_cast<int64_t>(order.size())));
  std::vector<std::vector<const Sequence*>> split(rows);
  for (size_t i = 0; i < order.size(); ++i) split[i * rows / order.size()].push_back(order[i]);
  int64_t tokens = 0;
  for (const auto& part : split) {
    int64_t sum = 0;
    for (const Sequence* s : part) sum += static_cast<int64_t>(s->ids.size());
    tokens = std::max(tokens, sum);
  }
  std::vector<CaseRow> out;
  for (const auto& part : split) out.push_back(make_row(part, tokens));
  return out;
}

// Sums of squared differences against a stored tensor.
struct Difference {
  double squares = 0, reference = 0, largest = 0;
  void add(double ours, double theirs) {
    squares += (ours - theirs) * (ours - theirs);
    reference += theirs * theirs;
    largest = std::max(largest, std::abs(ours - theirs));
    if (!std::isfinite(ours)) squares = INFINITY;
  }
  double rel() const { return reference > 0 ? std::sqrt(squares / reference) : std::sqrt(squares); }
};

class Expected {
 public:
  explicit Expected(const fs::path& path) : file_(path) {}
  std::vector<double> values(const std::string& name) const {
    const StoredTensor* stored = file_.find(name);
    if (!stored) {
      throw Error(ErrorKind::data, "expected.safetensors has no " + name, "golden case",
                  "make the case again");
    }
    const std::span<const std::byte> bytes = file_.bytes(*stored);
    const bool f64 = name == "loss" || name == "loss_sum" || name == "grad_norm" || name == "losses_3_steps";
    const size_t count = bytes.size() / (f64 ? 8 : 4);
    std::vector<double> out(count);
    convert(out.data(), DType::f64, bytes.data(), f64 ? DType::f64 : DType::f32, static_cast<int64_t>(count));
    return out;
  }

 private:
  SafetensorsFile file_;
};

// The last two parts of a name say what kind of tensor it is, whatever its layer.
std::string kind_of(const std::string& name) {
  const size_t weight = name.ends_with(".weight") ? name.rfind('.', name.size() - 8) : name.rfind('.');
  return name.substr(weight == std::string::npos ? 0 : weight);
}

// Tensors of one kind taken together: root mean squares of our relative errors and of the reference's.
struct Pool {
  double ours_squares = 0, theirs_squares = 0;
  int64_t tensors = 0, values = 0;
  void add(double ours, double theirs, int64_t count) {
    ours_squares += ours * ours;
    theirs_squares += theirs * theirs;
    ++tensors;
    values += count;
  }
  double ours() const { return std::sqrt(ours_squares / static_cast<double>(tensors)); }
  double theirs() const { return std::sqrt(theirs_squares / static_cast<double>(tensors)); }
};

// How far two equally good roundings of n values may be apart: a root mean square of n normal values has a
// relative deviation of 1 / sqrt(2 n), the quotient of two of them 1 / sqrt(n); three of those, at least the
// quarter that large tensors have.
double noise_bound(int64_t n) {
  return std::max(bf16_tensor, 1 + 3 / std::sqrt(static_cast<double>(n)));
}

class Parity {
 public:
  Parity(const fs::path& folder, Device& device, const ParityOptions& options)
      : options_(options),
        case_(read_case(folder)),
        expected_(folder / "expected.safetensors"),
        source_(open_model((folder / "model").string(), "pretrained")),
        rows_(pack(case_, options)),
        comm_(make_solo_communicator()) {
    const json::Value& optimizer = case_.root.at("optimizer");
    EngineOptions o;
    o.storage = options.storage;
    o.keep = options.keep;
    o.tokens = static_cast<int64_t>(rows_[0].batch.tokens.size());
    for (const CaseRow& row : rows_) {
      o.max_documents = std::max(o.max_documents, static_cast<int64_t>(row.batch.cu_seqlens.size()) - 1);
    }
    o.decay_all = true;
    o.allow_slow_kernels = true;  // parity is about numbers; f32 on a GPU has nothing but plain kernels
    o.deterministic = options.deterministic;
    o.weight_decay = static_cast<float>(optimizer.at("wd").as_number());
    o.adamw.beta1 = static_cast<float>(optimizer.at("betas").as_array().at(0).as_number());
    o.adamw.beta2 = static_cast<float>(optimizer.at("betas").as_array().at(1).as_number());
    o.adamw.eps = static_cast<float>(optimizer.at("eps").as_number());
    o.max_grad_norm =
        optimizer.at("clip").is_null() ? 0 : static_cast<float>(optimizer.at("clip").as_number());
    rate_ = optimizer.at("lr").as_number();
    steps_ = optimizer.at("steps").as_integer();
    engine_ = std::make_unique<Engine>(device, *comm_, source_.config, source_.tied, o);
    fill_store(engine_->store(), engine_->stream(), source_, 0);
    hf_ = &case_.root.at("hf_bf16_error");
  }

  ParityReport run() {
    report_.name = case_.name;
    compare_logits();
    std::vector<double> losses;
    for (int64_t step = 1; step <= steps_; ++step) {
      engine_->begin_window();
      for (const CaseRow& row : rows_) engine_->micro_step(row.batch);
      if (step == 1) compare_gradients();
      losses.push_back(engine_->update(rate_, step, case_.targets).loss_sum /
                       static_cast<double>(case_.targets));
    }
    const std::vector<double> stored = expected_.values("losses_3_steps");
    for (size_t i = 0; i < losses.size() && i < stored.size(); ++i) {
      scalar(format("loss before step {}", i + 1), losses[i], stored[i], loss_bound(i));
    }
    compare_updates();
    return std::move(report_);
  }

 private:
  bool f32() const { return options_.storage == DType::f32; }
  double loss_bound(size_t updates) const {
    if (f32()) return updates == 0 ? f32_loss : f32_later_loss;
    return updates == 0 ? bf16_loss : bf16_later_loss;
  }
  void scalar(std::string name, double ours, double theirs, double bound) {
    const double rel = std::isfinite(ours) ? std::abs(ours / theirs - 1) : INFINITY;
    report_.rows.push_back({std::move(name), rel, std::abs(ours - theirs), bound});
  }
  void tensor(std::string name, const Difference& d, double bound) {
    report_.rows.push_back({std::move(name), d.rel(), d.largest, bound});
  }

  void compare_logits() {
    const std::vector<double> stored = expected_.values("logits");
    const auto V = static_cast<size_t>(source_.config.vocab_size);
    Difference all;
    std::vector<double> rows;
    for (const CaseRow& row : rows_) {
      engine_->logits(row.batch, row.slots, [&](int64_t first, int64_t count, const float* values) {
        for (int64_t r = 0; r < count; ++r) {
          const auto at = static_cast<size_t>(row.stored[static_cast<size_t>(first + r)]) * V;
          Difference one;
          for (size_t v = 0; v < V; ++v) {
            const double ours = double{values[static_cast<size_t>(r) * V + v]};
            one.add(ours, stored[at + v]);
            all.add(ours, stored[at + v]);
          }
          rows.push_back(one.rel());
        }
      });
    }
    tensor("logits", all, f32() ? f32_logits : hf_->at("logits_rel").as_number() * bf16_whole);
    const double worst_row = *std::max_element(rows.begin(), rows.end());
    report_.rows.push_back({"logits, worst row", worst_row, all.largest,
                            f32() ? 10 * f32_logits : bf16_worst_row * median_or_0(rows)});
  }

  // Calls f(name, parameter, slice) for each trained tensor that the reference has numbers for.
  template <class F>
  void each_tensor(F&& f) {
    for (const Param& param : engine_->store().table().params) {
      for (const ParamSlice& slice : param.slices) f(slice.hf_name, param, slice);
    }
  }

  void compare_gradients() {
    const UpdateResult window = engine_->inspect_window(case_.targets);
    const auto count = static_cast<double>(case_.targets);
    scalar("loss", window.loss_sum / count, expected_.values("loss")[0], f32() ? f32_loss : bf16_loss);
    scalar("grad norm", window.grad_norm, expected_.values("grad_norm")[0], f32() ? f32_norm : bf16_norm());
    std::vector<double> ours_rel, hf_rel;
    std::map<std::string, Pool> pools;  // by kind
    each_tensor([&](const std::string& name, const Param& param, const ParamSlice& slice) {
      const std::vector<double> stored = expected_.values("grad." + name);
      std::vector<float> ours(stored.size());
      engine_->store().read_gradient(engine_->stream(), param, slice, ours.data());
      Difference d;
      for (size_t i = 0; i < stored.size(); ++i) d.add(double{ours[i]} / count, stored[i]);
      ours_rel.push_back(d.rel());
      if (f32()) return tensor("grad " + name, d, f32_gradient);
      const double hf = hf_->at("grad_rel").at(name).as_number();
      hf_rel.push_back(hf);
      const auto values = static_cast<int64_t>(stored.size());
      tensor("grad " + name, d, values >= bf16_enough ? bf16_tensor * hf : -1);
      if (values < bf16_enough) pools[kind_of(name)].add(d.rel(), hf, values);
    });
    for (const auto& [kind, pool] : pools) {
      report_.rows.push_back({format("grad, all {} values of {}", pool.values, kind), pool.ours(), 0,
                              pool.theirs() * noise_bound(pool.values)});
    }
    const double bound = f32() ? f32_gradient : median_or_0(hf_rel) * bf16_whole;
    report_.rows.push_back({"grad, median over tensors", median_or_0(ours_rel), 0, bound});
  }

  void compare_updates() {
    std::vector<double> all;
    each_tensor([&](const std::string& name, const Param& param, const ParamSlice& slice) {
      const std::vector<double> after = expected_.values("after3." + name);
      std::vector<float> ours(after.size());
      engine_->store().read_slice(engine_->stream(), param, slice, ours.data());
      std::vector<float> start(after.size());
      const TensorInfo* info = source_.checkpoint->find(name);
      std::vector<std::byte> bytes(start.size() * size_of(info->dtype));
      source_.checkpoint->read(name, bytes.data());
      convert(start.data(), DType::f32, bytes.data(), info->dtype, static_cast<int64_t>(start.size()));
      Difference d;
      for (size_t i = 0; i < after.size(); ++i)
        d.add(double{ours[i]} - double{start[i]}, after[i] - double{start[i]});
      tensor("update " + name, d, f32() ? f32_update : -1);
      all.push_back(d.rel());
    });
    // bf16: gradient noise of 1 to 4 % becomes 5 to 15 % of an AdamW update in a typical tensor.
    report_.rows.push_back({"update, median over tensors", median_or_0(all), 0, f32() ? f32_update : 0.15});
  }

  // No tensor has no error.
  static double median_or_0(const std::vector<double>& values) { return values.empty() ? 0 : median(values); }
  double bf16_norm() const {
    std::vector<double> hf;
    for (const auto& [name, value] : hf_->at("grad_rel").as_object()) hf.push_back(value.as_number());
    return median_or_0(hf);
  }

  ParityOptions options_;
  Case case_;
  Expected expected_;
  ModelSource source_;
  std::vector<CaseRow> rows_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Engine> engine_;
  const json::Value* hf_ = nullptr;
  double rate_ = 0;
  int64_t steps_ = 0;
  ParityReport report_;
};

}  // namespace

bool ParityReport::ok() const {
  return std::all_of(rows.begin(), rows.end(), [](const ParityRow& row) { return row.ok(); });
}

json::Value ParityReport::to_json() const {
  json::Array list;
  for (const ParityRow& row : rows) {
    json::Value item;
    item.set("name", row.name);
    item.set("rel", row.rel);
    item.set("max_error", row.max_error);
    item.set("bound", row.bound < 0 ? json::Value() : json::Value(row.bound));
    item.set("ok", row.ok());
    list.push_back(std::move(item));
  }
  json::Value out;
  out.set("case", name);
  out.set("ok", ok());
  out.set("rows", std::move(list));
  return out;
}

std::string ParityReport::to_text() const {
  std::string out = format("{:<66} {:>10} {:>10} {:>10}\n", name, "rel", "max", "bound");
  for (const ParityRow& row : rows) {
    const std::string bound = row.bound < 0 ? "-" : format("{:.1e}", row.bound);
    out += format("{:<66} {:>10.2e} {:>10.2e} {:>10} {}\n", row.name, row.rel, row.max_error, bound,
                  row.ok() ? "" : "FAIL");
  }
  const auto failed = std::count_if(rows.begin(), rows.end(), [](const ParityRow& row) { return !row.ok(); });
  return out + format("{}: {} quantities, {} outside their bound\n", name, rows.size(), failed);
}

ParityReport run_parity(const fs::path& case_folder, Device& device, const ParityOptions& options) {
  return Parity(case_folder, device, options).run();
}

}  // namespace deltatune
