// Text that a verb reads once: a file, or standard input where the name is "-".
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace deltatune::cli {

/// All of it. Throws Error{data}: it cannot be read, or has more than `most` bytes. `name` is what messages
/// call it: input_name().
std::string read_input(const std::string& path, size_t most);

/// "standard input" for "-", else the path.
std::string input_name(const std::string& path);

/// Calls line(text, number) for each line of standard input, without its "\n"; numbers count from 1. Throws
/// Error{data} for a line of more than `most` bytes.
void visit_input_lines(size_t most, const std::function<void(const std::string&, int64_t)>& line);

}  // namespace deltatune::cli
