// parity: this program's numbers against stored ones of transformers (golden cases).
//
// A case folder has model/ (a checkpoint), case.json (sequences, optimizer, the reference's own bf16 error)
// and expected.safetensors (logits, loss, gradients, parameters after three updates). All sequences are
// packed into as many rows as asked for, whatever their order; the stored numbers come from runs of each
// sequence alone.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "model/layer.h"
#include "tensor/device.h"

namespace deltatune {

struct ParityOptions {
  DType storage = DType::f32;
  bool reverse = false;         ///< pack the sequences last to first
  int64_t micro_batches = 1;    ///< rows they are spread over
  Keep keep = Keep::nothing();  ///< activations kept for backward; no choice may change a bit
  bool deterministic = false;   ///< only kernels that repeat bit for bit
};

/// One compared quantity. rel: ||ours - theirs|| / ||theirs|| (for scalars |ours / theirs - 1|); bound < 0:
/// shown only.
struct ParityRow {
  std::string name;
  double rel = 0;
  double max_error = 0;
  double bound = -1;
  bool ok() const { return bound < 0 || rel <= bound; }
};

struct ParityReport {
  std::string name;
  std::vector<ParityRow> rows;
  bool ok() const;
  json::Value to_json() const;
  std::string to_text() const;
};

/// Throws Error{data} for a case that cannot be read.
ParityReport run_parity(const fs::path& case_folder, Device& device, const ParityOptions& options);

}  // namespace deltatune
