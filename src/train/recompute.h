// Recompute policy: which saved activations are kept from the first pass to backward.
//
//   none keeps all, cheap the matrix products' outputs, block nothing but the blocks' inputs. auto keeps
//   those parts that save the most time per byte, block by block, until the memory it was given is used.
// The time of a part is the roofline time of the op that would make it again, from the costs that the ops
// state; its bytes are those that the layout hands out. No policy changes a bit of the result, and none
// computes down_proj again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "observe/device_card.h"
#include "train/config.h"
#include "train/engine.h"
#include "train/model_source.h"

namespace deltatune {

/// The activations that `recompute`: none, cheap or block keeps. Not for auto, see choose_keep.
Keep keep_of(const std::string& recompute);

struct KeepChoice {
  Keep keep;
  std::string name;                       ///< none, cheap or block; auto where none of these is what it found
  size_t plan_bytes = 0;                  ///< of the device, by a plan with this choice
  std::map<std::string, int64_t> blocks;  ///< part -> blocks that keep it
  double recompute_seconds = 0;           ///< of one micro-batch, roofline
  double block_seconds = 0;               ///< the same under `block`
  /// "mid of 64 blocks, gate_up of 28; computing the others again takes 212 ms of a micro-batch": for logs.
  std::string describe() const;
};

/// Memory that auto leaves free: libraries and graphs take some that no plan knows, data on the host grows.
uint64_t recompute_margin(Target target);

/// What `recompute` asks for. auto stays within `budget_bytes` as far as it can, with recompute_margin() left
/// free; the other policies do not look at it. card: whose rates decide; without one a typical device's.
KeepChoice choose_keep(const Config&, const ModelSource&, const DeviceFacts&, int world_size,
                       uint64_t budget_bytes, const std::optional<DeviceCard>& card = {});

}  // namespace deltatune
