// Filling the tables of piece_table.h.
#include "text/piece_table.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace deltatune {

void PieceTable::reserve(size_t pieces, size_t bytes) {
  DELTATUNE_ASSERT(slots_.empty());
  slots_.resize(std::bit_ceil(2 * pieces + 1));
  pool_.reserve(bytes);
}

void PieceTable::add(std::string_view piece, int32_t id) {
  DELTATUNE_ASSERT(id >= 0 && pool_.size() + piece.size() <= pool_.capacity() && piece.size() <= UINT32_MAX);
  const uint64_t hash = hash_piece(piece);
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].id != none) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {hash, pool_.size(), static_cast<uint32_t>(piece.size()), id};
  pool_.insert(pool_.end(), piece.begin(), piece.end());
}

void PieceCache::put(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
  if (piece.empty() || piece.size() > max_bytes || ids.empty() || ids.size() > max_ids) return;
  if (entries_.empty()) entries_.resize(size_t{1} << bits);
  Entry& entry = entries_[hash >> (64 - bits)];
  std::copy(piece.begin(), piece.end(), entry.bytes);
  entry.size = static_cast<uint8_t>(piece.size());
  std::copy(ids.begin(), ids.end(), entry.ids);
  entry.count = static_cast<uint8_t>(ids.size());
}

}  // namespace deltatune
