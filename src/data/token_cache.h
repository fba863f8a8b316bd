// The token cache file: a tokenised dataset as one file that is mapped, not read.
//
// Layout, little endian; sections begin at multiples of 64 bytes, zeros between:
//   "DTTOKENS", uint32 version, zeros up to byte 64
//   ids          int32  [tokens]
//   supervised   uint64 [ceil(tokens / 64)]
//   offsets      int64  [conversations + 1]
//   source_line  int64  [conversations]
//   source_file  int32  [conversations]
//   raw_lengths  int32  [raw_rows]
//   id_hashes    uint64 [2 * ceil(tokens / block_ids)]  XXH3-128 of each block of ids
//   meta         JSON [meta_bytes]                      counts, skipped rows: the caller's
//   footer       see token_cache.cpp: lengths, key, fingerprint, hash of all sections behind the ids, hash of
//                itself, "DTTOKEND"
// The footer is written last, so a file that was cut off has none.
// A reader takes the file for bytes of a stranger: every length is checked before it is used, every number
// that is an index later is checked to be one. All but the ids is verified when the file is opened. Ids are
// verified block by block when first read, against their hash and the vocabulary; all of a small file, and a
// sample of a large one, at once.
// A file is written under a temporary name, synced and renamed: two runs that write the same key do not
// disturb each other, the last one stays. It is never changed afterwards. Temporary files of killed runs are
// removed by the next writer (data/cache_folder.h). Not protected: cutting a file off while a program has it
// mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "data/cache_folder.h"
#include "data/tokenized_set.h"

namespace deltatune {

/// A part of the layout changed, or the way how rows become tokens: a new number.
inline constexpr uint32_t token_cache_version = 1;

/// What a file holds besides the arrays.
struct TokenCacheLabel {
  std::string key;          ///< 32 hexadecimal digits: hash of everything the tokens depend on
  std::string fingerprint;  ///< 32 hexadecimal digits: of the set
  int64_t vocab_size = 0;   ///< ids lie in [0, vocab_size)
  std::string meta;         ///< JSON
};

/// Writes one file, ids first. Errors are Error{resource}; the temporary file is removed with this object.
class TokenCacheWriter {
 public:
  /// Creates the folder where needed and a temporary file beside `path`.
  explicit TokenCacheWriter(fs::path path);
  ~TokenCacheWriter();
  TokenCacheWriter(const TokenCacheWriter&) = delete;
  TokenCacheWriter& operator=(const TokenCacheWriter&) = delete;

  void append(std::span<const int32_t> ids);
  /// The rest of the file (arrays.ids is not looked at), and sync. It is complete then, under temporary().
  void finish(const TokenArrays& arrays, const TokenCacheLabel& label);
  const fs::path& temporary() const { return temporary_; }
  /// Gives the finished file its name, for other runs to find.
  void publish();
  /// Everything appended so far, read back: for going on without a file.
  std::vector<int32_t> appended() const;

 private:
  void flush_block();
  template <class T>
  void section(std::span<const T> values);
  void put(std::string_view bytes);
  void align();

  fs::path path_;
  fs::path temporary_;
  FileHold hold_;  // others see that the temporary file has a writer
  std::unique_ptr<FileWriter> file_;
  std::vector<int32_t> block_;       // not yet written
  std::vector<uint64_t> id_hashes_;  // of blocks
  int64_t tokens_ = 0;
  uint64_t position_ = 0;
  std::unique_ptr<Hasher> tail_;  // of what follows the ids
};

struct TokenCacheContent {
  std::shared_ptr<const TokenStorage> storage;
  std::string fingerprint;
  std::string meta;
};

/// Maps a file. `files`: how many source files there are; max_length: the most tokens of a conversation;
/// `name` stands for the file in messages (empty: its path). Throws Error{data}: unreadable, cut off,
/// damaged, of another version, or of another key.
TokenCacheContent open_token_cache(const fs::path& path, std::string_view key, int64_t vocab_size,
                                   int64_t max_length, int64_t files, std::string name = {});

/// The same for bytes that the caller keeps, at an address that is a multiple of 64.
TokenCacheContent parse_token_cache(std::span<const std::byte> bytes, const std::string& name,
                                    std::string_view key, int64_t vocab_size, int64_t max_length,
                                    int64_t files);

}  // namespace deltatune
