// Reading a set, and subsets.
#include "data/tokenized_set.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace deltatune {

int64_t DatasetCounts::skipped_rows() const {
  int64_t sum = 0;
  for (const int64_t count : skipped) sum += count;
  return sum;
}

TokenizedSet::TokenizedSet(std::shared_ptr<const TokenStorage> storage, std::vector<std::string> files,
                           DatasetCounts counts, std::string fingerprint, std::vector<SkippedRow> skipped)
    : storage_(std::move(storage)),
      size_(static_cast<int64_t>(storage_->arrays.offsets.size()) - 1),
      files_(std::move(files)),
      counts_(counts),
      fingerprint_(std::move(fingerprint)),
      skipped_(std::move(skipped)) {
  DELTATUNE_ASSERT(size_ >= 0);
}

std::span<const int32_t> TokenizedSet::ids(int64_t i) const {
  const size_t k = whole(i);
  const int64_t begin = offset(k);
  const int64_t end = offset(k + 1);
  storage_->check_ids(begin, end);
  return storage_->arrays.ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

bool TokenizedSet::supervised(int64_t i, int64_t t) const {
  const auto k = static_cast<uint64_t>(offset(whole(i)) + t);
  return (storage_->arrays.supervised[k / 64] >> (k % 64) & 1) != 0;
}

int64_t TokenizedSet::targets(int64_t i) const {
  const size_t k = whole(i);
  const auto end = static_cast<uint64_t>(offset(k + 1));
  int64_t sum = 0;
  for (auto at = static_cast<uint64_t>(offset(k)); at < end;) {
    const uint64_t stop = std::min(end, (at / 64 + 1) * 64);
    uint64_t word = storage_->arrays.supervised[at / 64] >> (at % 64);
    if (stop - at < 64) word &= (uint64_t{1} << (stop - at)) - 1;
    sum += std::popcount(word);
    at = stop;
  }
  return sum;
}

const std::string& TokenizedSet::file(int64_t i) const {
  return files_[static_cast<size_t>(storage_->arrays.source_file[whole(i)])];
}

std::span<const int32_t> TokenizedSet::raw_lengths() const {
  if (is_subset_) return picked_lengths_;
  return storage_ ? storage_->arrays.raw_lengths : std::span<const int32_t>();
}

TokenizedSet TokenizedSet::subset(std::span<const int32_t> conversations) const {
  TokenizedSet out;
  out.storage_ = storage_;
  out.files_ = files_;
  out.is_subset_ = true;
  out.size_ = static_cast<int64_t>(conversations.size());
  out.picked_.reserve(conversations.size());
  out.picked_lengths_.reserve(conversations.size());
  for (const int32_t c : conversations) {
    out.picked_.push_back(static_cast<int32_t>(whole(c)));
    out.picked_lengths_.push_back(static_cast<int32_t>(length(c)));
    out.counts_.tokens += length(c);
    out.counts_.targets += targets(c);
  }
  out.counts_.rows = out.size_;
  out.counts_.conversations = out.size_;
  Hasher hasher;
  hasher.update(fingerprint_).update(std::as_bytes(conversations));
  out.fingerprint_ = hasher.hex();
  return out;
}

}  // namespace deltatune
