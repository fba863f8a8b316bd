// A table whose rows keep their arguments.
#include "ops/op_recorder.h"

#include <initializer_list>
#include <utility>

#include "ops/kernels.h"

namespace deltatune {
namespace {

/// The first matrix (or higher) among an op's arguments; where there is none the longest vector.
struct ShapeNote {
  CTensor found;
  void operator()(const CTensor& x) {
    if (x.empty() || (found.shape.rank >= 2 && !found.empty())) return;
    if (found.empty() || x.shape.rank >= 2 || x.count() > found.count()) found = x;
  }
  void operator()(const Tensor& x) { (*this)(CTensor(x)); }
  void operator()(const AdamwTensors& x) { (*this)(CTensor(x.m_n)); }
  template <class T>
  void operator()(const T&) {}

  std::string text() const {
    return found.empty() ? "" : std::string(name_of(found.dtype)) + " " + to_string(found.shape);
  }
};

/// What an op may write: its arguments that are no const views.
struct OutputNote {
  std::vector<Tensor> found;
  void operator()(const Tensor& x) {
    if (!x.empty()) found.push_back(x);
  }
  void operator()(const AdamwTensors& x) {
    for (const Tensor& y : {x.param_n, x.master_n, x.m_n, x.v_n, x.m_unit_b, x.v_unit_b}) (*this)(y);
  }
  template <class T>
  void operator()(const T&) {}
};

std::string matmul_shape(CTensor c, CTensor a, MatmulSpec spec) {
  static constexpr const char* layouts[] = {"nt", "nn", "tn"};
  const int64_t depth = spec.layout == MatmulLayout::tn ? a.dim(0) : a.dim(1);
  return std::string(layouts[static_cast<int>(spec.layout)]) + " " + std::to_string(c.dim(0)) + "x" +
         std::to_string(c.dim(1)) + "x" + std::to_string(depth) + " " + name_of(c.dtype) +
         (spec.accumulate ? " +=" : "");
}

template <class Member>
struct RowOf;
template <class... A>
struct RowOf<Fn<void(Stream&, A...)> Kernels::*> {
  template <Fn<void(Stream&, A...)> Kernels::*member>
  static void note(Stream& stream, A... arguments) {
    ShapeNote shape;
    (shape(arguments), ...);
    OutputNote outputs;
    (outputs(arguments), ...);
    // By value: segments are a reference to what the caller may not keep.
    static_cast<OpRecorder&>(stream).add(shape.text(), std::move(outputs.found),
                                         [=](Stream& on) { (on.kernels().*member)(on, arguments...); });
  }
};

template <auto member>
constexpr auto noted = &RowOf<decltype(member)>::template note<member>;

const Kernels& recording_kernels() {
  using K = Kernels;
  static const Kernels table{
      .name = "recorder",
      .embedding_forward = noted<&K::embedding_forward>,
      .embedding_backward = noted<&K::embedding_backward>,
      .embedding_part_forward = noted<&K::embedding_part_forward>,
      .embedding_part_backward = noted<&K::embedding_part_backward>,
      .rmsnorm_forward = noted<&K::rmsnorm_forward>,
      .rmsnorm_backward = noted<&K::rmsnorm_backward>,
      .add_rmsnorm_forward = noted<&K::add_rmsnorm_forward>,
      .add_rmsnorm_backward = noted<&K::add_rmsnorm_backward>,
      .matmul =
          +[](Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
            static_cast<OpRecorder&>(stream).add(matmul_shape(c, a, spec), {c},
                                                 [=](Stream& on) { on.kernels().matmul(on, c, a, b, spec); });
          },
      .qk_norm_rope_forward = noted<&K::qk_norm_rope_forward>,
      .qk_norm_rope_backward = noted<&K::qk_norm_rope_backward>,
      .attention_forward = noted<&K::attention_forward>,
      .attention_backward = noted<&K::attention_backward>,
      .sigmoid_gate_forward = noted<&K::sigmoid_gate_forward>,
      .sigmoid_gate_backward = noted<&K::sigmoid_gate_backward>,
      .gdn_prologue_forward = noted<&K::gdn_prologue_forward>,
      .gdn_prologue_backward = noted<&K::gdn_prologue_backward>,
      .gated_delta_forward = noted<&K::gated_delta_forward>,
      .gated_delta_backward = noted<&K::gated_delta_backward>,
      .gated_rmsnorm_forward = noted<&K::gated_rmsnorm_forward>,
      .gated_rmsnorm_backward = noted<&K::gated_rmsnorm_backward>,
      .swiglu_forward = noted<&K::swiglu_forward>,
      .swiglu_backward = noted<&K::swiglu_backward>,
      .gather_rows = noted<&K::gather_rows>,
      .scatter_rows = noted<&K::scatter_rows>,
      .cross_entropy = noted<&K::cross_entropy>,
      .sum_squares = noted<&K::sum_squares>,
      .grad_scale = noted<&K::grad_scale>,
      .adamw = noted<&K::adamw>,
      .fill = noted<&K::fill>,
      .fill_normal = noted<&K::fill_normal>,
      .cast = noted<&K::cast>,
      .add = noted<&K::add>,
  };
  return table;
}

}  // namespace

OpRecorder::OpRecorder(Device& device) : Stream(device, recording_kernels(), {}, "recorder") {}

void OpRecorder::add(std::string shape, std::vector<Tensor> outputs, std::function<void(Stream&)> run) {
  RecordedCall call;
  call.shape = std::move(shape);
  call.outputs = std::move(outputs);
  call.run = std::move(run);
  // The wrapper has counted the call just now.
  for (size_t i = 0; i < max_ops; ++i) {
    if (totals()[i].calls == before_[i].calls) continue;
    call.op = static_cast<Op>(i);
    call.cost = {totals()[i].bytes - before_[i].bytes, totals()[i].flops - before_[i].flops};
  }
  before_ = totals();
  calls_.push_back(std::move(call));
}

}  // namespace deltatune
