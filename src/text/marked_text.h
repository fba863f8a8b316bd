// Text that knows where each byte came from: what the template engine hands to the tokenizer.
//
// Invariants: flags.size() == text.size(); text is valid UTF-8; flags do not change inside a UTF-8 sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltatune {

/// The byte was written by the template itself (or is a template-side constant such as eos_token). Control
/// tokens may form from such bytes only; everything else is content and stays ordinary text.
inline constexpr uint8_t mark_template = 1;
/// The byte belongs to a loss span: the token that starts here is a supervised target.
inline constexpr uint8_t mark_supervised = 2;

struct MarkedText {
  std::string text;
  std::vector<uint8_t> flags;
};

/// One encoded conversation. supervised[i] != 0: token i is a target (its label is its id), else label -100.
struct MarkedTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> supervised;
};

}  // namespace deltatune
