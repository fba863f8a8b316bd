// Hasher on xxHash's XXH3-128.
#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>

namespace deltatune {

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}
Hasher::~Hasher() = default;

Hasher& Hasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
  return *this;
}

Hasher& Hasher::update(std::string_view text) {
  const uint64_t length = text.size();
  update(std::as_bytes(std::span(&length, 1)));
  return update(std::as_bytes(std::span(text)));
}

Hash128 Hasher::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.high64, hash.low64};
}

std::string Hasher::hex() const {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const uint64_t half : digest()) {
    for (int shift = 60; shift >= 0; shift -= 4) out += digits[(half >> shift) & 15];
  }
  return out;
}

std::string hash_hex(std::string_view text) {
  return Hasher().update(text).hex();
}

}  // namespace deltatune
