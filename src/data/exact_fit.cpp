// Bit sets of remaining lengths, and the rows made from them.
#include "data/exact_fit.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "base/error.h"

namespace deltatune {
namespace {

constexpr int word_bits = 64;
// Lengths that find_triple() tries as the longest of three.
constexpr int most_triples = 64;
// Words that may be looked at per document; lengths like those of chat data need about 60.
constexpr int64_t words_per_document = 2048;

// A set of integers in [0, size), as bits.
class BitSet {
 public:
  explicit BitSet(int64_t size) : words_(static_cast<size_t>(size / word_bits + 2)) {}
  void set(int64_t i) { word(i) |= bit(i); }
  void clear(int64_t i) { word(i) &= ~bit(i); }

  // The 64 bits from position `at`, which may lie outside: there are none.
  uint64_t window(int64_t at) const {
    if (at <= -word_bits) return 0;
    if (at < 0) return words_[0] << -at;
    const auto w = static_cast<size_t>(at / word_bits);
    const auto shift = static_cast<int>(at % word_bits);
    if (w >= words_.size()) return 0;
    uint64_t out = words_[w] >> shift;
    if (shift > 0 && w + 1 < words_.size()) out |= words_[w + 1] << (word_bits - shift);
    return out;
  }
  // The greatest member <= i, or -1.
  int64_t at_most(int64_t i) const {
    for (int64_t begin = i / word_bits * word_bits; begin >= 0; begin -= word_bits) {
      const uint64_t found = window(begin) & up_to(i - begin);
      if (found != 0) return begin + word_bits - 1 - std::countl_zero(found);
    }
    return -1;
  }
  // The least member >= i, or -1.
  int64_t at_least(int64_t i) const {
    for (int64_t begin = i; begin < static_cast<int64_t>(words_.size()) * word_bits; begin += word_bits) {
      const uint64_t found = window(begin);
      if (found != 0) return begin + std::countr_zero(found);
    }
    return -1;
  }
  // Bits 0 to last of a word.
  static uint64_t up_to(int64_t last) {
    return last >= word_bits - 1 ? ~uint64_t{0} : (uint64_t{1} << (last + 1)) - 1;
  }

 private:
  uint64_t& word(int64_t i) { return words_[static_cast<size_t>(i / word_bits)]; }
  static uint64_t bit(int64_t i) { return uint64_t{1} << (i % word_bits); }
  std::vector<uint64_t> words_;
};

// The documents that are not in a row yet, by length.
class Stock {
 public:
  Stock(std::span<const int32_t> lengths, std::span<const int32_t> order)
      : longest_(longest_of(lengths, order)),
        begin_(static_cast<size_t>(longest_) + 2),
        left_(static_cast<size_t>(longest_) + 1),
        documents_(order.size()),
        present_(longest_ + 1),
        mirror_(longest_ + 1),
        budget_(words_per_document * static_cast<int64_t>(order.size())) {
    // Counting sort: the documents of length l are documents_[begin_[l] .. begin_[l + 1]), in given order.
    for (const int32_t d : order) ++begin_[at(lengths[at(d)]) + 1];
    for (size_t l = 1; l < begin_.size(); ++l) begin_[l] += begin_[l - 1];
    for (const int32_t d : order) {
      const size_t l = at(lengths[at(d)]);
      documents_[at(begin_[l] + left_[l]++)] = d;
    }
    for (int64_t l = 1; l <= longest_; ++l) {
      if (left_[at(l)] > 0) insert(l);
    }
  }

  // The greatest length <= limit that is left, 0: none.
  int64_t longest(int64_t limit) const {
    return std::max<int64_t>(0, present_.at_most(std::min(limit, longest_)));
  }
  bool has(int64_t length) const { return length >= 1 && length <= longest_ && left_[at(length)] > 0; }

  // Takes out a document of a length that is left.
  int32_t take(int64_t length) {
    const int32_t index = --left_[at(length)];
    if (index == 0) erase(length);
    // The first of the equal ones: those behind it move up by one in begin_.
    return documents_[at(begin_[at(length)]++)];
  }

  // The longer length of a pair with this sum, the most even one; 0: none.
  int64_t find_pair(int64_t sum) {
    const int64_t top = std::min(sum - 1, longest(longest_));
    const int64_t first = std::max((sum + 1) / 2, sum - top);
    for (int64_t begin = first; begin <= top; begin += word_bits) {
      --budget_;
      // Bit i: length begin + i and length sum - begin - i are both left.
      uint64_t found = present_.window(begin) & mirror_.window(begin + longest_ - sum);
      found &= BitSet::up_to(top - begin);
      for (; found != 0; found &= found - 1) {
        const int64_t longer = begin + std::countr_zero(found);
        if (2 * longer != sum || left_[at(longer)] >= 2) return longer;
      }
    }
    return 0;
  }

  // Lengths of a triple with this sum, from the most even one on, of which the first is at least a third of
  // it. False: none was found.
  bool find_triple(int64_t sum, int64_t triple[3]) {
    const int64_t top = std::min(sum - 2, longest(longest_));
    if (3 * top < sum) return false;
    int64_t first = present_.at_least((sum + 2) / 3);
    for (int tries = 0; first >= 0 && first <= top && tries < most_triples; ++tries) {
      if (exhausted()) return false;
      // The first one is not there for the other two.
      if (--left_[at(first)] == 0) erase(first);
      const int64_t second = find_pair(sum - first);
      if (left_[at(first)]++ == 0) insert(first);
      if (second > 0) {
        triple[0] = first;
        triple[1] = second;
        triple[2] = sum - first - second;
        return true;
      }
      first = present_.at_least(first + 1);
    }
    return false;
  }

  bool exhausted() const { return budget_ <= 0; }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  static int64_t longest_of(std::span<const int32_t> lengths, std::span<const int32_t> order) {
    int64_t out = 1;
    for (const int32_t d : order) out = std::max<int64_t>(out, lengths[at(d)]);
    return out;
  }
  void insert(int64_t length) {
    present_.set(length);
    mirror_.set(longest_ - length);
  }
  void erase(int64_t length) {
    present_.clear(length);
    mirror_.clear(longest_ - length);
  }

  int64_t longest_;
  std::vector<int32_t> begin_;  // [longest + 2]
  std::vector<int32_t> left_;   // [longest + 1] documents that are left
  std::vector<int32_t> documents_;
  BitSet present_;  // lengths that are left
  BitSet mirror_;   // longest_ - length of those
  int64_t budget_;
};

// Closes a row with one, two or three documents of exactly `room` tokens, at most `most` of them.
bool close_row(Stock& stock, int64_t room, int64_t most, std::vector<int32_t>& row) {
  if (stock.has(room)) {
    row.push_back(stock.take(room));
    return true;
  }
  if (stock.exhausted()) return false;
  if (const int64_t longer = most >= 2 ? stock.find_pair(room) : 0; longer > 0) {
    row.push_back(stock.take(longer));
    row.push_back(stock.take(room - longer));
    return true;
  }
  int64_t triple[3];
  if (most < 3 || !stock.find_triple(room, triple)) return false;
  for (const int64_t length : triple) row.push_back(stock.take(length));
  return true;
}

}  // namespace

PackedRows pack_exact_fit(std::span<const int32_t> lengths, std::span<const int32_t> order,
                          const PackLimits& limits) {
  Stock stock(lengths, order);
  // One segment is kept for the filler, also in rows that turn out full.
  const int64_t most_documents =
      limits.max_segments == 0 ? std::numeric_limits<int64_t>::max() : limits.max_segments - 1;
  PackedRows out;
  out.documents.reserve(order.size());
  std::vector<int32_t> row;
  for (size_t placed = 0; placed < order.size(); placed += row.size()) {
    row.clear();
    int64_t room = limits.max_tokens;
    while (room > 0) {
      const int64_t places = most_documents - static_cast<int64_t>(row.size());
      if (places == 0) break;
      if (!row.empty() && close_row(stock, room, places, row)) break;
      const int64_t length = stock.longest(room);
      if (length == 0) break;
      row.push_back(stock.take(length));
      room -= length;
    }
    DELTATUNE_ASSERT(!row.empty());
    out.add_row(row, 0);
  }
  return out;
}

}  // namespace deltatune
