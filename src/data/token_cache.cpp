// Writing, and reading with every number checked.
#include "data/token_cache.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/format.h"
#include "data/cache_folder.h"

namespace deltatune {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char start_magic[8] = {'D', 'T', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr char end_magic[8] = {'D', 'T', 'T', 'O', 'K', 'E', 'N', 'D'};
constexpr size_t alignment = 64;
constexpr size_t block_ids = size_t{256} << 10;  // 1 MiB
constexpr size_t small_blocks = 64;              // a file of at most so many is verified at once
constexpr size_t sample_blocks = 8;

struct Start {
  char magic[8];
  uint32_t version;
  char zeros[52];
};
static_assert(sizeof(Start) == alignment);

struct Footer {
  uint32_t version;
  uint32_t zero;
  int64_t tokens;
  int64_t conversations;
  int64_t raw_rows;
  int64_t meta_bytes;
  int64_t vocab_size;
  uint64_t file_bytes;
  char key[32];
  char fingerprint[32];
  uint64_t tail_hash[2];    // of the bytes from the end of the ids' section to the footer
  uint64_t footer_hash[2];  // of the members above
  char magic[8];
};
static_assert(sizeof(Footer) == 160);

size_t aligned(size_t size) {
  return (size + alignment - 1) / alignment * alignment;
}

int64_t blocks_of(int64_t tokens) {
  return (tokens + static_cast<int64_t>(block_ids) - 1) / static_cast<int64_t>(block_ids);
}

Hash128 footer_hash(const Footer& footer) {
  return Hasher().update(std::as_bytes(std::span(&footer, 1)).first(offsetof(Footer, footer_hash))).digest();
}

// Ids of a file, in blocks that are verified when they are first read.
class CacheStorage final : public TokenStorage {
 public:
  CacheStorage(std::string name, int64_t vocab_size) : name_(std::move(name)), vocab_size_(vocab_size) {}

  FileHold hold;
  std::optional<MappedFile> file;  // absent: the caller keeps the bytes

  void set_hashes(std::span<const uint64_t> hashes) {
    hashes_ = hashes;
    verified_ = std::vector<std::atomic<bool>>(hashes.size() / 2);
    const size_t count = verified_.size();
    const size_t step = count <= small_blocks ? 1 : (count - 1) / (sample_blocks - 1);
    for (size_t block = 0; block < count; block += step) verify(block);
    if (count > 0) verify(count - 1);
  }

  void check_ids(int64_t begin, int64_t end) const override {
    if (begin == end) return;
    const size_t last = (static_cast<size_t>(end) - 1) / block_ids;
    for (size_t block = static_cast<size_t>(begin) / block_ids; block <= last; ++block) {
      if (!verified_[block].load(std::memory_order_relaxed)) verify(block);
    }
  }

 private:
  void verify(size_t block) const {
    const size_t begin = block * block_ids;
    const std::span<const int32_t> ids =
        arrays.ids.subspan(begin, std::min(block_ids, arrays.ids.size() - begin));
    bool good =
        Hasher().update(std::as_bytes(ids)).digest() == Hash128{hashes_[2 * block], hashes_[2 * block + 1]};
    for (const int32_t id : ids) good &= id >= 0 && id < vocab_size_;
    if (!good) {
      throw Error(ErrorKind::data, "the token cache is damaged", format("{}, tokens from {}", name_, begin),
                  "delete the file; the next start writes it anew");
    }
    verified_[block].store(true, std::memory_order_relaxed);
  }

  std::string name_;
  int64_t vocab_size_;
  std::span<const uint64_t> hashes_;
  mutable std::vector<std::atomic<bool>> verified_;
};

[[noreturn]] void unusable(const std::string& name, const char* what) {
  throw Error(ErrorKind::data, what, name, "delete the file; the next start writes it anew");
}

// Cuts sections off the front of the bytes between ids and footer.
class Sections {
 public:
  Sections(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}
  template <class T>
  std::span<const T> take(uint64_t count) {
    if (count > bytes_.size() / sizeof(T)) unusable(name_, "the token cache is cut off");
    const size_t size = aligned(static_cast<size_t>(count) * sizeof(T));
    if (size > bytes_.size()) unusable(name_, "the token cache is cut off");
    const std::span<const T> out(reinterpret_cast<const T*>(bytes_.data()), static_cast<size_t>(count));
    const auto padding = bytes_.subspan(out.size_bytes(), size - out.size_bytes());
    if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; }))
      unusable(name_, "the token cache is damaged");
    bytes_ = bytes_.subspan(size);
    return out;
  }
  std::span<const std::byte> rest() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  const std::string& name_;
};

Footer footer_of(std::span<const std::byte> bytes, const std::string& name) {
  Start start{};
  Footer footer{};
  if (bytes.size() < sizeof start + sizeof footer) unusable(name, "the token cache is cut off");
  std::memcpy(&start, bytes.data(), sizeof start);
  if (std::memcmp(start.magic, start_magic, sizeof start_magic) != 0) unusable(name, "not a token cache");
  if (start.version != token_cache_version) unusable(name, "the token cache is of another version");
  if (std::any_of(std::begin(start.zeros), std::end(start.zeros), [](char c) { return c != 0; }))
    unusable(name, "the token cache is damaged");
  std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
  if (std::memcmp(footer.magic, end_magic, sizeof end_magic) != 0 || footer.file_bytes != bytes.size())
    unusable(name, "the token cache is cut off");
  if (footer_hash(footer) != Hash128{footer.footer_hash[0], footer.footer_hash[1]})
    unusable(name, "the token cache is damaged");
  const bool sane = footer.version == token_cache_version && footer.tokens >= 0 &&
                    footer.conversations >= 0 && footer.raw_rows >= 0 && footer.meta_bytes >= 0;
  if (!sane) unusable(name, "the token cache is damaged");
  return footer;
}

bool are_indices(const TokenArrays& arrays, int64_t tokens, int64_t max_length, int64_t files) {
  const std::span<const int64_t> offsets = arrays.offsets;
  if (offsets.front() != 0 || offsets.back() != tokens) return false;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    // Differences of checked values: both lie in [0, tokens].
    if (offsets[i + 1] < 0 || offsets[i + 1] > tokens) return false;
    const int64_t length = offsets[i + 1] - offsets[i];
    if (length < 1 || length > max_length) return false;
    if (arrays.source_file[i] < 0 || arrays.source_file[i] >= files) return false;
    const auto first = static_cast<uint64_t>(offsets[i]);
    if ((arrays.supervised[first / 64] >> (first % 64) & 1) != 0) return false;
  }
  return std::all_of(arrays.raw_lengths.begin(), arrays.raw_lengths.end(),
                     [](int32_t length) { return length > 0; });
}

TokenCacheContent parse(std::shared_ptr<CacheStorage> storage, std::span<const std::byte> bytes,
                        const std::string& name, std::string_view key, int64_t vocab_size, int64_t max_length,
                        int64_t files) {
  const Footer footer = footer_of(bytes, name);
  if (std::string_view(footer.key, sizeof footer.key) != key || footer.vocab_size != vocab_size)
    unusable(name, "the token cache is of other data or options");
  Sections sections(bytes.subspan(sizeof(Start), bytes.size() - sizeof(Start) - sizeof(Footer)), name);
  TokenArrays& arrays = storage->arrays;
  const auto tokens = static_cast<uint64_t>(footer.tokens);
  const auto conversations = static_cast<uint64_t>(footer.conversations);
  arrays.ids = sections.take<int32_t>(tokens);
  const std::span<const std::byte> tail = sections.rest();
  if (Hasher().update(tail).digest() != Hash128{footer.tail_hash[0], footer.tail_hash[1]})
    unusable(name, "the token cache is damaged");
  arrays.supervised = sections.take<uint64_t>((tokens + 63) / 64);
  arrays.offsets = sections.take<int64_t>(conversations + 1);
  arrays.source_line = sections.take<int64_t>(conversations);
  arrays.source_file = sections.take<int32_t>(conversations);
  arrays.raw_lengths = sections.take<int32_t>(static_cast<uint64_t>(footer.raw_rows));
  const std::span<const uint64_t> hashes =
      sections.take<uint64_t>(2 * static_cast<uint64_t>(blocks_of(footer.tokens)));
  const std::span<const char> meta = sections.take<char>(static_cast<uint64_t>(footer.meta_bytes));
  if (!sections.rest().empty() || !are_indices(arrays, footer.tokens, max_length, files))
    unusable(name, "the token cache is damaged");
  storage->set_hashes(hashes);
  return {std::move(storage), std::string(footer.fingerprint, sizeof footer.fingerprint),
          std::string(meta.data(), meta.size())};
}

}  // namespace

TokenCacheWriter::TokenCacheWriter(fs::path path)
    : path_(std::move(path)), tail_(std::make_unique<Hasher>()) {
  std::error_code code;
  fs::create_directories(path_.parent_path(), code);
  remove_cache_leftovers(path_.parent_path());
  // Another run may look for leftovers between opening and locking.
  for (int tries = 0; tries == 0 || (!hold_.has_name() && tries < 5); ++tries) {
    temporary_ = temporary_cache_name(path_);
    file_ = std::make_unique<FileWriter>(temporary_);
    hold_ = FileHold(temporary_);
  }
  block_.reserve(block_ids);
  Start start{};
  std::memcpy(start.magic, start_magic, sizeof start_magic);
  start.version = token_cache_version;
  file_->write(std::as_bytes(std::span(&start, 1)));
  position_ = sizeof start;
}

TokenCacheWriter::~TokenCacheWriter() {
  std::error_code code;
  if (!temporary_.empty()) fs::remove(temporary_, code);
}

void TokenCacheWriter::append(std::span<const int32_t> ids) {
  while (!ids.empty()) {
    const size_t count = std::min(ids.size(), block_ids - block_.size());
    block_.insert(block_.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count));
    ids = ids.subspan(count);
    if (block_.size() == block_ids) flush_block();
  }
}

void TokenCacheWriter::flush_block() {
  if (block_.empty()) return;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(block_));
  file_->write(bytes);
  const Hash128 hash = Hasher().update(bytes).digest();
  id_hashes_.insert(id_hashes_.end(), hash.begin(), hash.end());
  position_ += bytes.size();
  tokens_ += static_cast<int64_t>(block_.size());
  block_.clear();
}

void TokenCacheWriter::put(std::string_view bytes) {
  file_->write(bytes);
  tail_->update(std::as_bytes(std::span(bytes)));
  position_ += bytes.size();
}

void TokenCacheWriter::align() {
  static constexpr char zeros[alignment] = {};
  put({zeros, aligned(position_) - position_});
}

template <class T>
void TokenCacheWriter::section(std::span<const T> values) {
  put({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  align();
}

void TokenCacheWriter::finish(const TokenArrays& arrays, const TokenCacheLabel& label) {
  DELTATUNE_ASSERT(label.key.size() == sizeof(Footer::key));
  DELTATUNE_ASSERT(label.fingerprint.size() == sizeof(Footer::fingerprint));
  flush_block();
  static constexpr char zeros[alignment] = {};
  file_->write(std::string_view(zeros, aligned(position_) - position_));  // belongs to the ids
  position_ = aligned(position_);
  section(arrays.supervised);
  section(arrays.offsets);
  section(arrays.source_line);
  section(arrays.source_file);
  section(arrays.raw_lengths);
  section(std::span<const uint64_t>(id_hashes_));
  section(std::span<const char>(label.meta));
  Footer footer{};
  footer.version = token_cache_version;
  footer.tokens = tokens_;
  footer.conversations = static_cast<int64_t>(arrays.offsets.size()) - 1;
  footer.raw_rows = static_cast<int64_t>(arrays.raw_lengths.size());
  footer.meta_bytes = static_cast<int64_t>(label.meta.size());
  footer.vocab_size = label.vocab_size;
  footer.file_bytes = position_ + sizeof footer;
  std::memcpy(footer.key, label.key.data(), sizeof footer.key);
  std::memcpy(footer.fingerprint, label.fingerprint.data(), sizeof footer.fingerprint);
  const Hash128 tail = tail_->digest();
  std::copy(tail.begin(), tail.end(), footer.tail_hash);
  const Hash128 own = footer_hash(footer);
  std::copy(own.begin(), own.end(), footer.footer_hash);
  std::memcpy(footer.magic, end_magic, sizeof end_magic);
  file_->write(std::as_bytes(std::span(&footer, 1)));
  file_->close();
}

void TokenCacheWriter::publish() {
  std::error_code code;
  fs::rename(temporary_, path_, code);
  if (code) {
    throw Error(ErrorKind::resource, format("cannot write {}: {}", path_.string(), code.message()),
                path_.string(), "check the folder's permissions");
  }
  temporary_
      .clear();  // a name that a crash loses costs one more start without a cache: the folder is not synced
}

std::vector<int32_t> TokenCacheWriter::appended() const {
  std::vector<int32_t> out(static_cast<size_t>(tokens_));
  if (tokens_ > 0) {
    const MappedFile file(temporary_);
    DELTATUNE_ASSERT(file.bytes().size() >= sizeof(Start) + out.size() * sizeof(int32_t));
    std::memcpy(out.data(), file.bytes().data() + sizeof(Start), out.size() * sizeof(int32_t));
  }
  out.insert(out.end(), block_.begin(), block_.end());
  return out;
}

TokenCacheContent open_token_cache(const fs::path& path, std::string_view key, int64_t vocab_size,
                                   int64_t max_length, int64_t files, std::string name) {
  if (name.empty()) name = path.string();
  auto storage = std::make_shared<CacheStorage>(name, vocab_size);
  storage->hold = FileHold(path);
  storage->file.emplace(path);
  const std::span<const std::byte> bytes = storage->file->bytes();
  return parse(std::move(storage), bytes, name, key, vocab_size, max_length, files);
}

TokenCacheContent parse_token_cache(std::span<const std::byte> bytes, const std::string& name,
                                    std::string_view key, int64_t vocab_size, int64_t max_length,
                                    int64_t files) {
  DELTATUNE_ASSERT(reinterpret_cast<uintptr_t>(bytes.data()) % alignment == 0);
  return parse(std::make_shared<CacheStorage>(name, vocab_size), bytes, name, key, vocab_size, max_length,
               files);
}

}  // namespace deltatune
