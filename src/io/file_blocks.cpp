// Reading by blocks.
#include "io/file_blocks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"

namespace deltatune {
namespace {

constexpr size_t most_block_bytes = size_t{64} << 20;
constexpr const char* restart_fix = "resume from an older checkpoint, or start again from this one's weights";

size_t size_at(const json::Value& value) {
  const int64_t number = value.as_integer();
  if (number < 0) throw Error(ErrorKind::data, format("negative number {}", number));
  return static_cast<size_t>(number);
}

// Sorted, apart, inside the file.
void check_blocks(const FileBlocks& file) {
  size_t end = 0;
  for (const HashedBlock& block : file.blocks) {
    if (block.begin < end || block.bytes == 0 || block.bytes > most_block_bytes || block.begin > file.size ||
        block.bytes > file.size - block.begin) {
      throw Error(ErrorKind::data, format("block [{}, {}) of a file of {} bytes is not possible behind {}",
                                          block.begin, block.begin + block.bytes, file.size, end));
    }
    end = block.begin + block.bytes;
  }
}

RangeReader open_checked(const fs::path& path, size_t size) {
  std::error_code problem;
  const uintmax_t found = fs::file_size(path, problem);
  if (problem)
    throw Error(ErrorKind::model, "missing file " + path.filename().string(), path.string(), restart_fix);
  if (found != size) {
    throw Error(ErrorKind::model,
                format("{} has {} bytes, {} were written", path.filename().string(), found, size),
                path.string(), restart_fix);
  }
  return RangeReader(path);
}

}  // namespace

std::string block_hash(std::span<const std::byte> bytes) {
  return Hasher().update(bytes).hex();
}

json::Value to_json(const FileBlocks& file) {
  json::Array blocks;
  for (const HashedBlock& block : file.blocks) {
    blocks.push_back(
        json::Array{static_cast<int64_t>(block.begin), static_cast<int64_t>(block.bytes), block.hash});
  }
  json::Value out;
  out.set("name", file.name);
  out.set("bytes", static_cast<int64_t>(file.size));
  out.set("blocks", std::move(blocks));
  return out;
}

FileBlocks file_blocks_from_json(const json::Value& value) {
  FileBlocks out{value.at("name").as_string(), size_at(value.at("bytes")), {}};
  for (const json::Value& item : value.at("blocks").as_array()) {
    const json::Array& triple = item.as_array();
    if (triple.size() != 3) throw Error(ErrorKind::data, "a block is not [begin, bytes, hash]");
    out.blocks.push_back({size_at(triple[0]), size_at(triple[1]), triple[2].as_string()});
  }
  check_blocks(out);
  return out;
}

void merge_blocks(FileBlocks& into, FileBlocks&& more) {
  DELTATUNE_ASSERT(into.name == more.name && into.size == more.size);
  into.blocks.insert(into.blocks.end(), std::make_move_iterator(more.blocks.begin()),
                     std::make_move_iterator(more.blocks.end()));
  std::sort(into.blocks.begin(), into.blocks.end(),
            [](const HashedBlock& a, const HashedBlock& b) { return a.begin < b.begin; });
  check_blocks(into);
}

HashedFile::HashedFile(const fs::path& path, FileBlocks blocks)
    : blocks_(std::move(blocks)), file_(open_checked(path, blocks_.size)) {}

void HashedFile::read_block(const HashedBlock& block, std::span<std::byte> to) const {
  try {
    file_.read(block.begin, to);
  } catch (const Error& error) {
    throw Error(ErrorKind::model, error.what(), error.where(), error.fix());
  }
  if (block_hash(to) == block.hash) return;
  throw Error(ErrorKind::model,
              format("{} was altered: the hash of its bytes {} to {} does not fit", blocks_.name, block.begin,
                     block.begin + block.bytes),
              file_.path().string(), restart_fix);
}

void HashedFile::read(size_t begin, std::span<std::byte> to) const {
  auto at = std::upper_bound(blocks_.blocks.begin(), blocks_.blocks.end(), begin,
                             [](size_t b, const HashedBlock& block) { return b < block.begin; });
  if (at != blocks_.blocks.begin()) --at;
  std::vector<std::byte> whole;
  for (; !to.empty(); ++at) {
    if (at == blocks_.blocks.end() || begin < at->begin || begin >= at->begin + at->bytes) {
      throw Error(ErrorKind::model, format("nothing is recorded of byte {} of {}", begin, blocks_.name),
                  file_.path().string(), restart_fix);
    }
    const size_t skipped = begin - at->begin;
    const size_t count = std::min(to.size(), at->bytes - skipped);
    if (count == at->bytes) {
      read_block(*at, to.first(count));
    } else {
      whole.resize(at->bytes);
      read_block(*at, whole);
      std::memcpy(to.data(), whole.data() + skipped, count);
    }
    begin += count;
    to = to.subspan(count);
  }
}

}  // namespace deltatune
