// TrainerState to JSON and back.
#include "io/trainer_state.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json.h"

namespace deltatune {
namespace {

json::Value sorted(json::Object members) {
  std::sort(members.begin(), members.end(),
            [](const json::Member& a, const json::Member& b) { return a.first < b.first; });
  return json::Value(std::move(members));
}

template <class T>
json::Value or_null(const std::optional<T>& value) {
  return value ? json::Value(*value) : json::Value();
}

double number_of(const json::Value& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.as_number();
}

// Values that are absent or null leave `to` as it is.
void take(const json::Value& root, const char* key, int64_t& to) {
  const json::Value* value = root.find(key);
  if (!value || value->is_null()) return;
  const double number = value->as_number();  // transformers writes logging_steps 0.1 for "every 10 %"
  if (value->is_integer()) {
    to = value->as_integer();
  } else if (number > -1e18 && number < 1e18) {
    to = static_cast<int64_t>(number);
  }
}
void take(const json::Value& root, const char* key, double& to) {
  const json::Value* value = root.find(key);
  if (value && !value->is_null()) to = value->as_number();
}

}  // namespace

void write_trainer_state(const fs::path& folder, const TrainerState& state) {
  json::Array history;
  for (const LogEntry& entry : state.log_history) {
    json::Object members{{"epoch", entry.epoch}, {"step", entry.step}};
    for (const auto& [name, value] : entry.values) members.emplace_back(name, value);
    history.push_back(sorted(std::move(members)));
  }
  const json::Value root = sorted({
      {"best_global_step", or_null(state.best_global_step)},
      {"best_metric", or_null(state.best_metric)},
      {"best_model_checkpoint", or_null(state.best_model_checkpoint)},
      {"epoch", state.epoch},
      {"eval_steps", state.eval_steps},
      {"global_step", state.global_step},
      {"is_hyper_param_search", false},
      {"is_local_process_zero", true},
      {"is_world_process_zero", true},
      {"log_history", std::move(history)},
      {"logging_steps", state.logging_steps},
      {"max_steps", state.max_steps},
      {"num_input_tokens_seen", state.num_input_tokens_seen},
      {"num_train_epochs", state.num_train_epochs},
      {"save_steps", state.save_steps},
      {"stateful_callbacks", json::Object{}},
      {"total_flos", state.total_flos},
      {"train_batch_size", state.train_batch_size},
      {"trial_name", nullptr},
      {"trial_params", nullptr},
  });
  write_file_atomic(folder / trainer_state_name, json::dump(root, 2) + "\n");
}

TrainerState read_trainer_state(const fs::path& folder) {
  const fs::path path = folder / trainer_state_name;
  TrainerState out;
  try {
    const json::Value root = json::parse_file(path.string());
    if (!root.is_object())
      throw Error(ErrorKind::data, std::string("expected a JSON object, found ") + root.type_name());
    take(root, "epoch", out.epoch);
    take(root, "global_step", out.global_step);
    take(root, "max_steps", out.max_steps);
    take(root, "num_train_epochs", out.num_train_epochs);
    take(root, "logging_steps", out.logging_steps);
    take(root, "eval_steps", out.eval_steps);
    take(root, "save_steps", out.save_steps);
    take(root, "train_batch_size", out.train_batch_size);
    take(root, "num_input_tokens_seen", out.num_input_tokens_seen);
    take(root, "total_flos", out.total_flos);
    if (const json::Value* v = root.find("best_metric"); v && !v->is_null()) out.best_metric = v->as_number();
    if (const json::Value* v = root.find("best_global_step"); v && !v->is_null())
      out.best_global_step = v->as_integer();
    if (const json::Value* v = root.find("best_model_checkpoint"); v && !v->is_null()) {
      out.best_model_checkpoint = v->as_string();
    }
    if (const json::Value* history = root.find("log_history"); history && !history->is_null()) {
      for (const json::Value& item : history->as_array()) {
        LogEntry entry;
        take(item, "epoch", entry.epoch);
        take(item, "step", entry.step);
        for (const auto& [name, value] : item.as_object()) {
          if (name == "epoch" || name == "step" || !(value.is_number() || value.is_null())) continue;
          entry.values.emplace_back(name, number_of(value));
        }
        out.log_history.push_back(std::move(entry));
      }
    }
  } catch (const Error& e) {
    throw Error(ErrorKind::model, std::string(trainer_state_name) + ": " + e.what(), path.string(),
                "remove the file: training does not need it");
  }
  return out;
}

}  // namespace deltatune
