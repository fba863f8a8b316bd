// data/jsonl, data/row_source: line ends, places in messages, arrays.
#include "data/jsonl.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/format.h"
#include "data/read_row.h"
#include "data/row_source.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

using testing_data::read_row;

std::vector<JsonlLine> lines_of(std::string_view text) {
  std::vector<JsonlLine> out;
  JsonlLines lines(text);
  for (JsonlLine line; lines.next(line);) out.push_back(line);
  return out;
}

RowError error_of(std::string_view text) {
  const std::vector<JsonlLine> lines = lines_of(text);
  try {
    parse_line(lines.back());
  } catch (const RowError& e) {
    return e;
  }
  ADD_FAILURE() << "accepted: " << text;
  return RowError(RowProblem::refused, "", "", "");
}

std::string numbers_of(const fs::path& path, BlockSize block = {}) {
  std::string out;
  visit_file(
      path,
      [&](const std::vector<RawRow>& rows) {
        for (const RawRow& row : rows) out += format("{}:{} ", row.number, json::dump(row.parse()));
        out += "| ";
        return true;
      },
      block);
  return out;
}

TEST(Jsonl, SplitsLines) {
  const auto lines = lines_of("\xEF\xBB\xBF{\"a\":1}\r\n\n \t\r\n  {\"b\":2} \r\n{\"c\":3}");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].text, "{\"a\":1}");
  EXPECT_EQ(lines[0].number, 1);
  EXPECT_EQ(lines[0].offset, 3u);
  EXPECT_EQ(lines[1].text, "{\"b\":2}");
  EXPECT_EQ(lines[1].number, 4);
  EXPECT_EQ(lines[2].text, "{\"c\":3}");
  EXPECT_EQ(lines[2].number, 5);
  EXPECT_TRUE(lines_of("").empty());
  EXPECT_TRUE(lines_of("\n\r\n").empty());
}

TEST(Jsonl, LongLines) {
  const std::string row = "{\"a\": \"" + std::string(size_t{3} << 20, 'x') + "\"}";
  const std::string text = row + "\n" + row;
  const auto lines = lines_of(text);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(parse_line(lines[1]).at("a").as_string().size(), size_t{3} << 20);
}

TEST(Jsonl, NamesTheByteOfInvalidUtf8) {
  // Overlong, surrogate, above U+10FFFF, lone continuation, cut at the end of the line.
  for (const char* bytes : {"\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80",
                            "\xE2\x82", "\xF0\x9F\x98", "\xFF"}) {
    const RowError e = error_of(std::string("{}\n{\"a\": \"") + bytes + "\"}");
    EXPECT_EQ(e.problem(), RowProblem::invalid_utf8);
    EXPECT_EQ(e.where(), "byte 10 of the file");
  }
  for (const char* good :
       {"\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_NO_THROW(parse_line(lines_of(std::string("{\"a\": \"") + good + "\"}")[0]));
  }
}

TEST(Jsonl, NamesTheColumnOfBadJson) {
  const RowError e = error_of("{}\n{\"a\": tru}");
  EXPECT_EQ(e.problem(), RowProblem::malformed_json);
  EXPECT_EQ(e.where(), "column 10");
  for (const char* text : {"{\"a\":1,\"a\":2}", "{\"a\": \"\\ud800\"}", "{", "{} {}", "nan"}) {
    EXPECT_EQ(error_of(text).problem(), RowProblem::malformed_json) << text;
  }
  EXPECT_EQ(error_of("7").problem(), RowProblem::not_an_object);
  EXPECT_NO_THROW(parse_line(lines_of("{\"a\": \"\\ud83d\\ude00\"}")[0]));
}

TEST(Jsonl, SaysWhatMostLikelyHappenedToTheFile) {
  const RowError zeros = error_of(std::string("{\"a\": 1}\n{\"b\": \0\0}", 19));
  EXPECT_NE(std::string(zeros.what()).find("bytes of value 0"), std::string::npos) << zeros.text();
  EXPECT_EQ(zeros.where(), "byte 15 of the file");
  EXPECT_NE(zeros.fix().find("copy the file again"), std::string::npos);
  const RowError mac = error_of("{\"a\": 1}\r{\"b\": 2}\r");
  EXPECT_NE(std::string(mac.what()).find("carriage returns"), std::string::npos) << mac.text();
  EXPECT_NE(mac.fix().find("tr '\\r' '\\n'"), std::string::npos) << mac.fix();
}

TEST(RowSource, LinesArraysAndBlocks) {
  const ScratchFolder folder;
  EXPECT_EQ(numbers_of(folder.write("a.jsonl", "{}\n\n{\"x\":1}\n")), "1:{} 3:{\"x\": 1} | ");
  EXPECT_EQ(numbers_of(folder.write("b.json", "\xEF\xBB\xBF [{},\n {\"x\":1}]")), "1:{} 2:{\"x\": 1} | ");
  EXPECT_EQ(numbers_of(folder.write("c.json", "{\n\"sequences\": [{}]}")), "1:{} | ");
  EXPECT_EQ(numbers_of(folder.write("d.json", "{\"data\": [{}]}")), "1:{} | ");
  EXPECT_EQ(numbers_of(folder.write("e.json", "{\"x\":1}\n{\"y\":2}")), "1:{\"x\": 1} 2:{\"y\": 2} | ");
  EXPECT_EQ(numbers_of(folder.write("f.json", "{\"messages\": [], \"data\": []}")),
            "1:{\"messages\": [], \"data\": []} | ");
  EXPECT_EQ(numbers_of(folder.write("g.jsonl", "{}\n{}\n{}\n{}\n{}"), {2, 1000}),
            "1:{} 2:{} | 3:{} 4:{} | 5:{} | ");
  EXPECT_EQ(numbers_of(folder.write("h.jsonl", "{}\n{}\n{}"), {100, 4}), "1:{} 2:{} | 3:{} | ");
  EXPECT_EQ(numbers_of(folder.write("i.json", "[{},{},{}]"), {2, 1000}), "1:{} 2:{} | 3:{} | ");
}

TEST(RowSource, RefusesFilesWithoutRows) {
  const ScratchFolder folder;
  for (const char* text : {"", "\n\n", "\xEF\xBB\xBF"}) {
    EXPECT_THROW(numbers_of(folder.write("a.jsonl", text)), Error) << text;
    EXPECT_THROW(numbers_of(folder.write("a.json", text)), Error) << text;
  }
  for (const char* text : {"[]", "{\"sequences\": []}", "{\n\"x\": 1}", "[1, 2", "[3]"}) {
    EXPECT_THROW(numbers_of(folder.write("b.json", text)), Error) << text;
  }
  const std::string utf16("\xFF\xFE{\0}\0", 6);
  try {
    numbers_of(folder.write("c.jsonl", utf16));
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("UTF-16"), std::string::npos);
  }
  EXPECT_THROW(numbers_of(folder.path() / "absent.jsonl"), Error);
  EXPECT_THROW(numbers_of(folder.path()), Error);
}

TEST(RowSource, ReadsOneRow) {
  const ScratchFolder folder;
  const std::vector<fs::path> files = {folder.write("a.jsonl", "{\"n\":0}\n\n{bad\n"),
                                       folder.write("b.json", "[{\"n\":2},{\"n\":3}]")};
  std::string file;
  int64_t line = 0;
  EXPECT_EQ(read_row(files, 0, file, line).at("n").as_integer(), 0);
  EXPECT_EQ(read_row(files, 3, file, line).at("n").as_integer(), 3);
  EXPECT_EQ(file, files[1].string());
  EXPECT_EQ(line, 2);
  EXPECT_THROW(read_row(files, 4, file, line), Error);
  EXPECT_THROW(read_row(files, -1, file, line), Error);
  try {
    read_row(files, 1, file, line);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.where().rfind(files[0].string() + ", line 3", 0), 0u) << e.text();
  }
}

}  // namespace
}  // namespace deltatune
