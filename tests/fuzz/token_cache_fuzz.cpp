// Bytes as a token cache file. What opens has to be a set that can be read from end to end. With an odd byte
// 63, which the format does not use, the hashes are put right first, so that the checks behind them are met.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "data/dataset_cache.h"
#include "data/token_cache.h"

using namespace deltatune;

namespace {

constexpr size_t footer_bytes = 160;
constexpr int64_t files = 2;

// Offsets as written down in data/token_cache.cpp.
template <class T>
T number_at(const std::byte* bytes) {
  T out;
  std::memcpy(&out, bytes, sizeof out);
  return out;
}

void put_hash(std::byte* to, std::span<const std::byte> of) {
  const Hash128 hash = Hasher().update(of).digest();
  std::memcpy(to, hash.data(), sizeof hash);
}

uint64_t aligned(uint64_t size) {
  return (size + 63) / 64 * 64;
}

void mend(std::span<std::byte> bytes) {
  std::byte* footer = bytes.data() + bytes.size() - footer_bytes;
  const uint64_t size = bytes.size();
  std::memcpy(footer + 48, &size, sizeof size);
  const auto tokens = number_at<uint64_t>(footer + 8);
  const auto conversations = number_at<uint64_t>(footer + 16);
  const auto raw = number_at<uint64_t>(footer + 24);
  if (tokens > size / 4 || conversations > size / 8 || raw > size / 4) return;
  const uint64_t tail = 64 + aligned(4 * tokens);
  const uint64_t hashes = tail + aligned((tokens + 63) / 64 * 8) + aligned(8 * (conversations + 1)) +
                          aligned(8 * conversations) + aligned(4 * conversations) + aligned(4 * raw);
  constexpr uint64_t block = uint64_t{1} << 20;
  const uint64_t blocks = (4 * tokens + block - 1) / block;
  if (hashes + 16 * blocks + footer_bytes > size) return;
  for (uint64_t b = 0; b < blocks; ++b) {
    put_hash(bytes.data() + hashes + 16 * b,
             bytes.subspan(64 + b * block, std::min(block, 4 * tokens - b * block)));
  }
  put_hash(footer + 120, bytes.subspan(tail, size - footer_bytes - tail));
  put_hash(footer + 136, bytes.subspan(size - footer_bytes, 136));
}

void use(const TokenizedSet& set) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < set.size(); ++i) {
    for (const int32_t id : set.ids(i)) sum += static_cast<uint64_t>(id);
    int64_t targets = 0;
    for (int64_t t = 0; t < set.length(i); ++t) targets += set.supervised(i, t) ? 1 : 0;
    DELTATUNE_ASSERT(targets == set.targets(i));
    sum += set.file(i).size();
  }
  for (const SkippedRow& row : set.skipped()) sum += set.file_name(row.file).size();
  for (const int32_t length : set.raw_lengths()) sum += static_cast<uint64_t>(length);
  [[maybe_unused]] static volatile uint64_t sink = 0;
  sink = sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < footer_bytes + 64) return 0;
  // aligned_alloc wants a multiple; the bytes lie at the end, so that a read beyond them is seen.
  const std::unique_ptr<std::byte, decltype(&std::free)> owner(
      static_cast<std::byte*>(std::aligned_alloc(64, aligned(size))), &std::free);
  const std::span<std::byte> bytes(owner.get(), size);
  std::memcpy(bytes.data(), data, size);
  const std::byte* footer = bytes.data() + size - footer_bytes;
  if ((data[63] & 1) != 0) mend(bytes);
  const std::string key(reinterpret_cast<const char*>(footer) + 56, 32);
  try {
    TokenCacheContent content =
        parse_token_cache(bytes, "fuzz.tokens", key, number_at<int64_t>(footer + 40), 64, files);
    CacheMeta meta = parse_meta(content.meta, files);
    use(TokenizedSet(std::move(content.storage), {"a", "b"}, meta.counts, content.fingerprint, meta.skipped));
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::internal) throw;  // an assertion: a finding
  }
  return 0;
}
