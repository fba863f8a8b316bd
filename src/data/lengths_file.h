// Lengths of conversations as text, one a line: what `deltatune data pack --lengths FILE` reads.
#pragma once

#include <cstdint>
#include <vector>

#include "base/file.h"

namespace deltatune {

/// Whole numbers from 1 to max_tokens, one a line; '#' starts a comment, blank lines count for nothing. The
/// path may be a pipe: it is read once, front to back, and given up at the first line that is wrong, so that
/// endless input ends. Throws Error{data} with the line: not a number, 0 or less, above max_tokens, a line of
/// more than 200 bytes, more than 2^27 lengths, none at all; and for a file that cannot be read.
std::vector<int32_t> read_lengths(const fs::path& path, int64_t max_tokens);

}  // namespace deltatune
