// Best-fit decreasing, rectangles, windows.
#include "data/packer.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "data/exact_fit.h"

namespace deltatune {
namespace {

int32_t length_of(std::span<const int32_t> lengths, int32_t document) {
  return lengths[static_cast<size_t>(document)];
}

// Document numbers, longest first; equal lengths in the given order.
std::vector<int32_t> longest_first(std::span<const int32_t> lengths, std::span<const int32_t> order) {
  std::vector<int32_t> sorted(order.begin(), order.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](int32_t a, int32_t b) { return length_of(lengths, a) > length_of(lengths, b); });
  return sorted;
}

// Open rows by the room they have left.
class Rooms {
 public:
  explicit Rooms(int64_t max_tokens) : rows_(static_cast<size_t>(max_tokens) + 1) {}

  // Takes out the row with the least room >= length, the one opened or filled last among equals; -1: none.
  int64_t take(int32_t length) {
    const auto found = present_.lower_bound(length);
    if (found == present_.end()) return -1;
    std::vector<int32_t>& rows = rows_[static_cast<size_t>(*found)];
    const int32_t row = rows.back();
    rows.pop_back();
    if (rows.empty()) present_.erase(found);
    return row;
  }
  void put(int64_t row, int64_t room) {
    if (room == 0) return;
    std::vector<int32_t>& rows = rows_[static_cast<size_t>(room)];
    if (rows.empty()) present_.insert(room);
    rows.push_back(static_cast<int32_t>(row));
  }

 private:
  std::vector<std::vector<int32_t>> rows_;
  std::set<int64_t> present_;
};

}  // namespace

PackedRows pack_best_fit(std::span<const int32_t> lengths, std::span<const int32_t> order,
                         const PackLimits& limits) {
  struct OpenRow {
    std::vector<int32_t> documents;
    int64_t room;
  };
  std::vector<OpenRow> open;
  Rooms rooms(limits.max_tokens);
  for (const int32_t document : longest_first(lengths, order)) {
    const int32_t length = length_of(lengths, document);
    DELTATUNE_ASSERT(length >= 1 && length <= limits.max_tokens);
    int64_t index = rooms.take(length);
    if (index < 0) {
      index = static_cast<int64_t>(open.size());
      open.push_back({{}, limits.max_tokens});
    }
    OpenRow& row = open[static_cast<size_t>(index)];
    row.documents.push_back(document);
    row.room -= length;
    // One segment is kept for the filler.
    const auto count = static_cast<int64_t>(row.documents.size());
    if (limits.max_segments == 0 || count + 1 < limits.max_segments) rooms.put(index, row.room);
  }
  PackedRows out;
  out.documents.reserve(order.size());
  for (const OpenRow& row : open) out.add_row(row.documents, 0);
  return out;
}

PackedRows pack_rows(std::span<const int32_t> lengths, std::span<const int32_t> order,
                     const PackLimits& limits) {
  int64_t tokens = 0;
  for (const int32_t document : order) tokens += length_of(lengths, document);
  PackedRows exact = pack_exact_fit(lengths, order, limits);
  // Nothing can be better than this.
  if (exact.rows() <= (tokens + limits.max_tokens - 1) / limits.max_tokens) return exact;
  PackedRows best = pack_best_fit(lengths, order, limits);
  return best.rows() < exact.rows() ? best : exact;
}

PackedRows pack_rectangles(std::span<const int32_t> lengths, std::span<const int32_t> order,
                           const PackLimits& limits, bool sort_by_length) {
  const std::vector<int32_t> sequence =
      sort_by_length ? longest_first(lengths, order) : std::vector<int32_t>(order.begin(), order.end());
  // Every document may be followed by its own filler segment, and the row by one more.
  const int64_t most =
      limits.max_segments == 0 ? limits.max_tokens : std::max<int64_t>(1, (limits.max_segments - 1) / 2);
  PackedRows out;
  std::vector<int32_t> row;
  int32_t longest = 0;
  for (const int32_t document : sequence) {
    const int32_t length = length_of(lengths, document);
    DELTATUNE_ASSERT(length >= 1 && length <= limits.max_tokens);
    const int32_t grown = std::max(longest, length);
    const auto count = static_cast<int64_t>(row.size()) + 1;
    if (!row.empty() && (count * grown > limits.max_tokens || count > most)) {
      out.add_row(row, longest);
      row.clear();
      longest = 0;
    }
    row.push_back(document);
    longest = std::max(longest, length);
  }
  if (!row.empty()) out.add_row(row, longest);
  return out;
}

PackedRows pack_in_windows(std::span<const int32_t> lengths, std::span<const int32_t> order,
                           const PackLimits& limits, Batching batching) {
  constexpr int64_t window_documents = 8192;
  constexpr int64_t window_rows = 1024;
  if (batching == Batching::padded) return pack_rectangles(lengths, order, limits, false);
  const auto count = static_cast<int64_t>(order.size());
  int64_t tokens = 0;
  for (const int32_t document : order) tokens += length_of(lengths, document);
  const int64_t by_documents = count / window_documents;
  const int64_t by_rows = tokens / limits.max_tokens / window_rows;
  const int64_t windows = std::max<int64_t>(1, std::min(by_documents, by_rows));
  PackedRows out;
  out.documents.reserve(order.size());
  for (int64_t w = 0; w < windows; ++w) {
    const auto begin = static_cast<size_t>(count * w / windows);
    const auto end = static_cast<size_t>(count * (w + 1) / windows);
    const std::span<const int32_t> window = order.subspan(begin, end - begin);
    const PackedRows part = batching == Batching::packed ? pack_rows(lengths, window, limits)
                                                         : pack_rectangles(lengths, window, limits, true);
    for (int64_t r = 0; r < part.rows(); ++r) {
      out.add_row(part.row(r), part.padded_to[static_cast<size_t>(r)]);
    }
  }
  return out;
}

}  // namespace deltatune
