// 128-bit content hashes (XXH3) for fingerprints of data, tokenizers and templates. Not cryptographic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace deltatune {

/// The two halves of a hash, the upper one first.
using Hash128 = std::array<uint64_t, 2>;

/// Streaming hash: update() any number of times, then digest() or hex().
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  Hasher& update(std::span<const std::byte> bytes);
  /// Adds the length first, so that ("ab","c") and ("a","bc") differ.
  Hasher& update(std::string_view text);
  Hash128 digest() const;
  /// digest() as 32 lower-case hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Hash of one byte string.
std::string hash_hex(std::string_view text);

}  // namespace deltatune
