// Drawing of progress lines.
#include "observe/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/format.h"
#include "base/heartbeat.h"
#include "base/json.h"
#include "base/log.h"

namespace deltatune {
namespace {

// After that a step that is not logged gets a line all the same: shorter than the heartbeat's, which knows
// less.
constexpr double longest_silence_s = 4;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

// Characters, where each is one column wide: all that we print are.
size_t width_of(std::string_view text) {
  size_t width = 0;
  for (const char c : text) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return width;
}

std::string repeat(std::string_view piece, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += piece;
  return text;
}

std::string rate(double tokens_per_s) {
  if (!std::isfinite(tokens_per_s)) return "?";
  if (tokens_per_s >= 1e6) return format("{:.1f}M", tokens_per_s / 1e6);
  if (tokens_per_s >= 1e4) return format("{:.1f}k", tokens_per_s / 1e3);
  return format("{:.0f}", tokens_per_s);
}

// Whole seconds: a forecast has no more.
std::string time_left(double seconds) {
  const double whole = std::round(seconds);
  return whole < 60 ? format("{:.0f}s", whole) : format_duration(whole);
}

std::string bar(double share, size_t width, const Terminal& terminal) {
  const auto full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(width));
  if (!terminal.unicode) return repeat("=", full) + (full < width ? ">" + repeat(".", width - full - 1) : "");
  std::string done = repeat("\u2501", full);
  std::string rest = full < width ? "\u2578" + repeat("\u2500", width - full - 1) : "";
  if (!terminal.colour) return done + rest;
  return "\x1b[32m" + done + "\x1b[0m\x1b[2m" + rest + "\x1b[0m";
}

}  // namespace

Terminal terminal_of_stderr() {
  Terminal terminal;
  const bool dumb = variable("TERM") == "dumb";
  terminal.tty = ::isatty(2) != 0 && !dumb;
  const std::string forced = variable("CLICOLOR_FORCE");
  terminal.colour = (terminal.tty || (!forced.empty() && forced != "0")) && variable("NO_COLOR").empty();
  std::string locale = variable("LC_ALL");
  if (locale.empty()) locale = variable("LC_CTYPE");
  if (locale.empty()) locale = variable("LANG");
  std::transform(locale.begin(), locale.end(), locale.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  terminal.unicode = locale.find("UTF-8") != std::string::npos || locale.find("UTF8") != std::string::npos;
  winsize size{};
  const int columns = std::atoi(variable("COLUMNS").c_str());
  if (columns > 0) {
    terminal.columns = columns;
  } else if (::ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.columns = size.ws_col;
  }
  return terminal;
}

ProgressStyle progress_style(std::string_view option, const Terminal& terminal) {
  if (option == "bar") return ProgressStyle::bar;
  if (option == "plain") return ProgressStyle::plain;
  if (option == "json") return ProgressStyle::json;
  if (option == "none") return ProgressStyle::none;
  return terminal.tty ? ProgressStyle::bar : ProgressStyle::plain;
}

std::string live_line(const StepLine& line, const Terminal& terminal, double previous_loss) {
  const double share =
      line.total_steps > 0 ? static_cast<double>(line.step) / static_cast<double>(line.total_steps) : 0;
  const std::string head = format("step {}/{}", line.step, line.total_steps);
  std::string loss = format("loss {:.4f}", line.loss);
  if (line.loss < previous_loss) loss += terminal.unicode ? " \u2193" : " -";
  if (line.loss > previous_loss) loss += terminal.unicode ? " \u2191" : " +";
  std::vector<std::string> fields = {format("{:.0f}%", std::floor(share * 100)), loss,
                                     format("{} tok/s", rate(line.tokens_per_s))};
  if (line.slow_kernels) fields.emplace_back("slow kernels");
  if (line.mfu) fields.push_back(format("mfu {:.0f}%", *line.mfu * 100));
  if (line.data_wait_s >= 0.01 * line.time_s && line.data_wait_s > 0)
    fields.push_back(format("data wait {:.2f}s", line.data_wait_s));
  if (line.exposed_comm_s && *line.exposed_comm_s >= 0.01 * line.time_s && *line.exposed_comm_s > 0)
    fields.push_back(format("comm wait {:.2f}s", *line.exposed_comm_s));
  if (line.mem_total_gib > 0) {
    fields.push_back(format("mem {:.0f}/{:.0f} GiB", line.mem_peak_gib, line.mem_total_gib));
  } else if (line.mem_peak_gib > 0) {
    fields.push_back(format("mem {:.1f} GiB", line.mem_peak_gib));
  }
  if (line.eta_s >= 0) fields.push_back("eta " + time_left(line.eta_s));
  // What tells why mfu is low comes where there is room for it.
  if (line.gpu_utilisation) fields.push_back(format("gpu {:.0f}%", *line.gpu_utilisation * 100));
  if (line.roofline_share) fields.push_back(format("roofline {:.0f}%", *line.roofline_share * 100));
  if (line.host_bound_share && *line.host_bound_share >= 0.01)
    fields.push_back(format("host {:.0f}%", *line.host_bound_share * 100));
  if (line.fill > 0 && line.fill < 0.95) fields.push_back(format("fill {:.0f}%", line.fill * 100));
  const auto limit = static_cast<size_t>(std::max(terminal.columns - 1, 1));
  const auto total = [&] {
    size_t width = width_of(head);
    for (size_t i = 0; i < fields.size(); ++i) width += width_of(fields[i]) + (i == 0 ? 1 : 2);
    return width;
  };
  while (fields.size() > 1 && total() > limit) fields.pop_back();
  const size_t room = total() < limit ? limit - total() : 0;
  std::string text = head;
  if (room > 5) text += " " + bar(share, std::min<size_t>(room - 1, 18), terminal);
  for (size_t i = 0; i < fields.size(); ++i) text += (i == 0 ? " " : "  ") + fields[i];
  if (width_of(head) + width_of(fields[0]) + 1 > limit) text = text.substr(0, limit);
  return text;
}

std::string plain_line(const StepLine& line, std::string_view stamp) {
  std::string text =
      format("{} step {:>6}/{}  loss {:.4f}  gnorm {:.3g}  lr {:.2e}  tok/s {:.0f}", stamp, line.step,
             line.total_steps, line.loss, line.grad_norm, line.learning_rate, line.tokens_per_s);
  if (line.tokens_per_s_slots > 0)
    text +=
        format(" ({:.0f} supervised, {:.0f} slots)", line.tokens_per_s_supervised, line.tokens_per_s_slots);
  if (line.mfu) text += format("  mfu {:.1f}%", *line.mfu * 100);
  if (line.roofline_share) text += format("  roofline {:.0f}%", *line.roofline_share * 100);
  if (line.gpu_utilisation) text += format("  gpu {:.0f}%", *line.gpu_utilisation * 100);
  if (line.host_bound_share) text += format("  host {:.0f}%", *line.host_bound_share * 100);
  text += format("  data wait {:.2f}s", line.data_wait_s);
  if (line.exposed_comm_s && *line.exposed_comm_s > 0)
    text += format("  comm wait {:.3f}s", *line.exposed_comm_s);
  if (line.mem_peak_gib > 0) text += format("  mem {:.1f}GiB", line.mem_peak_gib);
  if (line.eta_s >= 0) text += "  eta " + time_left(line.eta_s);
  if (line.slow_kernels) text += "  slow kernels";
  return text;
}

struct Console::State {
  using Clock = std::chrono::steady_clock;

  ProgressStyle style;
  Terminal terminal;
  int descriptor;
  std::mutex mutex;
  std::string live;     // what stands on the live line; empty: nothing
  std::string pending;  // newer text that the rate limit held back
  Clock::time_point drawn{};
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::string phase;
  Clock::time_point phase_printed{};

  void put(std::string_view text) const {
    note_output();
    while (!text.empty()) {
      const ssize_t written = ::write(descriptor, text.data(), text.size());
      if (written <= 0) return;  // progress may be lost, the run must not
      text.remove_prefix(static_cast<size_t>(written));
    }
  }
  void draw(std::string text, bool now) {
    const Clock::time_point time = Clock::now();
    if (!now && time - drawn < std::chrono::milliseconds(100)) {
      pending = std::move(text);
      return;
    }
    drawn = time;
    pending.clear();
    live = std::move(text);
    put("\r" + live + "\x1b[K");
  }
  void wipe() {
    pending.clear();
    if (!live.empty()) put("\r\x1b[K");
    live.clear();
  }
  static void around_log(void* context, bool before) {
    auto* state = static_cast<State*>(context);
    const std::lock_guard lock(state->mutex);
    if (state->live.empty()) return;
    state->put(before ? std::string("\r\x1b[K") : state->live + "\x1b[K");
  }
};

Console::Console(ProgressStyle style, const Terminal& terminal, int descriptor)
    : state_(std::make_unique<State>()) {
  state_->style = style;
  state_->terminal = terminal;
  state_->descriptor = descriptor;
  if (style == ProgressStyle::bar) log::set_line_hook(&State::around_log, state_.get());
}

Console::~Console() {
  if (state_->style == ProgressStyle::bar) log::set_line_hook(nullptr, nullptr);
  finish();
}

void Console::step(const StepLine& line, bool logged) {
  const std::lock_guard lock(state_->mutex);
  state_->phase.clear();
  switch (state_->style) {
    case ProgressStyle::bar:
      state_->draw(live_line(line, state_->terminal, state_->loss), line.step == line.total_steps);
      state_->loss = line.loss;
      break;
    case ProgressStyle::plain:
      if (logged || silence_s() >= longest_silence_s) state_->put(plain_line(line, timestamp_local()) + "\n");
      break;
    case ProgressStyle::json:
      if (logged) state_->put(json::dump(step_event(line)) + "\n");
      break;
    case ProgressStyle::none:
      break;
  }
}

void Console::phase(std::string_view name, int64_t done, int64_t total) {
  set_activity(name);
  const std::lock_guard lock(state_->mutex);
  std::string text(name);
  if (total > 0 || done > 0) text += " " + format_count(done);
  if (total > 0) text += "/" + format_count(total);
  const bool first = state_->phase != name;
  const bool last = total > 0 && done >= total;
  state_->phase = name;
  if (state_->style == ProgressStyle::bar) {
    const auto limit = static_cast<size_t>(std::max(state_->terminal.columns - 1, 1));
    state_->draw(text.substr(0, limit), first || last);
    if (last) state_->wipe();  // what came of it is said by a log line
  } else if (state_->style == ProgressStyle::plain) {
    const State::Clock::time_point now = State::Clock::now();
    if (!first && !last && now - state_->phase_printed < std::chrono::seconds(5)) return;
    state_->phase_printed = now;
    state_->put(format("{} {}\n", timestamp_local(), text));
  }
}

void Console::finish() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->pending.empty()) state_->draw(std::move(state_->pending), true);
  if (!state_->live.empty()) state_->put("\n");
  state_->live.clear();
}

}  // namespace deltatune
