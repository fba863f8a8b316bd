// Arena: hands out 256-byte aligned views of one block of memory, front to back.
//
// An arena without memory measures: it hands out addresses that must not be touched and remembers the most
// that was in use. The same code is run twice, first on a measuring arena, then on one of the measured size,
// so the two cannot disagree. take() never allocates; asking for more than was measured is a bug.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace deltatune {

class Arena {
 public:
  static constexpr size_t alignment = 256;

  /// Measures.
  Arena() = default;
  /// Hands out `memory`, which must be aligned to `alignment` bytes.
  explicit Arena(std::span<std::byte> memory)
      : base_(memory.data()), capacity_(memory.size()), measuring_(false) {}

  bool measuring() const { return measuring_; }
  size_t used() const { return used_; }
  /// The most bytes ever in use at once.
  size_t high_water() const { return high_water_; }

  Tensor take(DType dtype, Shape shape) {
    const size_t bytes = static_cast<size_t>(shape.count()) * size_of(dtype);
    const size_t begin = used_;
    used_ += (bytes + alignment - 1) / alignment * alignment;
    high_water_ = std::max(high_water_, used_);
    DELTATUNE_ASSERT(measuring_ || used_ <= capacity_);
    return {base_ + begin, dtype, shape};
  }

  /// Gives everything taken since back when it goes out of scope.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), used_(arena.used_) {}
    ~Scope() { arena_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t used_;
  };

 private:
  /// Where measured addresses start: not null (null means "not wanted"), and never mapped by user programs.
  static std::byte* unmapped() { return reinterpret_cast<std::byte*>(uintptr_t{1} << 60); }

  std::byte* base_ = unmapped();
  size_t capacity_ = 0;
  size_t used_ = 0;
  size_t high_water_ = 0;
  bool measuring_ = true;
};

}  // namespace deltatune
