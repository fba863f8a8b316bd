// trainer_state.json with the keys of transformers' TrainerState, so that scripts which plot log_history work
// on our checkpoints as they are. Written as transformers does: keys sorted, two spaces, newline at the end;
// NaN, which JSON lacks, as null. Resuming does not depend on this file (resume.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace deltatune {

/// One entry of log_history: {"epoch", "step"} and any of loss, grad_norm, learning_rate (training) or
/// eval_loss, eval_runtime, ... (evaluation), as name and value.
struct LogEntry {
  double epoch = 0;
  int64_t step = 0;
  std::vector<std::pair<std::string, double>> values;
};

struct TrainerState {
  double epoch = 0;
  int64_t global_step = 0;
  int64_t max_steps = 0;
  int64_t num_train_epochs = 1;
  int64_t logging_steps = 10;
  int64_t eval_steps = 0;
  int64_t save_steps = 0;
  int64_t train_batch_size = 1;
  int64_t num_input_tokens_seen = 0;
  double total_flos = 0;
  std::optional<double> best_metric;
  std::optional<int64_t> best_global_step;
  std::optional<std::string> best_model_checkpoint;
  std::vector<LogEntry> log_history;
};

inline constexpr const char* trainer_state_name = "trainer_state.json";

/// Writes `folder`/trainer_state.json. Throws Error{resource}.
void write_trainer_state(const fs::path& folder, const TrainerState& state);

/// Reads what write_trainer_state or transformers wrote; keys we do not have and log values that are no
/// numbers are passed over. Throws Error{model}.
TrainerState read_trainer_state(const fs::path& folder);

}  // namespace deltatune
