// bench ladder: one dataset on one model, from rows padded to rectangles and plain kernels to packed rows in
// CUDA graphs, one change a rung.
//
// Every rung trains the same conversations, so a rung's hours are its steps of an epoch times its step. Rows
// are the first ones of that epoch, with random ids; steps are those of bench step: two depths, extended to
// all layers. Plain kernels are those of kernel_list.h; matrix products are the library's on every rung, as
// they are in every framework. What `recompute: auto` keeps is chosen for the whole model on `devices`
// devices and taken over to a depth block by block, evenly. Not here: communication, data, logging.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/packer.h"
#include "train/bench_step.h"
#include "train/config.h"
#include "train/recompute.h"

namespace deltatune {

/// One rung, before it is measured: what differs from a usual run.
struct LadderStep {
  std::string name;    ///< "packed rows"
  bool plain = false;  ///< plain kernels for all ops but matrix products
  Batching batching = Batching::packed;
  bool keep = false;   ///< recompute: auto in place of block
  bool graph = false;  ///< replayed as CUDA graphs
};

/// The rungs that a device has. A CPU has one kernel for each op and no graphs: three of the five.
std::vector<LadderStep> ladder_steps(Target target);

struct LadderOptions {
  BenchStepOptions step;         ///< rows, keep, kernel and graph are set for each rung
  std::vector<int32_t> lengths;  ///< of all conversations of an epoch, each at most step.tokens
  int devices = 1;               ///< share an epoch, and the memory of the whole model
  Keep keep_of_all = {};         ///< what `recompute: auto` keeps of the whole model
  std::string keep_description;  ///< of it
  int64_t sampled_rows = 8;      ///< rows of the epoch that steps take in turn
};

struct LadderRung {
  LadderStep what;
  int64_t rows = 0;         ///< of an epoch
  int64_t steps = 0;        ///< of an epoch on all devices
  double fill = 0;          ///< real tokens / slots
  double step_ms = 0;       ///< forward, backward and this device's share of the update
  double hours = 0;         ///< of an epoch
  double tokens_per_s = 0;  ///< real tokens a second and device
  double mfu = 0;           ///< 6 FLOPs a real token and parameter of a matrix product; 0: no peak known
  double kernels = 0;       ///< of a step; 0: not known
  double host_calls = 0;    ///< of a step, traced; 0: not traced
  double utilisation = -1;  ///< as the driver tells it; -1: not known
  double busy_share = 0;    ///< of a step, traced; 0: not traced
  double gib = 0;           ///< of the deepest depth that was measured
  StepFigures whole;
};

struct LadderReport {
  std::string device, model, dtype, optimizer, keep_description;
  int64_t tokens = 0;  ///< T
  int64_t conversations = 0;
  int64_t real_tokens = 0;  ///< of an epoch
  int devices = 1;
  double layers = 0;
  std::vector<int64_t> depths;
  double peak_tflop_s = 0;
  std::vector<LadderRung> rungs;

  json::Value to_json() const;
  std::string to_text() const;
  /// The hours of the rungs as bars: an SVG picture.
  std::string to_svg() const;
};

/// The parts that a model of `depth` layers keeps where the whole keeps `all`: the nth block of a kind takes
/// the place of those of the whole that lie as far into it. kinds: full_attention of the whole model.
Keep keep_of_depth(const Keep& all, const std::vector<bool>& kinds, int64_t depth);

/// Throws what bench_step() throws, and Error{data} for a length above the row.
LadderReport bench_ladder(Device& device, const LadderOptions& options);

}  // namespace deltatune
