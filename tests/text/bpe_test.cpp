// BPE against a literal implementation of its definition, on random vocabularies.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"

namespace deltatune {
namespace {

using Ids = std::vector<int32_t>;

// A random vocabulary over a few letters: bytes 0..255, then merges of earlier tokens.
struct Vocabulary {
  std::vector<Bpe::Token> tokens;
  std::vector<Bpe::Merge> merges;

  explicit Vocabulary(uint64_t seed, int count) {
    std::map<std::string, int32_t> ids;
    std::vector<int32_t> usable;
    for (int32_t byte = 0; byte < 256; ++byte) {
      tokens.push_back({std::string(1, static_cast<char>(byte)), byte});
      ids[tokens.back().bytes] = byte;
    }
    for (const char c : {'a', 'b', 'c'}) usable.push_back(c);
    Rng random(seed);
    for (int i = 0; i < count; ++i) {
      const int32_t left = usable[random.below(usable.size())];
      const int32_t right = usable[random.below(usable.size())];
      const std::string whole =
          tokens[static_cast<size_t>(left)].bytes + tokens[static_cast<size_t>(right)].bytes;
      const auto [at, fresh] = ids.emplace(whole, static_cast<int32_t>(tokens.size()));
      if (fresh) {
        tokens.push_back({whole, at->second});
        usable.push_back(at->second);
      }
      merges.push_back({left, right, at->second});
    }
  }
};

// The definition: merge the lowest rank, leftmost first, one merge at a time.
Ids reference(const Vocabulary& vocabulary, std::string_view piece) {
  Ids ids;
  for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
  while (true) {
    size_t best_rank = vocabulary.merges.size();
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = vocabulary.merges.size(); rank-- > 0;) {  // of equal pairs the last counts
        if (vocabulary.merges[rank].left != ids[i] || vocabulary.merges[rank].right != ids[i + 1]) continue;
        if (rank < best_rank) {
          best_rank = rank;
          best_at = i;
        }
        break;
      }
    }
    if (best_rank == vocabulary.merges.size()) return ids;
    ids[best_at] = vocabulary.merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

Ids encode(const Bpe& bpe, std::string_view piece) {
  Bpe::Scratch scratch;
  Ids out;
  bpe.encode(piece, scratch, out);
  return out;
}

TEST(ByteAlphabet, IsGpt2s) {
  EXPECT_EQ(byte_symbol('!'), U'!');
  EXPECT_EQ(byte_symbol(0), 0x100U);
  EXPECT_EQ(byte_symbol(' '), 0x120U);
  EXPECT_EQ(byte_symbol('\n'), 0x10AU);
  EXPECT_EQ(byte_symbol(0x7F), 0x121U);
  EXPECT_EQ(byte_symbol(0xA0), 0x142U);
  EXPECT_EQ(byte_symbol(0xAD), 0x143U);
  EXPECT_EQ(byte_symbol(0xE9), 0xE9U);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(bytes_of_spelling(spelling_of_bytes(all)), all);
  EXPECT_EQ(bytes_of_spelling("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_spelling("\uff5c"), std::nullopt);
}

TEST(Bpe, EqualsTheDefinitionOnRandomVocabularies) {
  Rng random(3);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Vocabulary vocabulary(seed, 40);
    const Bpe bpe(vocabulary.tokens, vocabulary.merges, false);
    for (int round = 0; round < 40; ++round) {
      std::string piece;
      const uint64_t length = 1 + random.below(round % 4 == 0 ? 150 : 30);  // both the scan and the heap
      for (uint64_t i = 0; i < length; ++i)
        piece += static_cast<char>('a' + random.below(round % 3 == 0 ? 2 : 4));
      ASSERT_EQ(encode(bpe, piece), reference(vocabulary, piece)) << piece;
    }
  }
}

TEST(Bpe, LeftmostOfEqualRanks) {
  Vocabulary vocabulary(0, 0);
  vocabulary.tokens.push_back({"aa", 256});
  vocabulary.merges.push_back({'a', 'a', 256});
  const Bpe bpe(vocabulary.tokens, vocabulary.merges, false);
  EXPECT_EQ(encode(bpe, "aaa"), (Ids{256, 'a'}));
  Ids expected(50, 256);
  expected.push_back('a');
  EXPECT_EQ(encode(bpe, std::string(101, 'a')), expected);
  EXPECT_EQ(encode(bpe, ""), Ids{});
}

TEST(Bpe, WholeTokensOnlyWhereMergesLeadThere) {
  // "abc" is a token, but merges give "ab" + "c": the pair (ab, c) has no merge.
  Vocabulary vocabulary(0, 0);
  vocabulary.tokens.push_back({"ab", 256});
  vocabulary.tokens.push_back({"abc", 257});
  vocabulary.merges.push_back({'a', 'b', 256});
  EXPECT_EQ(encode(Bpe(vocabulary.tokens, vocabulary.merges, false), "abc"), (Ids{256, 'c'}));
  EXPECT_EQ(encode(Bpe(vocabulary.tokens, vocabulary.merges, true), "abc"), (Ids{257}));
}

// Pairs that are looked at: a constant number for each byte, so that only the heap's logarithm comes on top.
TEST(Bpe, MegabytePiecesTakeWorkInProportionToTheirLength) {
  const Vocabulary vocabulary(5, 200);
  const Bpe bpe(vocabulary.tokens, vocabulary.merges, false);
  Rng random(9);
  std::string letters;
  for (int i = 0; i < 1000000; ++i) letters += static_cast<char>('a' + random.below(3));
  std::string pairs;
  while (pairs.size() < 1000000) pairs += "ab";
  for (const std::string& piece : {letters, pairs, std::string(1000000, 'a'), std::string(1000000, 'x')}) {
    Bpe::Scratch scratch;
    Ids ids;
    bpe.encode(piece, scratch, ids);
    EXPECT_LT(scratch.work, 6 * piece.size()) << piece.substr(0, 4);
    std::string joined;
    for (const int32_t id : ids) joined += vocabulary.tokens[static_cast<size_t>(id)].bytes;
    EXPECT_EQ(joined, piece);
  }
}

// One scratch for two vocabularies and more different pieces than the cache holds.
TEST(Bpe, CachedPiecesBelongToOneVocabulary) {
  const Vocabulary one(11, 60);
  const Vocabulary two(12, 60);
  const Bpe first(one.tokens, one.merges, false);
  const Bpe second(two.tokens, two.merges, false);
  Bpe::Scratch scratch;
  Rng random(4);
  for (int i = 0; i < 30000; ++i) {
    std::string piece;
    for (uint64_t n = 1 + random.below(i % 5 == 0 ? 40 : 6); n > 0; --n)
      piece += static_cast<char>('a' + random.below(3));
    Ids ids;
    const bool which = random.below(50) == 0 ? i % 2 == 0 : i / 500 % 2 == 0;
    (which ? first : second).encode(piece, scratch, ids);
    ASSERT_EQ(ids, encode(which ? first : second, piece)) << piece;
  }
  // Twice the same piece: the second time nothing is merged.
  Ids ids;
  first.encode("xyxyx", scratch, ids);
  const uint64_t work = scratch.work;
  first.encode("xyxyx", scratch, ids);
  EXPECT_EQ(scratch.work, work);
  second.encode("xyxyx", scratch, ids);
  EXPECT_GT(scratch.work, work);
}

TEST(Bpe, SurvivesBeingMoved) {
  const Vocabulary vocabulary(1, 30);
  Bpe first(vocabulary.tokens, vocabulary.merges, false);
  std::vector<Ids> before;
  for (const Bpe::Token& token : vocabulary.tokens) before.push_back(encode(first, token.bytes));
  const Bpe second = std::move(first);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(encode(second, vocabulary.tokens[i].bytes), before[i]);
}

}  // namespace
}  // namespace deltatune
