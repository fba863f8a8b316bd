// Finds added tokens (control tokens such as <|im_end|>) in text: leftmost, the longest of those that start
// there.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace deltatune {

class AddedTokens {
 public:
  struct Match {
    size_t begin;
    size_t end;
    int32_t id;
  };

  /// `content` is not empty. A content that is there already keeps its first id.
  void add(std::string_view content, int32_t id);
  bool empty() const { return nodes_.size() == 1; }

  /// Appends the matches in `text` to `out`, in order. A token matches only where every flag has all bits of
  /// `required`; without flags it matches everywhere. Linear in the text times the longest token.
  void find(std::string_view text, std::span<const uint8_t> flags, uint8_t required,
            std::vector<Match>& out) const;

 private:
  static constexpr int32_t no_id = -1;
  std::vector<int32_t> nodes_ = {no_id};             // id that ends at a node of the trie; node 0 is the root
  std::unordered_map<uint64_t, uint32_t> children_;  // node * 256 + byte -> node
  bool starts_[256] = {};                            // bytes that begin a token
};

}  // namespace deltatune
