// The log sink: spdlog's stderr sink behind our four functions.
#include "base/log.h"

#define SPDLOG_FMT_EXTERNAL
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/heartbeat.h"

namespace deltatune::log {
namespace {

Level level_from_environment() {
  const char* text = std::getenv("DELTATUNE_LOG");
  const std::string_view name = text ? text : "";
  if (name == "debug") return Level::debug;
  if (name == "warn") return Level::warn;
  if (name == "error") return Level::error;
  return Level::info;
}

std::atomic<Level>& threshold() {
  static std::atomic<Level> value{level_from_environment()};
  return value;
}

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("deltatune", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("%v");
    made.set_level(spdlog::level::trace);
    made.flush_on(spdlog::level::trace);
    return made;
  }();
  return instance;
}

std::string& prefix() {
  static std::string text;
  return text;
}

std::string& standing_mark() {
  static std::string text;
  return text;
}

struct LineHook {
  std::mutex mutex;
  void (*call)(void*, bool) = nullptr;
  void* context = nullptr;
};
LineHook& line_hook() {
  static LineHook hook;
  return hook;
}

}  // namespace

void set_line_hook(void (*hook)(void* context, bool before), void* context) {
  const std::lock_guard lock(line_hook().mutex);
  line_hook().call = hook;
  line_hook().context = context;
}

void set_level(Level level) {
  threshold() = level;
}
Level level() {
  return threshold();
}

void set_rank(int rank, int world_size) {
  prefix() = world_size > 1 && rank != 0 ? "[rank " + std::to_string(rank) + "] " : std::string();
}

void set_mark(std::string_view text) {
  standing_mark() = text.empty() ? std::string() : "[" + std::string(text) + "] ";
}

void write(Level level, std::string_view text) {
  if (level < threshold()) return;
  const char* mark = level == Level::warn ? "warning: " : "";
  LineHook& hook = line_hook();
  const std::lock_guard lock(hook.mutex);
  if (hook.call != nullptr) hook.call(hook.context, true);
  logger().info("{}{}{}{}", prefix(), standing_mark(), mark, text);
  if (hook.call != nullptr) hook.call(hook.context, false);
  note_output();
}

}  // namespace deltatune::log
