// Gzip as it is written, read back by what reads it everywhere else.
#include "base/gzip.h"

#include <gtest/gtest.h>

#include <random>

#include "data/decompress.h"

namespace deltatune {
namespace {

std::string decompressed(const std::string& bytes) {
  OnePiece piece(bytes);
  Decompressor stream(piece, "test.gz");
  EXPECT_EQ(stream.compression(), Compression::gzip);
  std::string out;
  std::string part(100000, '\0');
  while (const size_t count = stream.read(part)) out.append(part.data(), count);
  return out;
}

TEST(Gzip, ReadsBackWhateverThePiecesWere) {
  std::mt19937 random(5);
  std::string noise(3'000'000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  const std::string even(5'000'000, 'x');
  for (const std::string& text : {std::string(), std::string("a"), noise, even, noise + even}) {
    GzipWriter whole;
    whole.add(text);
    const std::string bytes = whole.finish();
    EXPECT_EQ(decompressed(bytes), text);
    GzipWriter pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t count = std::min<size_t>(text.size() - at, 1 + random() % 200'000);
      pieces.add(std::string_view(text).substr(at, count));
      at += count;
    }
    EXPECT_EQ(decompressed(pieces.finish()), text);
  }
  GzipWriter small;
  small.add(even);
  EXPECT_LT(small.finish().size(), even.size() / 100);
}

}  // namespace
}  // namespace deltatune
