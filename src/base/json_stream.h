// The items of a long list in a JSON file, one at a time: memory does not grow with the file.
//
// The root is an object, the list one of its members: {"traceEvents": [item, item, ...], ...}. What an item
// may look like is json.h's. Not here: lists that lie deeper, and the other members, which are passed over.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/json.h"

namespace deltatune::json {

/// Of one item, and of all that stands outside of the list together.
struct ItemLimits {
  size_t bytes = size_t{16} << 20;
  int64_t values = 1'000'000;
};

/// Fills the front of its argument, returns how many bytes; 0: the end. May throw.
using ByteReader = std::function<size_t(std::span<char>)>;

/// Calls visit for every item of the root's list `key`, in order; false: the root has no such list. Throws
/// Error{data} naming `where` and the byte for what is no JSON or above the limits; items before that have
/// been visited.
bool for_each_item(const ByteReader& read, std::string_view key, std::string_view where,
                   const std::function<void(const Value&)>& visit, const ItemLimits& limits = {});

}  // namespace deltatune::json
