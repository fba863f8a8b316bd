// `deltatune generate ckpt/ --prompt TEXT`: the answer goes to stdout as it is sampled.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "base/format.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "cli/device.h"
#include "cli/verbs.h"
#include "comm/communicator.h"
#include "train/generate.h"
#include "train/run_data.h"
#include "train/setup.h"

namespace deltatune::cli {
namespace {

json::Value message(const char* role, const std::string& content) {
  json::Value out;
  out.set("role", role);
  out.set("content", content);
  return out;
}

std::vector<int32_t> prompt_tokens(const Config& config, const TextSource& text) {
  json::Array messages;
  if (!config.system.empty()) messages.push_back(message("system", config.system));
  messages.push_back(message("user", config.prompt));
  RenderOptions options = text.options;
  options.add_generation_prompt = true;
  const RenderedChat chat = text.chat_template->render(std::move(messages), nullptr, options);
  return text.tokenizer->encode(chat.marked, config.parse_special_in_content).ids;
}

// Length of the longest prefix that does not end inside a UTF-8 sequence.
size_t whole_characters(const std::string& bytes) {
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const auto byte = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? bytes.size() - back : bytes.size();
  }
  return bytes.size();
}

/// The answer on stdout. A log line between two words ("still at it") begins a line of its own where both
/// streams go to one place.
class AnswerLine {
 public:
  AnswerLine() {
    struct stat out {
    }, err{};
    shared_ = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
              out.st_dev == err.st_dev && out.st_ino == err.st_ino;
    log::set_line_hook(
        [](void* context, bool before) {
          if (before && static_cast<AnswerLine*>(context)->open_.exchange(false)) std::fputs("\n", stderr);
        },
        this);
  }
  ~AnswerLine() { log::set_line_hook(nullptr, nullptr); }
  AnswerLine(const AnswerLine&) = delete;
  AnswerLine& operator=(const AnswerLine&) = delete;

  void write(std::string_view text) {
    if (text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    open_ = shared_ && text.back() != '\n';
    note_output();
  }

 private:
  bool shared_ = false;
  std::atomic<bool> open_{false};  // heartbeats come from a thread of their own
};

}  // namespace

int verb_generate(const Invocation& call) {
  const Config& config = call.config();
  if (config.prompt.empty()) {
    throw Error(ErrorKind::usage, "there is no prompt", "--prompt", "give --prompt \"your question\"");
  }
  const auto device = open_device(config);
  const ModelSource source = open_trained_model(config.model_name_or_path, config.init);
  const TextSource text = open_run_text(config, source, true);
  const std::vector<int32_t> prompt = prompt_tokens(config, text);
  SamplingOptions sampling{config.max_new_tokens, config.temperature, config.top_k, config.top_p,
                           static_cast<uint64_t>(config.seed)};
  EngineOptions options = engine_options(config, Keep::nothing(), false);
  options.tokens = static_cast<int64_t>(prompt.size()) + sampling.max_new_tokens;
  options.max_documents = 2;
  const auto comm = make_solo_communicator();
  Engine engine(*device, *comm, source.config, source.tied, options);
  fill_store(engine.store(), engine.stream(), source, sampling.seed);
  AnswerLine line;
  std::string pending;
  const std::vector<int32_t> answer =
      generate(engine, prompt, stop_ids(text, source), sampling, [&](int32_t id) {
        if (config.json) return;
        pending += text.tokenizer->decode(std::span(&id, 1));
        const size_t whole = whole_characters(pending);
        line.write(std::string_view(pending).substr(0, whole));
        pending.erase(0, whole);
      });
  if (config.json) {
    json::Value out;
    out.set("text", text.tokenizer->decode_utf8(answer));
    out.set("prompt_tokens", static_cast<int64_t>(prompt.size()));
    out.set("new_tokens", static_cast<int64_t>(answer.size()));
    out.set("stopped", static_cast<int64_t>(answer.size()) < sampling.max_new_tokens);
    std::printf("%s\n", json::dump(out, 2).c_str());
  } else {
    std::printf("\n");
  }
  return 0;
}

}  // namespace deltatune::cli
