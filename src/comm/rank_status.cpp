// Fixed records in a shared mapping.
#include "comm/rank_status.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/format.h"

namespace deltatune {

// Numbers are atomic; texts are written before the number that says they are there.
struct RankStatus::Record {
  std::atomic<int64_t> process;
  std::atomic<int64_t> step;
  std::atomic<int64_t> failed;  // 0: no; else the ErrorKind and 1
  std::array<char, 32> phase;
  std::array<char, 1024> what, where, fix;
};

struct RankStatus::Order {
  std::atomic<int64_t> restarts;
  std::atomic<int64_t> resume;
};

namespace {

template <size_t n>
void put(std::array<char, n>& to, const std::string& text) {
  const size_t size = std::min(n - 1, text.size());
  std::memcpy(to.data(), text.data(), size);
  to[size] = '\0';
}
// The writer may be at work, or may have been killed in the middle of it.
template <size_t n>
std::string get(const std::array<char, n>& from) {
  return {from.data(), ::strnlen(from.data(), n)};
}

[[noreturn]] void fail_to_open(ErrorKind kind, const std::filesystem::path& path, const char* reason) {
  throw Error(kind, std::string("cannot open the status file of the ranks: ") + reason, path.string(),
              "check the free space and permissions of TMPDIR");
}

void* map(const std::filesystem::path& path, int flags, size_t& bytes) {
  const int file = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) fail_to_open(ErrorKind::resource, path, std::strerror(errno));
  struct stat facts {};
  const bool sized = (flags & O_CREAT) != 0 ? ::posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0
                                            : ::fstat(file, &facts) == 0;
  if (bytes == 0) bytes = static_cast<size_t>(facts.st_size);
  void* memory =
      sized && bytes > 0 ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  ::close(file);
  if (memory == MAP_FAILED) fail_to_open(ErrorKind::resource, path, "it cannot be mapped");
  return memory;
}

}  // namespace

RankStatus::RankStatus(void* memory, size_t bytes, int ranks, int own)
    : memory_(memory), bytes_(bytes), ranks_(ranks), own_(own) {}

RankStatus::RankStatus(RankStatus&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      ranks_(other.ranks_),
      own_(other.own_) {}

RankStatus::~RankStatus() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

RankStatus RankStatus::create(const std::filesystem::path& path, int ranks) {
  size_t bytes = size_for(ranks);
  void* memory = map(path, O_CREAT | O_EXCL, bytes);  // zeros are empty records
  return {memory, bytes, ranks, -1};
}

RankStatus RankStatus::join(const std::filesystem::path& path, int rank) {
  size_t bytes = 0;
  void* memory = map(path, 0, bytes);
  const int ranks = bytes < sizeof(Order) ? 0 : static_cast<int>((bytes - sizeof(Order)) / sizeof(Record));
  RankStatus out(memory, bytes, ranks, rank);
  if (bytes != size_for(ranks) || rank < 0 || rank >= ranks) {
    throw Error(ErrorKind::usage, format("the status file has no record of rank {}", rank), path.string(),
                "leave rank_status to --nproc, which sets it");
  }
  out.record(rank).process = ::getpid();
  out.at(0, "start");
  return out;
}

RankStatus::Record& RankStatus::record(int rank) const {
  DELTATUNE_ASSERT(rank >= 0 && rank < ranks_);
  auto* records = static_cast<std::byte*>(memory_) + sizeof(Order);
  return reinterpret_cast<Record*>(records)[rank];
}

size_t RankStatus::size_for(int ranks) {
  return sizeof(Order) + sizeof(Record) * static_cast<size_t>(ranks);
}

void RankStatus::restarted(int64_t times, bool resume) {
  order().restarts = times;
  order().resume = resume ? 1 : 0;
}
int64_t RankStatus::restarts() const {
  return order().restarts;
}
bool RankStatus::resume() const {
  return order().resume != 0;
}

void RankStatus::at(int64_t step, const char* phase) {
  put(record(own_).phase, phase);
  record(own_).step = step;
}

void RankStatus::fail(const Error& error) {
  Record& own = record(own_);
  put(own.what, error.what());
  put(own.where, error.where());
  put(own.fix, error.fix());
  own.failed = static_cast<int64_t>(error.kind()) + 1;
}

int64_t RankStatus::process(int rank) const {
  return record(rank).process;
}

int64_t RankStatus::step(int rank) const {
  return record(rank).step;
}

std::string RankStatus::place(int rank) const {
  const Record& its = record(rank);
  return format("rank {}, step {}, {}", rank, its.step.load(),
                its.process == 0 ? "not started" : get(its.phase));
}

std::optional<Error> RankStatus::failure(int rank) const {
  const Record& its = record(rank);
  const int64_t failed = its.failed;
  if (failed <= 0 || failed > static_cast<int64_t>(ErrorKind::internal) + 1) return std::nullopt;
  return Error(static_cast<ErrorKind>(failed - 1), get(its.what), get(its.where), get(its.fix));
}

}  // namespace deltatune
