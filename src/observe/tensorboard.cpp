// Encoding by hand: five fields are not worth a library.
#include "observe/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "observe/append_file.h"

namespace deltatune {
namespace {

constexpr std::string_view file_start = "events.out.tfevents.";

constexpr std::array<uint32_t, 256> crc_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}();

template <class T>
void put(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

template <class T>
T get(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7F) | 0x80));
  out.push_back(static_cast<char>(value));
}

// Field `number` with bytes.
void put_bytes(std::string& out, int number, std::string_view bytes) {
  out.push_back(static_cast<char>(number << 3 | 2));
  put_varint(out, bytes.size());
  out += bytes;
}

bool get_varint(std::string_view bytes, size_t& at, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && at < bytes.size(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// The step of an Event; 0 where it has none, which is how 0 is written. False: no Event.
bool step_of(std::string_view event, int64_t& step) {
  step = 0;
  for (size_t at = 0; at < event.size();) {
    uint64_t key = 0;
    uint64_t value = 0;
    if (!get_varint(event, at, key)) return false;
    switch (key & 7) {
      case 0:
        if (!get_varint(event, at, value)) return false;
        if (key >> 3 == 2) step = static_cast<int64_t>(value);
        break;
      case 1:
        at += 8;
        break;
      case 2:
        if (!get_varint(event, at, value) || value > event.size() - at) return false;
        at += value;
        break;
      case 5:
        at += 4;
        break;
      default:
        return false;
    }
    if (at > event.size()) return false;
  }
  return true;
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == 0) return "localhost";
  for (char& c : name)
    if (c == '/') c = '_';
  return name;
}

// The newest event file below `folder` whose name ends so; names begin with their time. Empty: none.
fs::path latest_file(const fs::path& folder, const std::string& ending) {
  fs::path latest;
  std::error_code problem;
  fs::recursive_directory_iterator entries(folder, problem);
  for (; !problem && entries != fs::recursive_directory_iterator(); entries.increment(problem)) {
    const fs::path& path = entries->path();
    const std::string name = path.filename().string();
    if (name.starts_with(file_start) && name.ends_with(ending) &&
        (latest.empty() || name > latest.filename().string()))
      latest = path;
  }
  return latest;
}

class TensorBoard final : public RunLogger {
 public:
  explicit TensorBoard(const fs::path& path) : file_(path) {
    if (file_.size() == 0) file_.append(tfrecord(version_event()));
  }
  void write(int64_t step, double time, const std::vector<Scalar>& scalars) override {
    file_.append(tfrecord(scalar_event(step, time, scalars)));
  }

 private:
  // What tells readers that Values have tags.
  static std::string version_event() {
    std::string event;
    event.push_back(1 << 3 | 1);
    put(event, static_cast<double>(std::time(nullptr)));
    put_bytes(event, 3, "brain.Event:2");
    return event;
  }
  AppendFile file_;
};

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc_table[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

std::string tfrecord(std::string_view bytes) {
  std::string length;
  put(length, static_cast<uint64_t>(bytes.size()));
  std::string out = length;
  put(out, masked_crc32c(length));
  out += bytes;
  put(out, masked_crc32c(bytes));
  return out;
}

std::string scalar_event(int64_t step, double time, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.name);
    value.push_back(2 << 3 | 5);
    put(value, static_cast<float>(scalar.value));
    put_bytes(summary, 1, value);
  }
  std::string event;
  event.push_back(1 << 3 | 1);
  put(event, time);
  event.push_back(2 << 3);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  return event;
}

std::string records_up_to(std::string_view file, int64_t last_step) {
  std::string kept;
  while (file.size() >= 16) {
    const auto size = get<uint64_t>(file, 0);
    if (size > file.size() - 16 || get<uint32_t>(file, 8) != masked_crc32c(file.substr(0, 8))) break;
    const std::string_view bytes = file.substr(12, size);
    int64_t step = 0;
    if (get<uint32_t>(file, 12 + size) != masked_crc32c(bytes) || !step_of(bytes, step)) break;
    if (step <= last_step) kept += file.substr(0, 16 + size);
    file.remove_prefix(16 + size);
  }
  return kept;
}

std::unique_ptr<RunLogger> open_tensorboard(const LoggerOptions& options, double time) {
  const bool own = options.logging_dir.empty();
  // A folder that somebody has named may have files of other runs, which are not ours to continue.
  const std::string ending =
      own ? ".0"
          : ".0." + hash_hex(fs::absolute(options.output_dir).lexically_normal().string()).substr(0, 8);
  fs::path path;
  if (options.continues) {
    path = latest_file(own ? options.output_dir / "runs" : options.logging_dir, ending);
    if (!path.empty()) write_file_atomic(path, records_up_to(read_file(path), options.steps));
  }
  if (path.empty()) {
    const auto seconds = static_cast<std::time_t>(time);
    std::tm local{};
    ::localtime_r(&seconds, &local);
    char stamp[64] = "";
    // As Hugging Face names it: Nov30_10-22-07_host.
    std::strftime(stamp, sizeof stamp, "%b%d_%H-%M-%S", &local);
    const fs::path folder =
        own ? options.output_dir / "runs" / format("{}_{}", stamp, host_name()) : options.logging_dir;
    path = folder /
           format("{}{}.{}.{}{}", file_start, static_cast<int64_t>(seconds), host_name(), ::getpid(), ending);
  }
  return std::make_unique<TensorBoard>(path);
}

}  // namespace deltatune
