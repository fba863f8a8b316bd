// The bytes of this rank's state as a save writes them: a copy in host memory, so that training goes on while
// they are written, or the device's own memory, which then must not change meanwhile.
//
// On a GPU the copy is pinned memory that is taken once, at the start, and stands in the plan. Where host and
// device are one, it is taken for the time of a save, if it needs no more than a quarter of what is free.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "train/engine.h"

namespace deltatune {

class StateImage {
 public:
  /// `only_values`: weights without moments. `copies`: whether capture() may copy; on a GPU the memory for it
  /// is taken now. Throws Error{resource}.
  StateImage(Engine& engine, bool only_values, bool copies);

  /// The buffers to be written: ParamStore::state() or a part of it.
  const std::vector<StateTensor>& tensors() const { return tensors_; }
  size_t bytes() const { return bytes_; }
  /// Whether a capture now would copy.
  bool can_copy() const;
  /// The state after all work that is queued now. With a copy it may change again when this returns, without
  /// one not before drop().
  void capture(bool copy);
  void drop();

  /// `count` bytes that lie at `data` in the device's memory, as they were captured: in `scratch`, which has
  /// room for them, or elsewhere. From several threads at once, each with its own stream.
  const std::byte* at(const std::byte* data, size_t count, std::byte* scratch, Stream& stream) const;

 private:
  Engine& engine_;
  bool copies_;
  std::vector<StateTensor> tensors_;
  size_t bytes_ = 0;
  Buffer pinned_;
  std::vector<std::byte> plain_;
  std::map<const std::byte*, std::pair<const std::byte*, size_t>> copied_;  ///< device -> host, bytes
};

/// Bytes of the pinned memory that saves of a run on a GPU would take: of weights or masters, and moments
/// unless only_values.
size_t image_bytes(const ParamStore& store, bool only_values);

}  // namespace deltatune
