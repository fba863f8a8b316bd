// data/decompress and compressed rows: several members, every cut, every flipped byte, bombs, line numbers.
#include "data/decompress.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"
#include "data/dataset.h"
#include "data/row_source.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// With a checksum, as the zstd program writes it.
std::string zstd(std::string_view text, int window_log = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  // Without the size in the header the window is what it is set to.
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, window_log == 0);
  if (window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  std::string out(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_outBuffer target{out.data(), out.size(), 0};
  ZSTD_inBuffer source{text.data(), text.size(), 0};
  if (window_log > 0) ZSTD_compressStream2(context, &target, &source, ZSTD_e_flush);
  EXPECT_EQ(ZSTD_compressStream2(context, &target, &source, ZSTD_e_end), 0u);
  ZSTD_freeCCtx(context);
  out.resize(target.pos);
  return out;
}

using Compress = std::string (*)(std::string_view);
const std::vector<Compress> both = {gzip, [](std::string_view text) { return zstd(text); }};

// Bytes in pieces of 8 and then of `size`.
class SmallPieces final : public ByteStream {
 public:
  SmallPieces(std::string_view bytes, size_t size) : bytes_(bytes), total_(bytes.size()), size_(size) {}
  uint64_t size() const override { return total_; }
  std::string_view next() override {
    const size_t count = bytes_.size() == total_ ? std::max<size_t>(8, size_) : size_;
    const std::string_view out = bytes_.substr(0, count);
    bytes_.remove_prefix(out.size());
    return out;
  }

 private:
  std::string_view bytes_;
  size_t total_;
  size_t size_;
};

std::string plain_of(std::string_view bytes, size_t piece = 1000, size_t piece_in = std::string::npos) {
  SmallPieces pieces(bytes, piece_in);
  Decompressor source(pieces, "f");
  std::string out;
  std::string buffer(piece, '\0');
  for (;;) {
    const size_t count = source.read(buffer);
    if (count == 0) return out;
    EXPECT_LE(count, piece);
    out.append(buffer, 0, count);
  }
}

// The error of reading all of `bytes`, or nothing when they are accepted.
std::string refusal(std::string_view bytes) {
  try {
    plain_of(bytes);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::data);
    EXPECT_EQ(e.where().rfind("f, byte ", 0), 0u) << e.where();
    EXPECT_FALSE(e.fix().empty());
    return e.what();
  }
  return "";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string random_text(size_t size) {
  Rng rng(7, 1);
  std::string out;
  while (out.size() < size) out += format("{} ", static_cast<int>(rng.uniform() * 1000));
  return out;
}

std::string rows_of(std::string_view bytes, const std::string& name, BlockSize block = {}) {
  std::string out;
  visit_bytes(
      bytes, name,
      [&](const std::vector<RawRow>& rows) {
        for (const RawRow& row : rows) out += format("{}:{} ", row.number, json::dump(row.parse()));
        return true;
      },
      block);
  return out;
}

std::string rows_refusal(std::string_view bytes, const std::string& name, BlockSize block = {}) {
  try {
    rows_of(bytes, name, block);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::data);
    EXPECT_FALSE(e.fix().empty());
    return e.text();
  }
  return "";
}

TEST(Decompress, PiecesOfTheFileMayBeOfAnySize) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += std::to_string(i * i % 977) + " ";
  for (const Compress compress : both) {
    const std::string twice = compress(text.substr(0, 5000)) + compress(text.substr(5000));
    for (const size_t piece : {1u, 3u, 8u, 1000u}) EXPECT_EQ(plain_of(twice, 1000, piece), text) << piece;
  }
  EXPECT_EQ(plain_of(gzip(text) + std::string(100, '\0'), 1000, 7), text) << "padding";
  EXPECT_EQ(plain_of("no magic number here", 6, 5), "no magic number here");
}

TEST(Decompress, KnowsFormatsByTheirFirstBytes) {
  EXPECT_EQ(compression_of(gzip("a")), Compression::gzip);
  EXPECT_EQ(compression_of(zstd("a")), Compression::zstd);
  EXPECT_EQ(compression_of("\x5A\x2A\x4D\x18"), Compression::zstd);
  for (const char* text : {"", "\x1F", "{}", "\x28\xB5\x2F", "\x4A\x2A\x4D\x18"}) {
    EXPECT_EQ(compression_of(text), Compression::none) << text;
  }
  EXPECT_EQ(plain_of("{}"), "{}");
  EXPECT_EQ(plain_of(""), "");
}

TEST(Decompress, AnySizeInAnyPieces) {
  for (const Compress compress : both) {
    for (const size_t size :
         {size_t{0}, size_t{1}, size_t{999}, size_t{1000}, size_t{1001}, size_t{300000}}) {
      const std::string text = random_text(size).substr(0, size);
      for (const size_t piece : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
        EXPECT_TRUE(plain_of(compress(text), piece) == text) << size << " in pieces of " << piece;
      }
    }
  }
}

TEST(Decompress, SeveralMembersOrFrames) {
  const std::string skippable("\x50\x2A\x4D\x18\x03\0\0\0abc", 11);
  EXPECT_EQ(plain_of(gzip("one") + gzip("") + gzip("two") + std::string(512, '\0')), "onetwo");
  EXPECT_EQ(plain_of(skippable + zstd("one") + zstd("") + skippable + zstd("two")), "onetwo");
  EXPECT_EQ(plain_of(skippable), "");
  EXPECT_TRUE(has(refusal(gzip("one") + "two"), "something other than gzip follows"));
  EXPECT_TRUE(has(refusal(gzip("one") + std::string(3, '\0') + "two"), "something other than gzip follows"));
  EXPECT_TRUE(has(refusal(zstd("one") + "something"), "something other than zstd follows"));
}

TEST(Decompress, RefusesEveryCut) {
  const std::string text = random_text(700);
  const std::vector<std::string> wholes = {gzip(text) + gzip("b"), zstd(text) + zstd("b")};
  const std::vector<size_t> firsts = {gzip(text).size(), zstd(text).size()};
  for (size_t format = 0; format < wholes.size(); ++format) {
    for (size_t size = 4; size < wholes[format].size(); ++size) {
      const std::string what = refusal(wholes[format].substr(0, size));
      EXPECT_EQ(has(what, "cut off"), size != firsts[format]) << what << " at " << size;
    }
  }
}

TEST(Decompress, RefusesFlippedBytes) {
  const std::string text = random_text(700);
  for (const Compress compress : both) {
    const std::string whole = compress(text);
    int refused = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      std::string bad = whole;
      bad[i] = static_cast<char>(bad[i] ^ 0x21);
      try {
        // Only bytes of a header may be indifferent, and then the text is the same.
        EXPECT_TRUE(plain_of(bad) == text || compression_of(bad) == Compression::none) << "byte " << i;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::data);
        ++refused;
      }
    }
    EXPECT_GT(refused, static_cast<int>(whole.size()) - 16);
  }
}

TEST(Decompress, BoundsTheWindow) {
  EXPECT_EQ(plain_of(zstd("abc", 27)), "abc");
  EXPECT_TRUE(has(refusal(zstd("abc", 28)), "window above 128 MiB"));
}

TEST(CompressedRows, LinesKeepTheirNumbers) {
  for (const Compress compress : both) {
    const std::string text = "\xEF\xBB\xBF{\"a\":1}\r\n\n{\"b\":2}\n \n\n{\"c\":3}";
    const std::string expected = "1:{\"a\": 1} 3:{\"b\": 2} 6:{\"c\": 3} ";
    for (const size_t bytes : {size_t{1}, size_t{2}, size_t{7}, size_t{11}, size_t{1000}}) {
      for (const size_t rows : {size_t{1}, size_t{2}, size_t{100}}) {
        EXPECT_EQ(rows_of(compress(text), "a.jsonl", {rows, bytes}), expected) << bytes;
      }
    }
    // A member may end inside a line.
    EXPECT_EQ(rows_of(compress(text.substr(0, 6)) + compress(text.substr(6)), "a.jsonl.gz"), expected);
  }
}

TEST(CompressedRows, BadRowsAreNamedByLineAndByte) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "{}\n";
  const std::string bytes = gzip(text + "{\"a\": \"\xFF\"}\n");
  const std::string error = rows_refusal(bytes, "a.jsonl", {10, 16});
  EXPECT_TRUE(has(error, "byte 307 of the file")) << error;

  DatasetOptions options;
  options.vocab_size = 10;
  const ScratchFolder folder;
  const std::string path =
      folder.write("a.jsonl.zst", zstd("{\"input_ids\":[1,2],\"labels\":[1,2]}\n\n{bad\n"));
  try {
    load_dataset({path}, options, {});
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.where().rfind(path + ", line 3", 0), 0u) << e.text();
  }
}

TEST(CompressedRows, ArraysAndLinesUnderJson) {
  for (const Compress compress : both) {
    EXPECT_EQ(rows_of(compress("\xEF\xBB\xBF\n [{},\n {\"x\":1}]"), "a.json.gz"), "1:{} 2:{\"x\": 1} ");
    EXPECT_EQ(rows_of(compress("{\n\"sequences\": [{}]}"), "a.json"), "1:{} ");
    EXPECT_EQ(rows_of(compress("{\"data\": [{}]}\n"), "a.json.zst"), "1:{} ");
    EXPECT_EQ(rows_of(compress("{\"x\":1}\n\n{\"y\":2}"), "a.json.gz"), "1:{\"x\": 1} 3:{\"y\": 2} ");
    EXPECT_TRUE(has(rows_refusal(compress("[1, 2"), "a.json.gz"), "a.json.gz"));
    for (const char* nothing : {"", "\n\n", "[]"}) {
      EXPECT_TRUE(has(rows_refusal(compress(nothing), "a.json.gz"), "no rows")) << nothing;
    }
    EXPECT_TRUE(has(rows_refusal(compress(""), "a.jsonl.gz"), "no rows"));
  }
  // A name that promises compression is not believed.
  EXPECT_EQ(rows_of("{}\n", "a.jsonl.gz"), "1:{} ");
  EXPECT_EQ(rows_of("[{}]", "a.json.zst"), "1:{} ");
}

TEST(CompressedRows, NamesOtherFormats) {
  EXPECT_TRUE(has(rows_refusal("PK\x03\x04", "a.jsonl.gz"), "zip"));
  EXPECT_TRUE(has(rows_refusal(gzip("\xFF\xFE{"), "a.jsonl"), "UTF-16"));
  EXPECT_TRUE(has(rows_refusal(gzip(zstd("{}")), "a.jsonl"), "compressed twice"));
}

TEST(CompressedRows, BombsAreStopped) {
  BlockSize block;
  block.longest_line = size_t{1} << 20;
  block.longest_document = size_t{2} << 20;
  const std::string zeros(size_t{64} << 20, '0');
  for (const Compress compress : both) {
    const std::string bomb = compress("{}\n{}\n" + zeros);
    ASSERT_LT(bomb.size(), size_t{1} << 20);
    const std::string lines = rows_refusal(bomb, "a.jsonl", block);
    EXPECT_TRUE(has(lines, "the line is longer than 1048576 bytes")) << lines;
    EXPECT_TRUE(has(lines, "a.jsonl, line 3")) << lines;
    EXPECT_TRUE(has(rows_refusal(compress("[" + zeros), "a.json", block), "the document is longer than"));
    EXPECT_TRUE(has(rows_refusal(compress("{" + zeros), "a.json", block), "the first row is longer than"));
    // As long as allowed.
    const std::string row = "{\"a\": \"" + std::string((size_t{1} << 20) - 9, 'x') + "\"}";
    ASSERT_EQ(row.size(), block.longest_line);
    EXPECT_GT(rows_of(compress(row + "\n" + row), "a.jsonl", block).size(), 2 * row.size());
  }
}

TEST(CompressedRows, SameRowsSameFingerprint) {
  const ScratchFolder folder;
  const std::string text =
      "{\"input_ids\":[1,2],\"labels\":[1,2]}\n{\"input_ids\":[3,4,5],\"labels\":[-100,4,5]}\n";
  DatasetOptions options;
  options.vocab_size = 10;
  const auto fingerprint = [&](const std::string& name, std::string_view bytes) {
    return load_dataset({folder.write(name, bytes)}, options, {}).fingerprint();
  };
  const std::string plain = fingerprint("a.jsonl", text);
  EXPECT_EQ(fingerprint("b.jsonl.gz", gzip(text)), plain);
  EXPECT_EQ(fingerprint("c.jsonl.zst", zstd(text)), plain);
  EXPECT_NE(fingerprint("d.jsonl.zst", zstd(text.substr(0, text.find('\n')))), plain);
}

}  // namespace
}  // namespace deltatune
