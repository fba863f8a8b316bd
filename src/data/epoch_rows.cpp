// Drawing and packing an epoch.
#include "data/epoch_rows.h"

#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"

namespace deltatune {
namespace {

// Philox streams of the data order; the upper bits keep them apart from other users of the same seed.
constexpr uint64_t stream_tag = uint64_t{0xda7a} << 48;
constexpr uint64_t conversations_stream = 0;
constexpr uint64_t rows_stream = 1;

void shuffle_in_place(std::vector<int32_t>& values, uint64_t seed, int64_t epoch, uint64_t stream) {
  Rng rng(seed, stream_tag | static_cast<uint64_t>(epoch) << 1 | stream);
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[rng.below(i)]);
}

std::vector<int32_t> counting(int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

const char* name_of(Batching batching) {
  switch (batching) {
    case Batching::packed:
      return "packed";
    case Batching::padded:
      return "padded";
    case Batching::sorted:
      return "sorted";
  }
  return "?";
}

void check_options(const StreamOptions& options) {
  if (options.max_tokens < 1 || options.max_tokens > INT32_MAX) {
    throw Error(ErrorKind::usage, format("max_tokens {} is out of range", options.max_tokens), "max_tokens",
                "use a number between 1 and 2^31 - 1");
  }
  if (options.max_segments != 0 && options.max_segments < 2) {
    throw Error(ErrorKind::usage, format("a row of at most {} segments holds nothing", options.max_segments),
                "max_segments", "allow 2 or more, or 0 for no limit");
  }
  if (options.gradient_accumulation_steps < 1) {
    throw Error(ErrorKind::usage,
                format("gradient_accumulation_steps {} is not positive", options.gradient_accumulation_steps),
                "gradient_accumulation_steps", "use 1 or more");
  }
  DELTATUNE_ASSERT(options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size);
}

EpochRows make_epoch_rows(std::span<const int32_t> lengths, const StreamOptions& options, int64_t epoch) {
  EpochRows out;
  out.number = epoch;
  std::vector<int32_t> order =
      mixed_documents(options.mixture, static_cast<int64_t>(lengths.size()), options.seed, epoch);
  if (options.shuffle) shuffle_in_place(order, options.seed, epoch, conversations_stream);
  out.rows = pack_in_windows(lengths, order, options.limits(), options.batching);
  out.order = counting(out.rows.rows());
  if (options.shuffle) shuffle_in_place(out.order, options.seed, epoch, rows_stream);
  return out;
}

int64_t steps_of_rows(int64_t rows, const StreamOptions& options) {
  const int64_t window = options.rows_per_step();
  return (rows + window - 1) / window;
}

}  // namespace deltatune
