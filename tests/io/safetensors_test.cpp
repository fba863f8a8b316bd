// One safetensors file: every way in which it can be wrong, and writing it back.
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"
#include "io/safetensors_head.h"
#include "io/test_files.h"

namespace deltatune {
namespace {

// The message of the Error{model} that parsing throws; "" when it parses.
std::string problem_of(std::string_view file) {
  try {
    parse_safetensors(file, "f");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::model);
    EXPECT_FALSE(e.where().empty());
    EXPECT_FALSE(e.fix().empty());
    return e.what();
  }
  return "";
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

TEST(Safetensors, ReadsNamesDtypesShapesAndMetadata) {
  const std::string file = safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"I64","shape":[0,3],"data_offsets":[4,4]}}  )",
      "01234567");
  const SafetensorsHeader header = parse_safetensors(file, "f");
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "b");
  EXPECT_EQ(header.tensors[0].dtype, "BF16");
  EXPECT_EQ(header.tensors[0].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(header.tensors[0].begin, 4u);
  EXPECT_EQ(header.tensors[0].size, 4u);
  ASSERT_EQ(header.metadata.size(), 1u);
  EXPECT_EQ(header.metadata[0].second, "pt");
  const auto order = in_data_order(header.tensors);
  EXPECT_EQ(order[0]->name, "a");
  EXPECT_EQ(order[1]->name, "e");
  EXPECT_EQ(order[2]->name, "b");
}

TEST(Safetensors, HeaderTooSmallOrTooLargePrintsSizes) {
  EXPECT_TRUE(has(problem_of("12345"), "header too small: the file has 5 bytes"));
  EXPECT_TRUE(has(problem_of(std::string("\x09\0\0\0\0\0\0\0{}", 10)),
                  "header too large: it claims 9 bytes, the file has 10"));
  EXPECT_TRUE(has(problem_of(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)),
                  "claims 18446744073709551615 bytes, the limit is 100000000"));
  EXPECT_TRUE(has(problem_of(std::string("\0\0\0\0\0\0\0\0{}", 10)), "does not start"));
  EXPECT_TRUE(
      has(problem_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "Git LFS pointer"));
}

TEST(Safetensors, DataMustBeCoveredExactly) {
  const auto with = [](std::string_view a, std::string_view b, size_t data) {
    return problem_of(safetensors_bytes(
        format(
            R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[{}]}},"b":{{"dtype":"U8","shape":[4],"data_offsets":[{}]}}}})",
            a, b),
        std::string(data, 'x')));
  };
  EXPECT_EQ(with("0,4", "4,8", 8), "");
  EXPECT_EQ(with("4,8", "0,4", 8), "");
  EXPECT_TRUE(has(with("0,4", "4,8", 7), "incomplete: the header describes 8 bytes of data, the file has 7"));
  EXPECT_TRUE(has(with("0,4", "4,8", 9), "1 bytes after the last tensor"));
  EXPECT_TRUE(has(with("0,4", "5,9", 9), "gap"));
  EXPECT_TRUE(has(with("1,5", "5,9", 9), "leaving a gap after the end of the header"));
  EXPECT_TRUE(has(with("0,4", "3,7", 7), "overlapping"));
  EXPECT_TRUE(has(with("0,4", "0,4", 4), "overlapping"));
  EXPECT_TRUE(has(with("0,4", "8,4", 8), "backwards"));
  EXPECT_TRUE(has(with("-4,0", "0,4", 4), "negative"));
  EXPECT_TRUE(has(with("0,4,8", "4,8", 8), "3 entries"));
  EXPECT_TRUE(has(with("0,4", "4,99999999999999999999", 8), "integer"));
  EXPECT_TRUE(has(with("0,5", "5,9", 9), "takes 4 bytes"));
  EXPECT_EQ(problem_of(safetensors_bytes("{}", "")), "");
  EXPECT_TRUE(has(problem_of(safetensors_bytes("{}", "x")), "1 bytes after"));
}

TEST(Safetensors, BadEntriesNameTheTensor) {
  const auto entry = [](std::string_view text, size_t data = 4) {
    return problem_of(safetensors_bytes(format(R"({{"the.name":{}}})", text), std::string(data, 'x')));
  };
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "");
  for (const char* bad :
       {R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})",
        R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[9223372036854775807,9223372036854775807,0],"data_offsets":[0,0]})",
        R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})", R"({"dtype":"F32","shape":[1]})",
        R"({"shape":[1],"data_offsets":[0,4]})", R"({"dtype":"F32","data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"stride":[1]})", R"([])", R"("x")", "null"}) {
    EXPECT_TRUE(has(entry(bad), "\"the.name\"")) << bad << " -> " << entry(bad);
  }
}

TEST(Safetensors, BadHeadersAreRefused) {
  EXPECT_TRUE(has(
      problem_of(safetensors_bytes(
          R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
          "")),
      "duplicate key \"a\""));
  EXPECT_TRUE(has(problem_of(safetensors_bytes(
                      R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "")),
                  "duplicate key"));
  EXPECT_TRUE(has(problem_of(safetensors_bytes(R"({"__metadata__":{"x":1}})", "")), "__metadata__"));
  EXPECT_TRUE(has(problem_of(safetensors_bytes(R"({"__metadata__":"x"})", "")), "__metadata__"));
  EXPECT_TRUE(
      has(problem_of(safetensors_bytes(R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "")),
          "empty name"));
  EXPECT_TRUE(has(
      problem_of(safetensors_bytes(R"({"a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "")),
      "control character"));
  EXPECT_TRUE(has(problem_of(safetensors_bytes(
                      std::string("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"), "")),
                  "header"));
  EXPECT_TRUE(has(problem_of(safetensors_bytes(std::string("{}\0abc", 6), "")), "NUL"));
  EXPECT_TRUE(has(problem_of(safetensors_bytes("{} {}", "")), "header"));
  EXPECT_TRUE(has(problem_of(safetensors_bytes("{" + std::string(5000, ' '), "")), "header"));
  std::string deep = "{\"a\":";
  deep += std::string(100000, '[');
  EXPECT_TRUE(has(problem_of(safetensors_bytes(deep, "")), "deeper"));
  const std::string name(5000, 'n');
  EXPECT_TRUE(has(problem_of(safetensors_bytes(
                      "{\"" + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "")),
                  "5000 bytes"));
  std::string many = R"({"a":{"dtype":"U8","shape":[0)";
  for (int i = 0; i < 4'000'001; ++i) many += ",0";
  EXPECT_TRUE(has(problem_of(safetensors_bytes(many + R"(],"data_offsets":[0,0]}})", "")),
                  "more than 4000000 values"));
}

TEST(Safetensors, AllDtypesHaveTheirSize) {
  const std::vector<std::pair<std::string, size_t>> sizes{
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [dtype, bytes_of_8] : sizes) {
    EXPECT_EQ(problem_of(safetensors_bytes(
                  format(R"({{"t":{{"dtype":"{}","shape":[8],"data_offsets":[0,{}]}}}})", dtype, bytes_of_8),
                  std::string(bytes_of_8, 'x'))),
              "")
        << dtype;
    const std::optional<DType> known = dtype_from_safetensors(dtype);
    if (known) {
      EXPECT_EQ(safetensors_name(*known), dtype);
      EXPECT_EQ(size_of(*known) * 8, bytes_of_8);
    }
  }
}

TEST(Safetensors, TruncatedAtEveryByteAndFlippedBitsNeverCrash) {
  const std::string good = safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}} )",
      std::string(22, 'd'));
  ASSERT_EQ(problem_of(good), "");
  for (size_t n = 0; n < good.size(); ++n) EXPECT_NE(problem_of(good.substr(0, n)), "") << n;
  Rng rng(7);
  int parsed = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string bad = good;
    for (uint64_t flips = 1 + rng.below(4); flips > 0; --flips) {
      bad[rng.below(bad.size())] ^= static_cast<char>(1 << rng.below(8));
    }
    parsed += problem_of(bad).empty();
  }
  // Flips inside the data, the names and the metadata leave a valid file.
  EXPECT_GT(parsed, 100);
  EXPECT_LT(parsed, 9000);
}

TEST(SafetensorsFile, MissingFolderAndPipeAreModelErrors) {
  const TempFolder dir("st_missing");
  for (const fs::path& path : {dir / "absent.safetensors", dir.path()}) {
    try {
      SafetensorsFile file(path);
      FAIL() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::model);
      EXPECT_TRUE(has(e.text(), path.string()));
    }
  }
}

TEST(SafetensorsHead, IsReadBackAndAlignsTheData) {
  const TempFolder dir("st_head");
  const std::vector<PlannedTensor> plan{{"z", "BF16", {2, 3}},
                                        {"a \"quoted\" \xc3\xa9", "F8_E4M3", {5}},
                                        {"empty", "F32", {0}},
                                        {"s", "F64", {}}};
  std::string data;
  for (int i = 0; i < 12 + 5 + 8; ++i) data += static_cast<char>(i * 11);
  const std::string head = safetensors_head(place_tensors(plan), {{"format", "pt"}, {"note", "a\nb"}});
  write_text(dir / "x.safetensors", head + data);

  const SafetensorsFile file(dir / "x.safetensors");
  EXPECT_EQ(file.header().data_begin, head.size());
  EXPECT_EQ(head.size() % 8, 0u);
  EXPECT_EQ(file.header().metadata, (Metadata{{"format", "pt"}, {"note", "a\nb"}}));
  ASSERT_EQ(file.tensors().size(), 4u);
  for (size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(file.tensors()[i].name, plan[i].name);
    EXPECT_EQ(file.tensors()[i].dtype, plan[i].dtype);
    EXPECT_EQ(file.tensors()[i].shape, plan[i].shape);
  }
  const auto bytes = file.bytes(*file.find("s"));
  EXPECT_EQ(std::memcmp(bytes.data(), data.data() + 17, 8), 0);
  EXPECT_EQ(file.find("absent"), nullptr);
}

}  // namespace
}  // namespace deltatune
