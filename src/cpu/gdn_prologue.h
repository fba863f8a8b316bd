// The three parts of gdn_prologue's cpu kernel (formulas: ops/delta_net.h), one token or one head at a time,
// so that each can be tested alone. T is the storage type: float, bf16 or double; C = compute_t<T>.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace deltatune::cpu {

/// u_C = silu(conv) of one token. proj points at the token's row, rows `columns` apart; weights_WC is the
/// convolution transposed; position is that inside the document: only min(position + 1, W) taps are read.
template <class T>
void gdn_conv_silu(compute_t<T>* u_C, const T* proj, const compute_t<T>* weights_WC, int64_t channels,
                   int64_t width, int64_t columns, int64_t position);

/// y = u rstd over one head of n channels; returns rstd = (sum u^2 + 1e-6)^-1/2. y null: not wanted.
template <class T>
compute_t<T> gdn_l2norm(T* y, const compute_t<T>* u, int64_t n);

/// beta_H and g_H of one token from its a and b columns; either output may be null.
template <class T>
void gdn_gates(compute_t<T>* g_H, compute_t<T>* beta_H, const T* a_H, const T* b_H,
               const compute_t<T>* A_log_H, const compute_t<T>* dt_bias_H, int64_t heads);

}  // namespace deltatune::cpu
