// A trie over bytes, its edges in one hash table.
#include "text/added_tokens.h"

#include "base/error.h"

namespace deltatune {

void AddedTokens::add(std::string_view content, int32_t id) {
  DELTATUNE_ASSERT(!content.empty() && id >= 0);
  uint32_t node = 0;
  for (const char c : content) {
    const uint64_t edge = uint64_t{node} * 256 + static_cast<uint8_t>(c);
    const auto [at, fresh] = children_.try_emplace(edge, static_cast<uint32_t>(nodes_.size()));
    if (fresh) nodes_.push_back(no_id);
    node = at->second;
  }
  if (nodes_[node] == no_id) nodes_[node] = id;
  starts_[static_cast<uint8_t>(content[0])] = true;
}

void AddedTokens::find(std::string_view text, std::span<const uint8_t> flags, uint8_t required,
                       std::vector<Match>& out) const {
  DELTATUNE_ASSERT(flags.empty() || flags.size() == text.size());
  for (size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    Match best{at, at, no_id};
    uint32_t node = 0;
    for (size_t i = at; i < text.size(); ++i) {
      if (!flags.empty() && (flags[i] & required) != required) break;
      const auto edge = children_.find(uint64_t{node} * 256 + static_cast<uint8_t>(text[i]));
      if (edge == children_.end()) break;
      node = edge->second;
      if (nodes_[node] != no_id) best = {at, i + 1, nodes_[node]};
    }
    if (best.id == no_id) {
      ++at;
      continue;
    }
    out.push_back(best);
    at = best.end;
  }
}

}  // namespace deltatune
