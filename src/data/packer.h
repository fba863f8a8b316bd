// Rows of T tokens from whole conversations.
//
// packed: rows that are closed exactly (data/exact_fit.h), or best-fit decreasing (Johnson, "Near-optimal bin
// packing algorithms", 1973: the longest first, each into the row with the least room that still holds it)
// where that needs fewer rows.
// padded: rectangles in the given order, as long as rows x longest <= T, each conversation filled up to the
// longest of its rectangle; what a loader without packing does. sorted: the same after sorting by length, so
// that little is filled up.
// The result depends on lengths and order only. No conversation is ever split, left out or used twice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deltatune {

enum class Batching { packed, padded, sorted };

/// Rows of one epoch: row r holds documents[row_begin[r] .. row_begin[r + 1]), in the order they lie in.
struct PackedRows {
  std::vector<int64_t> row_begin = {0};
  std::vector<int32_t> documents;
  /// Slots that each document of row r takes; 0: its own length. [rows]
  std::vector<int32_t> padded_to;

  int64_t rows() const { return static_cast<int64_t>(padded_to.size()); }
  std::span<const int32_t> row(int64_t r) const {
    const auto i = static_cast<size_t>(r);
    return {documents.data() + row_begin[i], static_cast<size_t>(row_begin[i + 1] - row_begin[i])};
  }
  void add_row(std::span<const int32_t> row, int32_t slots_each) {
    documents.insert(documents.end(), row.begin(), row.end());
    row_begin.push_back(static_cast<int64_t>(documents.size()));
    padded_to.push_back(slots_each);
  }
};

struct PackLimits {
  int64_t max_tokens = 0;  ///< T, slots of a row
  /// Most segments of a row, the filler included (at least 2); 0: no limit but T.
  int64_t max_segments = 0;
};

/// Best-fit decreasing alone, O(n log T). lengths: of every document, each in [1, T]. order: the documents to
/// pack, in epoch order; ties in length keep this order.
PackedRows pack_best_fit(std::span<const int32_t> lengths, std::span<const int32_t> order,
                         const PackLimits& limits);

/// Batching::packed: the better of pack_exact_fit() and pack_best_fit().
PackedRows pack_rows(std::span<const int32_t> lengths, std::span<const int32_t> order,
                     const PackLimits& limits);

/// Rectangles; sort_by_length: Batching::sorted.
PackedRows pack_rectangles(std::span<const int32_t> lengths, std::span<const int32_t> order,
                           const PackLimits& limits, bool sort_by_length);

/// Packs windows of consecutive documents one after the other, so that an epoch's shuffle decides which
/// conversations can share a row. A window holds 8192 documents and 1024 rows or more; each ends with one row
/// that is half full on average, so that windows cost about 0.05 % of the rows. Rectangles in the given order
/// (Batching::padded) need no windows and have none.
PackedRows pack_in_windows(std::span<const int32_t> lengths, std::span<const int32_t> order,
                           const PackLimits& limits, Batching batching);

}  // namespace deltatune
