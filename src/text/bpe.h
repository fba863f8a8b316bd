// Byte-level byte-pair encoding of one piece of text.
//
// Rule: start from the tokens of the single bytes; merge the adjacent pair of lowest rank, the leftmost of
// equal ones, until no pair has a merge (Sennrich et al. 2016 over GPT-2's byte alphabet). Short pieces are
// scanned, long ones use a heap over a linked list: n log n in the bytes of the piece. A table of whole
// pieces, filled once from the vocabulary, answers most pieces with one look-up; it is constant afterwards,
// so that threads share it without locks. Each thread remembers the short pieces that it encoded last.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/piece_table.h"

namespace deltatune {

/// GPT-2's alphabet (openai/gpt-2, encoder.py): the printable character that spells a byte in vocabularies.
char32_t byte_symbol(uint8_t byte);
/// Bytes that `spelling` (valid UTF-8) stands for; nothing when a character is outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);
/// Inverse of bytes_of_spelling().
std::string spelling_of_bytes(std::string_view bytes);

class Bpe {
 public:
  /// Bytes of a base token and its id (0 <= id < 2^30, unique); bytes are not empty.
  struct Token {
    std::string bytes;
    int32_t id;
  };
  /// Ids of the parts and of the result; the position in the list is the rank. Of equal pairs the last
  /// counts.
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };

  Bpe() = default;
  /// All 256 single bytes must be among `tokens`, and the parts and results of all merges too.
  /// ignore_merges: a piece that is a token as a whole is that token, even if no merges lead to it.
  Bpe(const std::vector<Token>& tokens, std::span<const Merge> merges, bool ignore_merges);
  // Megabytes, and caches know a Bpe by its serial number.
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;
  Bpe(Bpe&&) noexcept = default;
  Bpe& operator=(Bpe&&) noexcept = default;

  /// Buffers of encode() and a cache of what it found; keep one per thread for speed.
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous;
      int32_t next;
    };
    struct Candidate {
      uint32_t rank;
      int32_t position;
      int32_t left;
      int32_t right;
    };
    std::vector<int32_t> ids;
    std::vector<uint32_t> ranks;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    PieceCache cache;
    uint64_t cache_of = 0;  ///< serial number of the Bpe that filled it
    /// Pairs looked at and candidates taken since it was made: what merging costs, whatever the machine.
    uint64_t work = 0;

    /// Gives back the memory that one very long piece needed.
    void trim();
  };

  /// Appends the ids of `piece` (less than 2 GiB) to `out`.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    uint64_t pair;
    uint32_t rank;
    int32_t result;
  };
  const Slot* find(int32_t left, int32_t right) const;
  void build_merges(std::span<const Merge> merges);
  void merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void merge_short(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void merge_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  int32_t byte_ids_[256] = {};
  std::vector<Slot> slots_;  // open addressing, a power of two
  PieceTable whole_;
  uint64_t serial_ = 0;  // differs between any two that were constructed from tokens
};

}  // namespace deltatune
