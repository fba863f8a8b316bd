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

/// The ids of one rank, in order.
struct RankIds {
  RankIds(CTensor ids_R2T, int64_t rank)
      : count(ids_R2T.dim(2)), token(ids_R2T.as<int32_t>() + 2 * rank * count), order(token + count) {}
  bool is(int64_t place, int32_t id) const { return place < count && token[order[place]] == id; }
  /// Where the run of an id would begin.
  int64_t find(int32_t id) const {
    return std::lower_bound(order, order + count, id,
                            [&](int32_t position, int32_t x) { return token[position] < x; }) -
           order;
  }
  int64_t count;
  const int32_t* token;
  const int32_t* order;
};

// The first rank that has an id adds up all ranks' runs of it.
template <class T>
void embedding_part_backward_as(Tensor dpart_N, CTensor dy_RTD, CTensor ids_R2T, int64_t first) {
  using C = compute_t<T>;
  const int64_t ranks = dy_RTD.dim(0);
  const int64_t tokens = dy_RTD.dim(1);
  const int64_t width = dy_RTD.dim(2);
  const int64_t end = first + dpart_N.count();
  const auto* dy = dy_RTD.as<T>();
  auto* dpart = dpart_N.as<C>();
  const auto add_up = [&](int64_t leader, int64_t begin, int32_t id, int64_t column, int64_t columns) {
    C total[column_block] = {};
    for (int64_t r = leader; r < ranks; ++r) {
      const RankIds own(ids_R2T, r);
      C sum[column_block] = {};
      for (int64_t i = r == leader ? begin : own.find(id); own.is(i, id); ++i) {
        const T* row = dy + (r * tokens + own.order[i]) * width + column;
        for (int64_t j = 0; j < columns; ++j) sum[j] += widen(row[j]);
      }
      for (int64_t j = 0; j < columns; ++j) total[j] += sum[j];
    }
    const int64_t element = id * width + column;
    for (int64_t j = std::max<int64_t>(0, first - element); j < std::min(columns, end - element); ++j)
      dpart[element + j - first] += total[j];
  };
  parallel_for((width + column_block - 1) / column_block, 1, [&](int64_t from, int64_t to, int) {
    for (int64_t block = from; block < to; ++block) {
      const int64_t column = block * column_block;
      const int64_t columns = std::min(column_block, width - column);
      for (int64_t r = 0; r < ranks; ++r) {
        const RankIds own(ids_R2T, r);
        for (int64_t i = 0; i < tokens; ++i) {
          const int32_t id = own.token[own.order[i]];
          const int64_t element = id * width + column;
          if (element + columns <= first || element >= end || (i > 0 && own.is(i - 1, id))) continue;
          bool led = true;
          for (int64_t q = 0; q < r && led; ++q) {
            const RankIds other(ids_R2T, q);
            led = !other.is(other.find(id), id);
          }
          if (led) add_up(r, i, id, column, columns);
        }
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

// A row that lies in two parts comes half from one and half from the other.
void embedding_part_forward(Stream&, Tensor y_RTD, CTensor ids_R2T, CTensor part_N, int64_t first) {
  const int64_t tokens = y_RTD.dim(1);
  const int64_t width = y_RTD.dim(2);
  const size_t unit = size_of(y_RTD.dtype);
  const auto* ids = ids_R2T.as<int32_t>();
  parallel_for(y_RTD.dim(0) * tokens, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t element = ids[i / tokens * 2 * tokens + i % tokens] * width;
      const int64_t from = std::clamp<int64_t>(first - element, 0, width);
      const int64_t to = std::clamp<int64_t>(first + part_N.count() - element, from, width);
      std::byte* const row = y_RTD.data + static_cast<size_t>(i * width) * unit;
      std::memset(row, 0, static_cast<size_t>(width) * unit);
      if (to == from) continue;
      std::memcpy(row + static_cast<size_t>(from) * unit,
                  part_N.data + static_cast<size_t>(element + from - first) * unit,
                  static_cast<size_t>(to - from) * unit);
    }
  });
}

void embedding_part_backward(Stream&, Tensor dpart_N, CTensor dy_RTD, CTensor ids_R2T, int64_t first) {
  by_float(dy_RTD.dtype,
           [&](auto zero) { embedding_part_backward_as<decltype(zero)>(dpart_N, dy_RTD, ids_R2T, first); });
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
