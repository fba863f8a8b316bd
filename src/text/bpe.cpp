// The merge table is a flat hash table from a pair of ids to (rank, result).
#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "base/error.h"
#include "text/unicode.h"

namespace deltatune {
namespace {

constexpr size_t short_piece = 48;  // bytes; below it the scan is faster than the heap
constexpr uint64_t empty_pair = ~uint64_t{0};
constexpr uint32_t no_rank = ~uint32_t{0};
constexpr char32_t first_extra_symbol =
    256;  // bytes without a printable character of their own count from here

bool spells_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

const std::array<char32_t, 256>& alphabet() {
  static const std::array<char32_t, 256> symbols = [] {
    std::array<char32_t, 256> out{};
    char32_t extra = first_extra_symbol;
    for (unsigned byte = 0; byte < 256; ++byte) out[byte] = spells_itself(byte) ? byte : extra++;
    return out;
  }();
  return symbols;
}

// Byte of a symbol, or -1.
int symbol_byte(char32_t symbol) {
  static const std::array<int16_t, 512> bytes = [] {
    std::array<int16_t, 512> out{};
    out.fill(-1);
    for (unsigned byte = 0; byte < 256; ++byte) out[alphabet()[byte]] = static_cast<int16_t>(byte);
    return out;
  }();
  return symbol < bytes.size() ? bytes[symbol] : -1;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

size_t pair_hash(uint64_t key) {  // Fibonacci hashing; the upper bits are the good ones
  return static_cast<size_t>((key ^ (key >> 29)) * 0x9E3779B97F4A7C15ULL >> 20);
}

// Heap order: the top is the lowest rank, the leftmost of equal ones.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

char32_t byte_symbol(uint8_t byte) {
  return alphabet()[byte];
}

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string out;
  out.reserve(spelling.size());
  for (size_t at = 0; at < spelling.size();) {
    const int byte = symbol_byte(next_code_point(spelling, at));
    if (byte < 0) return std::nullopt;
    out += static_cast<char>(static_cast<unsigned char>(byte));
  }
  return out;
}

std::string spelling_of_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, byte_symbol(static_cast<uint8_t>(c)));
  return out;
}

Bpe::Bpe(const std::vector<Token>& tokens, std::span<const Merge> merges, bool ignore_merges) {
  size_t total = 0;
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  for (const Token& token : tokens) {
    DELTATUNE_ASSERT(!token.bytes.empty() && token.id >= 0 && token.id < (1 << 30));
    total += token.bytes.size();
    if (token.bytes.size() == 1) byte_ids_[static_cast<uint8_t>(token.bytes[0])] = token.id;
  }
  for (const int32_t id : byte_ids_) DELTATUNE_ASSERT(id >= 0);
  build_merges(merges);

  whole_.reserve(tokens.size(), total);
  Scratch scratch;
  std::vector<int32_t> ids;
  for (const Token& token : tokens) {
    if (!ignore_merges) {
      ids.clear();
      merge(token.bytes, scratch, ids);
      if (ids.size() != 1 || ids[0] != token.id) continue;
    }
    whole_.add(token.bytes, token.id);
  }
  static std::atomic<uint64_t> serials{0};
  serial_ = ++serials;
}

void Bpe::Scratch::trim() {
  constexpr size_t usual = size_t{1} << 16;
  if (symbols.capacity() > usual) symbols = {};
  if (heap.capacity() > usual) heap = {};
}

void Bpe::build_merges(std::span<const Merge> merges) {
  DELTATUNE_ASSERT(merges.size() < no_rank);
  slots_.assign(std::bit_ceil(merges.size() * 2 + 1), Slot{empty_pair, no_rank, 0});
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = pair_key(merges[rank].left, merges[rank].right);
    size_t at = pair_hash(key) & (slots_.size() - 1);
    while (slots_[at].pair != empty_pair && slots_[at].pair != key) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {key, static_cast<uint32_t>(rank), merges[rank].result};
  }
}

const Bpe::Slot* Bpe::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  for (size_t at = pair_hash(key) & mask; slots_[at].pair != empty_pair; at = (at + 1) & mask) {
    if (slots_[at].pair == key) return &slots_[at];
  }
  return nullptr;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  const uint64_t hash = hash_piece(piece);
  if (scratch.cache_of != serial_) {
    scratch.cache.clear();
    scratch.cache_of = serial_;
  }
  if (const auto known = scratch.cache.find(piece, hash); !known.empty()) {
    out.insert(out.end(), known.begin(), known.end());
    return;
  }
  const size_t before = out.size();
  if (const int32_t id = whole_.find(piece, hash); id != PieceTable::none) {
    out.push_back(id);
  } else {
    merge(piece, scratch, out);
  }
  scratch.cache.put(piece, hash, std::span(out).subspan(before));
}

void Bpe::merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (piece.size() <= short_piece) {
    merge_short(piece, scratch, out);
  } else {
    merge_long(piece, scratch, out);
  }
}

void Bpe::merge_short(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<uint32_t>& ranks = scratch.ranks;  // ranks[i]: of the pair (i, i + 1)
  ids.clear();
  ranks.clear();
  const auto rank_of = [&](size_t i) {
    const Slot* slot = i + 1 < ids.size() ? find(ids[i], ids[i + 1]) : nullptr;
    return slot == nullptr ? no_rank : slot->rank;
  };
  for (const char c : piece) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  for (size_t i = 0; i < ids.size(); ++i) ranks.push_back(rank_of(i));
  while (true) {
    scratch.work += ranks.size();
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == no_rank) break;
    const size_t i = static_cast<size_t>(best - ranks.begin());
    ids[i] = find(ids[i], ids[i + 1])->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks[i] = rank_of(i);
    if (i > 0) ranks[i - 1] = rank_of(i - 1);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

void Bpe::merge_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  DELTATUNE_ASSERT(piece.size() < size_t{INT32_MAX});
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const int32_t count = static_cast<int32_t>(piece.size());
  const auto symbol = [&](int32_t position) -> Scratch::Symbol& {
    return symbols[static_cast<size_t>(position)];
  };
  for (int32_t i = 0; i < count; ++i) {
    const uint8_t byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
    symbols.push_back({byte_ids_[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto consider = [&](int32_t position) {
    const int32_t next = symbol(position).next;
    ++scratch.work;
    if (next < 0) return false;
    const Slot* slot = find(symbol(position).id, symbol(next).id);
    if (slot == nullptr) return false;
    heap.push_back({slot->rank, position, symbol(position).id, symbol(next).id});
    return true;
  };
  for (int32_t i = 0; i < count; ++i) consider(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    ++scratch.work;
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbol(top.position);
    // Stale: one of the two has merged since. A symbol that was swallowed has id -1.
    if (left.id != top.left || left.next < 0 || symbol(left.next).id != top.right) continue;
    left.id = find(top.left, top.right)->result;
    const int32_t swallowed = left.next;
    left.next = symbol(swallowed).next;
    symbol(swallowed).id = -1;
    if (left.next >= 0) symbol(left.next).previous = top.position;
    if (consider(top.position)) std::push_heap(heap.begin(), heap.end(), later);
    if (left.previous >= 0 && consider(left.previous)) std::push_heap(heap.begin(), heap.end(), later);
  }
  for (int32_t i = 0; i >= 0; i = symbol(i).next) out.push_back(symbol(i).id);
}

}  // namespace deltatune
