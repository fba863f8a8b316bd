// ParamTable: every trained parameter once, with the Hugging Face tensors it is made of.
//
// The model fills the table, the parameter store lays it out in groups, the checkpoint code reads and writes
// the slices. A parameter is one matrix for one GEMM; its row slices are the Hugging Face tensors
// (in_proj_qkv, z, b and a are one parameter). Invariant: the slices cover the rows in order, without gaps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace deltatune {

/// A Hugging Face tensor inside a parameter.
struct ParamSlice {
  std::string hf_name;            ///< as in the checkpoint
  int64_t row = 0;                ///< first row in the parameter
  int64_t rows = 0;               ///< rows it covers
  std::vector<int64_t> hf_shape;  ///< its shape in the file; the same element count as the rows
};

/// How HF initialises it (modeling_qwen3_5 `_init_weights`; ../spec: N(0, initializer_range), zeros, ones,
/// A_log = log U(0.01, 16)).
enum class Init { normal, zeros, ones, log_uniform };

struct Param {
  std::string name;       ///< short, unique: "layers.3.mlp.gate_up"
  Shape shape{0};         ///< [rows, columns] or [n]
  bool keep_f32 = false;  ///< A_log, dt_bias, gated norm: never stored in bf16
  bool decay = false;     ///< weight decay applies (two-dimensional and no norm)
  /// One matrix product gives its whole gradient: the first micro-batch of a window writes it, so it need not
  /// be zero before.
  bool product_gradient = false;
  Init init = Init::normal;
  int group = 0;  ///< index into ParamTable::groups
  std::vector<ParamSlice> slices;
};

/// Parameters that are gathered, used and reduced together: one block, the embedding, the head.
struct ParamGroup {
  std::string name;
  std::vector<int> params;  ///< indices into ParamTable::params
};

struct ParamTable {
  std::vector<Param> params;
  std::vector<ParamGroup> groups;

  int add_group(std::string name) {
    groups.push_back({std::move(name), {}});
    return static_cast<int>(groups.size()) - 1;
  }
  int add(int group, Param param) {
    param.group = group;
    params.push_back(std::move(param));
    const int index = static_cast<int>(params.size()) - 1;
    groups[static_cast<size_t>(group)].params.push_back(index);
    return index;
  }
  int64_t element_count() const {
    int64_t sum = 0;
    for (const Param& param : params) sum += param.shape.count();
    return sum;
  }
};

}  // namespace deltatune
