// What the end-to-end tests share: a small model folder, configurations, the program as a child process that
// can be killed, and what a run left behind.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "cli/run_binary.h"
#include "io/safetensors.h"
#include "io/test_files.h"

namespace deltatune {

inline const fs::path source_dir = DELTATUNE_SOURCE_DIR;

/// The demo's tokenizer and template with a model of two small layers, without weights.
inline void write_small_model(const fs::path& folder) {
  const fs::path demo = source_dir / "examples/demo/model";
  fs::create_directories(folder);
  for (const char* file :
       {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"})
    fs::copy_file(demo / file, folder / file);
  json::Value config = json::parse_file((demo / "config.json").string());
  for (const auto& [key, value] : std::map<std::string, int>{{"hidden_size", 48},
                                                             {"intermediate_size", 96},
                                                             {"num_hidden_layers", 2},
                                                             {"num_attention_heads", 2},
                                                             {"num_key_value_heads", 1},
                                                             {"head_dim", 32},
                                                             {"linear_key_head_dim", 16},
                                                             {"linear_value_head_dim", 16},
                                                             {"linear_num_key_heads", 1},
                                                             {"linear_num_value_heads", 2}})
    config.set(key, value);
  config.set("layer_types", json::Array{"linear_attention", "full_attention"});
  json::Value rope = config.at("rope_parameters");
  rope.set("mrope_section", json::Array{2, 1, 1});
  config.set("rope_parameters", rope);
  write_text(folder / "config.json", json::dump(config, 2));
}

/// Weights (f32) of a finished run, changed so that every forward pass overflows: gate and up projection of
/// layer 0 become so large that their product is infinite.
inline void make_it_overflow(const fs::path& run) {
  const fs::path weights = run / "model.safetensors";
  std::string bytes = slurp(weights);
  {
    const SafetensorsFile file(weights);
    for (const char* name : {"gate_proj", "up_proj"}) {
      const StoredTensor& tensor = *file.find(std::string("model.layers.0.mlp.") + name + ".weight");
      const auto begin = static_cast<size_t>(file.bytes(tensor).data() - file.all().data());
      const float large = 1e30f;
      for (size_t i = 0; i < tensor.size; i += 4) std::memcpy(bytes.data() + begin + i, &large, 4);
    }
  }
  write_text(weights, bytes);
}

/// Keys of a configuration, as YAML values.
using Keys = std::map<std::string, std::string>;

inline Keys small_keys(const fs::path& model, const fs::path& output) {
  return {{"model_name_or_path", model.string()},
          {"init", "random"},
          {"dataset", (source_dir / "examples/demo/train.jsonl").string()},
          {"output_dir", output.string()},
          {"max_length", "128"},
          {"max_tokens", "256"},
          {"max_steps", "20"},
          {"gradient_accumulation_steps", "2"},
          {"learning_rate", "2e-3"},
          {"weight_decay", "0.1"},
          {"dtype", "bf16"},
          {"device", "cpu"},
          {"logging_steps", "1"},
          {"save_steps", "5"},
          {"seed", "7"}};
}

inline Keys with(Keys keys, const Keys& changes) {
  for (const auto& [key, value] : changes) keys[key] = value;
  return keys;
}

inline fs::path write_config(const fs::path& path, const Keys& keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += key + ": " + value + "\n";
  write_text(path, text);
  return path;
}

/// Runs `verb` with these keys as a configuration file and waits.
inline ProgramResult run_verb(const std::string& verb, const Keys& keys, const std::string& more = "",
                              const std::string& environment = "") {
  ScratchFolder folder;
  const fs::path config = write_config(folder / "config.yaml", keys);
  return run_deltatune(verb + " '" + config.string() + "' " + more, environment);
}

/// `deltatune train` in the background.
class Child {
 public:
  Child(const TempFolder& folder, const Keys& keys) {
    static int number = 0;
    config_ = write_config(folder / ("child" + std::to_string(++number) + ".yaml"), keys);
    log_ = folder / ("child" + std::to_string(number) + ".log");
    pid_ = fork();
    if (pid_ == 0) {
      const int log = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      ::dup2(log, 1);
      ::dup2(log, 2);
      ::execl(DELTATUNE_BINARY, DELTATUNE_BINARY, "train", config_.c_str(), static_cast<char*>(nullptr));
      ::_exit(99);
    }
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  /// Exit code, or 128 + signal.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// Polls until `condition` or until the child has ended or a minute is over; true: the condition came
  /// first.
  bool until(const std::function<bool()>& condition) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (std::chrono::steady_clock::now() < end) {
      if (condition()) return true;
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == pid_)
        return condition();
      ::usleep(100);
    }
    return false;
  }
  std::string log() const { return slurp(log_); }
  const fs::path& config() const { return config_; }

 private:
  pid_t pid_ = -1;
  fs::path log_, config_;
};

/// Events of a metrics file of one kind.
inline std::vector<json::Value> events(const fs::path& run, const std::string& kind) {
  std::vector<json::Value> out;
  std::istringstream lines(slurp(run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json::Value event = json::parse(line, "metrics.jsonl");
    if (event.at("event").as_string() == kind) out.push_back(event);
  }
  return out;
}

/// What of each logged step must not depend on time: step, epoch, loss, norm, rate, tokens.
inline std::vector<std::string> step_lines(const fs::path& run) {
  std::vector<std::string> out;
  for (const json::Value& event : events(run, "step")) {
    json::Value line;
    for (const char* key : {"step", "epoch", "loss", "grad_norm", "learning_rate", "tokens", "target_tokens"})
      line.set(key, event.at(key));
    out.push_back(json::dump(line));
  }
  return out;
}

inline std::vector<double> losses(const fs::path& run) {
  std::vector<double> out;
  for (const json::Value& event : events(run, "step")) out.push_back(event.at("loss").as_number());
  return out;
}

/// Expects the error format on stderr: its last three lines.
inline void expect_error(const ProgramResult& result, int code, const std::string& says) {
  EXPECT_EQ(result.code, code) << result.err;
  const size_t error = result.err.rfind("error: ");
  ASSERT_NE(error, std::string::npos) << result.err;
  const std::string lines = result.err.substr(error);
  EXPECT_NE(lines.find("\n  where: "), std::string::npos) << result.err;
  EXPECT_NE(lines.find("\n  fix:   "), std::string::npos) << result.err;
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3) << result.err;
  EXPECT_NE(lines.find(says), std::string::npos) << result.err;
}

/// Sequences of a golden case as rows of tokens.
inline std::string token_rows(const fs::path& case_json) {
  std::string out;
  const json::Value root = json::parse_file(case_json.string());
  for (const json::Value& sequence : root.at("sequences").as_array()) {
    json::Value row;
    row.set("input_ids", sequence.at("input_ids"));
    row.set("labels", sequence.at("labels"));
    out += json::dump(row) + "\n";
  }
  return out;
}

}  // namespace deltatune
