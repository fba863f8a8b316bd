// Moments: Adam's m and v of this rank's chunks, in f32, bf16 or 8-bit codes (ops/moment_codes.h), in memory
// of the device or of the host.
//
// Offloaded moments rest in pinned host memory and visit the device in pieces: one stream copies them up, the
// update works on them in one of two slots, another stream copies them down. One slot is filled or emptied
// while the other is worked on, so both directions of the link are busy at once.
// Invariants: a piece begins at a multiple of 128 elements, so that it cuts no block of codes. The two copy
// streams work only between begin() and end(), which fork them from the caller's stream and join them to it:
// no event of an earlier stretch is ever waited for, so a stretch can be captured as a graph.
// Not here: the update itself, and the moments of the f32 group, which are few.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor/device.h"

namespace deltatune {

/// m and v of a stretch of elements, and their units where they are codes (else empty).
struct MomentViews {
  Tensor m, v, m_unit, v_unit;
  /// Those of elements [begin, begin + count); begin is a multiple of 128.
  MomentViews slice(int64_t begin, int64_t count) const;
};

class Moments {
 public:
  struct Options {
    DType dtype = DType::f32;  ///< f32, bf16, or u8: codes
    bool offload = false;
    int64_t piece = int64_t{1} << 26;  ///< elements that are copied at once, a multiple of 128
  };

  /// Takes the memory. counts: elements of each group's chunk. Throws Error{resource}.
  Moments(Device&, const Options&, const std::vector<int64_t>& counts);

  /// Where the group's moments rest: host memory where they are offloaded.
  const MomentViews& of(size_t group) const { return groups_[group]; }

  /// Brackets the updates of a step.
  void begin(Stream&);
  void end(Stream&);
  /// Calls update(begin, views) for stretches of the group's elements, in order; what it queues on the stream
  /// finds the moments in `views` and leaves the new ones there.
  void each_piece(Stream&, size_t group,
                  const std::function<void(int64_t begin, const MomentViews& views)>& update);
  /// Returns when all copies are done; rethrows an error of theirs.
  void sync();

 private:
  /// An event of this stretch; those of earlier ones do not count.
  struct Mark {
    Event event;
    bool set = false;
  };
  struct Slot {
    MomentViews views;
    Mark filled, updated, emptied;
  };
  MomentViews take(Device&, int64_t count, const std::string& where, bool host);

  Options options_;
  std::vector<Buffer> buffers_;
  std::vector<MomentViews> groups_;
  std::array<Slot, 2> slots_;
  size_t next_ = 0;
  Event begun_, ended_;
  std::unique_ptr<Stream> up_, down_;  ///< last: they end before the memory that their work uses
};

}  // namespace deltatune
