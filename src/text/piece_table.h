// Look-up of short byte strings: a constant table of whole pieces, and a bounded cache of pieces and their
// ids.
//
// Both compare the bytes, never only hashes. Neither grows with the texts that are encoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace deltatune {

/// 64 well-mixed bits (multiply and fold, the upper bits as good as the lower ones).
inline uint64_t hash_piece(std::string_view bytes) noexcept {
  const auto word = [&](size_t at, size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, size);
    return value;
  };
  const auto mix = [](uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  constexpr uint64_t odd = 0x9E3779B97F4A7C15ULL;
  constexpr uint64_t other = 0xD6E8FEB86659FD93ULL;
  uint64_t hash = bytes.size() * other;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) hash = mix(hash ^ word(at, 8), odd);
  return mix(hash ^ word(at, bytes.size() - at), odd) ^ hash;
}

/// Bytes to ids by open addressing. Filled once, then constant: threads may share it.
class PieceTable {
 public:
  static constexpr int32_t none = -1;

  /// Room for `pieces` pieces of `bytes` bytes in all; add() never goes beyond.
  void reserve(size_t pieces, size_t bytes);
  /// `piece` is not in the table yet; id >= 0.
  void add(std::string_view piece, int32_t id);
  /// Id of `piece`, whose hash_piece() is `hash`, or none.
  int32_t find(std::string_view piece, uint64_t hash) const noexcept {
    if (slots_.empty()) return none;
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash & mask; slots_[at].id != none; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.hash == hash && slot.size == piece.size() &&
          std::memcmp(pool_.data() + slot.begin, piece.data(), piece.size()) == 0)
        return slot.id;
    }
    return none;
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    size_t begin = 0;  // in pool_
    uint32_t size = 0;
    int32_t id = none;
  };
  std::vector<Slot> slots_;  // a power of two, at most half full
  std::vector<char> pool_;
};

/// The ids of the pieces that were encoded last: one entry per hash value, 512 KiB in all. For one thread.
class PieceCache {
 public:
  static constexpr size_t max_bytes = 31;
  static constexpr size_t max_ids = 6;

  /// Empty when it is not there.
  std::span<const int32_t> find(std::string_view piece, uint64_t hash) const noexcept {
    if (entries_.empty() || piece.size() > max_bytes) return {};
    const Entry& entry = entries_[hash >> (64 - bits)];
    if (entry.size != piece.size() || std::memcmp(entry.bytes, piece.data(), piece.size()) != 0) return {};
    return {entry.ids, entry.count};
  }
  /// Nothing happens for a piece or a list of ids that is too long.
  void put(std::string_view piece, uint64_t hash, std::span<const int32_t> ids);
  void clear() { entries_.clear(); }

 private:
  static constexpr int bits = 13;
  struct alignas(64) Entry {
    char bytes[max_bytes];
    uint8_t size;
    int32_t ids[max_ids];
    uint8_t count;  // 0: unused
  };
  std::vector<Entry> entries_;
};

}  // namespace deltatune
