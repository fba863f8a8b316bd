// Embedding lookup and its gradient; gather and scatter of rows.
//
// The gradient of one token id is the fp32 sum over its positions in order, added once to dweight. Work is
// split by columns, so a token id that fills the row costs no balance.
#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/vector.h"

namespace deltatune::cpu {
namespace {

constexpr int64_t column_block = 64;

/// Bytes of one row of a matrix.
size_t row_bytes(CTensor x) {
  return static_cast<size_t>(x.dim(1)) * size_of(x.dtype);
}

/// to[n] = from[index[n]] for every n: rows of any dtype.
void gather(Tensor to_ND, CTensor from_TD, CTensor index_N) {
  const size_t bytes = row_bytes(from_TD);
  const auto* index = index_N.as<int32_t>();
  parallel_for(to_ND.dim(0), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      DELTATUNE_ASSERT(index[n] >= 0 && index[n] < from_TD.dim(0));
      std::memcpy(to_ND.data + static_cast<size_t>(n) * bytes,
                  from_TD.data + static_cast<size_t>(index[n]) * bytes, bytes);
    }
  });
}

template <class T>
void embedding_backward_as(Tensor dweight_VD, CTensor dy_TD, CTensor tokens_T, CTensor order_T) {
  using C = compute_t<T>;
  const int64_t tokens = dy_TD.dim(0);
  const int64_t width = dy_TD.dim(1);
  const auto* dy = dy_TD.as<T>();
  const auto* token = tokens_T.as<int32_t>();
  const auto* order = order_T.as<int32_t>();
  auto* dweight = dweight_VD.as<C>();
  parallel_for((width + column_block - 1) / column_block, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t column = block * column_block;
      const int64_t columns = std::min(column_block, width - column);
      for (int64_t first = 0; first < tokens;) {
        const int32_t id = token[order[first]];
        DELTATUNE_ASSERT(id >= 0 && id < dweight_VD.dim(0));
        C sum[column_block] = {};
        int64_t i = first;
        for (; i < tokens && token[order[i]] == id; ++i) {
          const T* row = dy + order[i] * width + column;
          for (int64_t j = 0; j < columns; ++j) sum[j] += widen(row[j]);
        }
        C* out = dweight + id * width + column;
        for (int64_t j = 0; j < columns; ++j) out[j] += sum[j];
        first = i;
      }
    }
  });
}

}  // namespace

void embedding_forward(Stream&, Tensor y_TD, CTensor tokens_T, CTensor weight_VD) {
  gather(y_TD, weight_VD, tokens_T);
}

void embedding_backward(Stream&, Tensor dweight_VD, CTensor dy_TD, CTensor tokens_T, CTensor order_T) {
  by_float(dy_TD.dtype,
           [&](auto zero) { embedding_backward_as<decltype(zero)>(dweight_VD, dy_TD, tokens_T, order_T); });
}

void gather_rows(Stream&, Tensor y_ND, CTensor x_TD, CTensor rows_N) {
  gather(y_ND, x_TD, rows_N);
}

void scatter_rows(Stream&, Tensor dx_TD, CTensor dy_ND, CTensor rows_N) {
  const size_t bytes = row_bytes(dx_TD);
  parallel_for(dx_TD.dim(0), 16, [&](int64_t begin, int64_t end, int) {
    std::memset(dx_TD.data + static_cast<size_t>(begin) * bytes, 0, static_cast<size_t>(end - begin) * bytes);
  });
  const auto* rows = rows_N.as<int32_t>();
  parallel_for(dy_ND.dim(0), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      DELTATUNE_ASSERT(rows[n] >= 0 && rows[n] < dx_TD.dim(0));
      std::memcpy(dx_TD.data + static_cast<size_t>(rows[n]) * bytes,
                  dy_ND.data + static_cast<size_t>(n) * bytes, bytes);
    }
  });
}

}  // namespace deltatune::cpu
