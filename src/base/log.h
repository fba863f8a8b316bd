// Log lines on stderr: log::info("step {}", n). stdout is for results only.
//
// The sink is process-wide. DELTATUNE_LOG (debug, info, warn, error) sets the threshold at start; the command
// line's -q and -v set it through set_level(). Lines of ranks other than 0 carry "[rank N]".
#pragma once

#include <string_view>

#include "base/format.h"

namespace deltatune::log {

enum class Level { debug, info, warn, error };

void set_level(Level level);
Level level();
/// Prefix of later lines; rank 0 of a world of one has none.
void set_rank(int rank, int world_size);
/// A mark in brackets before each later line ("[slow kernels] "); empty: none.
void set_mark(std::string_view text);
/// Writes one line, whatever is in `text` (no format characters are looked at).
void write(Level level, std::string_view text);
/// hook(context, true) runs before and hook(context, false) after every written line, so that a live progress
/// line can step aside; nullptr removes it. The hook must not log.
void set_line_hook(void (*hook)(void* context, bool before), void* context);

template <class... A>
void debug(fmt::format_string<A...> pattern, A&&... arguments) {
  if (level() <= Level::debug) write(Level::debug, fmt::format(pattern, std::forward<A>(arguments)...));
}
template <class... A>
void info(fmt::format_string<A...> pattern, A&&... arguments) {
  if (level() <= Level::info) write(Level::info, fmt::format(pattern, std::forward<A>(arguments)...));
}
template <class... A>
void warn(fmt::format_string<A...> pattern, A&&... arguments) {
  if (level() <= Level::warn) write(Level::warn, fmt::format(pattern, std::forward<A>(arguments)...));
}
template <class... A>
void error(fmt::format_string<A...> pattern, A&&... arguments) {
  write(Level::error, fmt::format(pattern, std::forward<A>(arguments)...));
}

}  // namespace deltatune::log
