// "did you mean": the nearest of a list of known words.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace deltatune {

/// Levenshtein distance, bytes.
size_t edit_distance(std::string_view a, std::string_view b);

/// The known word nearest to `word`, or "" when none is near (more than a third of its letters differ).
std::string nearest(std::string_view word, std::span<const std::string> known);

}  // namespace deltatune
