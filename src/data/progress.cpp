// When to say something, and what.
#include "data/progress.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/log.h"
#include "data/dataset_cache.h"

namespace deltatune {
namespace {

constexpr double every_s = 5;

}  // namespace

void RowProgress::show(int64_t rows, int64_t tokens, const std::vector<RawRow>& block) {
  const double now = clock_.seconds();
  if (now < next_ || block.empty()) return;
  next_ = now + every_s;
  std::string line = format("{}: {}, {} rows/s", doing_, counted(rows, "row"),
                            format_count(static_cast<int64_t>(static_cast<double>(rows) / now)));
  if (tokens > 0) line += ", " + counted(tokens, "token");
  // How far a columnar file or a parsed array is read is not known here.
  const RawRow& last = block.back();
  const bool is_line = last.value == nullptr && last.batch == nullptr;
  const int64_t bytes = finished_bytes_ + (is_line ? static_cast<int64_t>(last.line.offset) : 0);
  if (bytes > 0 && bytes <= total_bytes_) {
    const double left = now * (static_cast<double>(total_bytes_) / static_cast<double>(bytes) - 1);
    line += ", eta " + format_duration(left);
  }
  log::info("{}", line);
}

void RowProgress::file_done(const fs::path& path) {
  finished_bytes_ += total_bytes({path});
}

}  // namespace deltatune
