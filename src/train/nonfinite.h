// Where what is not finite in a step came from, as far as it can be told from what the step has left behind.
//
// A value that is not finite spreads: forward to all blocks behind it, backward to the gradients of all
// blocks before it. So it came up in the pass forward in the first block whose output is not finite; or,
// where the pass forward was sound, in the pass backward in the last block (in forward order) whose gradient
// is not. Left behind are the block inputs of the last row, and, as the update was skipped, the gradients of
// all rows. What an earlier row of the step did forward is not known any more, nor, with gradient release,
// the gradients of blocks. Nothing of this costs a sound step anything.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "train/engine.h"

namespace deltatune {

struct NonfiniteOrigin {
  std::string where;                    ///< for people: "layer 2, forward"; empty: not known
  std::string pass;                     ///< "forward", "backward" or empty
  int64_t layer = -1;                   ///< block, the first that it can be; below 0: none, or not known
  std::string group;                    ///< name of the parameter group: "block 2"; empty: not known
  std::string tensor;                   ///< backward: the parameter, "layers.2.mlp.down"
  std::string first_group, last_group;  ///< with a gradient that is not finite, in forward order; or empty
  int64_t groups = 0;                   ///< how many have one

  /// Members of a nan event: those that are known, under these names; "gradient_groups" for `groups`.
  void add_to(json::Value& event) const;
};

/// Behind a step that was reported as not finite. rows: micro-batches of the step. All ranks call it
/// together and get the same.
NonfiniteOrigin find_nonfinite(Engine&, int64_t rows);

}  // namespace deltatune
