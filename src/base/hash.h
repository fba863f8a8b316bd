// 128-bit content hashes (XXH3) for fingerprints of data, tokenizers and templates. Not cryptographic.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace deltatune {

/// Streaming hash: update() any number of times, then hex().
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  Hasher& update(std::span<const std::byte> bytes);
  /// Adds the length first, so that ("ab","c") and ("a","bc") differ.
  Hasher& update(std::string_view text);
  /// 32 lower-case hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Hash of one byte string.
std::string hash_hex(std::string_view text);

}  // namespace deltatune
