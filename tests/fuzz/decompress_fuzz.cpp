// Bytes as a file of rows, compressed or not: read in pieces of any size, and as rows under small limits.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/decompress.h"
#include "data/row_source.h"

using namespace deltatune;

namespace {

constexpr size_t most = size_t{4} << 20;  // of a text that expands without end

template <class Body>
void refused_or_done(Body body) {
  try {
    body();
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::internal) throw;  // an assertion: a finding
  }
}

void read_rows(std::string_view bytes, const std::string& name, BlockSize block) {
  refused_or_done([&] {
    int64_t before = 0;
    size_t seen = 0;
    visit_bytes(
        bytes, name,
        [&](const std::vector<RawRow>& rows) {
          DELTATUNE_ASSERT(!rows.empty() && rows.size() <= block.rows);
          for (const RawRow& row : rows) {
            DELTATUNE_ASSERT(row.number > before);
            before = row.number;
            seen += row.value ? 1 : row.line.text.size();
            refused_or_done([&] { static_cast<void>(row.parse()); });
          }
          return seen < most;
        },
        block);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  refused_or_done([&] {
    OnePiece piece(bytes);
    Decompressor source(piece, "fuzz");
    std::string out(size_t{1} << (data[0] % 16), '\0');
    for (size_t total = 0, count = 1; count > 0 && total < most; total += count) {
      count = source.read(out);
      DELTATUNE_ASSERT(count <= out.size());
      if (out.size() < 64 && total > 65536) break;  // byte by byte is slow
    }
  });
  BlockSize block;
  block.rows = 3;
  block.bytes = size_t{1} << (data[0] >> 4);
  block.longest_line = 4096;
  block.longest_document = 65536;
  read_rows(bytes, "fuzz.jsonl", block);
  read_rows(bytes, "fuzz.json.gz", block);
  return 0;
}
