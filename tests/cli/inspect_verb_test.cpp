// inspect: the built program on the embedded demo, on traces, on files of a run and on broken files.
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/run_binary.h"
#include "observe/profile.h"

namespace deltatune {
namespace {

const std::string demo = std::string(DELTATUNE_SOURCE_DIR) + "/examples/demo";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Inspect, ConfigAndFolderOfTheDemo) {
  const ProgramResult result = run_deltatune("inspect " + demo + "/model");
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_TRUE(contains(result.out, "configuration without weights"));
  const ProgramResult json_result = run_deltatune("inspect --json " + demo + "/model/config.json");
  EXPECT_EQ(json::parse(json_result.out, "stdout").at("kind").as_string(), "config");
}

TEST(Inspect, SafetensorsFile) {
  ScratchFolder folder;
  const std::string header = R"({"model.norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  const std::string good = folder.write("a.safetensors", bytes + header + std::string(8, '\1'));
  const ProgramResult result = run_deltatune("inspect --json " + good);
  ASSERT_EQ(result.code, 0) << result.err;
  const json::Value root = json::parse(result.out, "stdout");
  EXPECT_EQ(root.at("parts").at("text").at("parameters").as_integer(), 2);
  EXPECT_EQ(root.at("tensors").as_array()[0].at("name").as_string(), "model.norm.weight");
  const std::string cut = folder.write("b.safetensors", bytes + header + "1234");
  EXPECT_EQ(run_deltatune("inspect " + cut).code, 3);
  EXPECT_EQ(run_deltatune("inspect " + (folder / "none").string()).code, 3);
}

TEST(Inspect, ProblemsGiveExitCodeThree) {
  ScratchFolder folder;
  const std::string config = folder.write("config.json", R"({"model_type": "llama"})");
  const ProgramResult result = run_deltatune("inspect " + config);
  EXPECT_EQ(result.code, 3);
  EXPECT_TRUE(contains(result.out, "llama")) << result.out;
}

// One event in a lane with a name.
std::string small_trace(const char* begin) {
  return R"({"displayTimeUnit":"ms","traceEvents":[{"ph":"M","name":"thread_name","pid":0,"tid":1,)"
         R"("args":{"name":"host"}},{"ph":"X","name":"x","pid":0,"tid":1,"dur":1500,"ts":)" +
         std::string(begin) + "}]}";
}

TEST(Inspect, TraceOfOneEvent) {
  ScratchFolder folder;
  const ProgramResult one = run_deltatune("inspect " + folder.write("one.json.gz", small_trace("1")));
  EXPECT_EQ(one.code, 0) << one.out << one.err;
  EXPECT_TRUE(contains(one.out, "trace, 1 event in 1.500 ms\n")) << one.out;
  const ProgramResult far = run_deltatune("inspect " + folder.write("far.json.gz", small_trace("1e308")));
  EXPECT_EQ(far.code, 3);
  EXPECT_TRUE(contains(far.out, "ts or dur is no time")) << far.out;
  EXPECT_FALSE(contains(far.out, "inf")) << far.out;
}

TEST(Inspect, FilesOfARunAreKnownByTheirContent) {
  ScratchFolder folder;
  const ProgramResult trace = run_deltatune("inspect " + folder.write("unpacked.json", small_trace("1")));
  EXPECT_EQ(trace.code, 0) << trace.out << trace.err;
  EXPECT_TRUE(contains(trace.out, "trace, 1 event in 1.500 ms\n")) << trace.out;
  const std::string profile = json::dump(Profile().to_json(), 2);
  const ProgramResult known = run_deltatune("inspect " + folder.write("p.json", profile));
  EXPECT_EQ(known.code, 0) << known.out << known.err;
  EXPECT_TRUE(contains(known.out, "kind        profile\n")) << known.out;
  EXPECT_TRUE(contains(known.out, "`deltatune report`")) << known.out;
  const std::string half = R"({"ops": [{"format": 2}], "format": 1})";
  const ProgramResult broken = run_deltatune("inspect " + folder.write("half.json", half));
  EXPECT_EQ(broken.code, 3);
  EXPECT_TRUE(contains(broken.out, "kind        profile\n")) << broken.out;
  // Members that lie deeper, or are texts, tell nothing.
  const std::string deep =
      R"({"a": {"traceEvents": [], "format": 1, "ops": []}, "b": "traceEvents", "c\"": "{"})";
  const ProgramResult config = run_deltatune("inspect " + folder.write("deep.json", deep));
  EXPECT_TRUE(contains(config.out, "kind        config\n")) << config.out;
  const std::string metrics = folder.write("metrics.jsonl", R"({"event": "start", "step": 0})"
                                                            "\n{\"event\": \"st");
  const ProgramResult events = run_deltatune("inspect " + metrics);
  EXPECT_EQ(events.code, 0) << events.out << events.err;
  EXPECT_TRUE(contains(events.out, "metrics of a run")) << events.out;
  EXPECT_TRUE(contains(events.out, "`deltatune advise`")) << events.out;
  const ProgramResult rows = run_deltatune("inspect " + folder.write("rows.jsonl", "{\"messages\": []}\n"));
  EXPECT_EQ(rows.code, 3);
  EXPECT_TRUE(contains(rows.err, "`deltatune data show`")) << rows.err;
}

TEST(Inspect, AFolderOfARunIsToldItsFiles) {
  ScratchFolder folder;
  std::filesystem::create_directory(folder / "trace");
  folder.write("profile.json", "{}");
  folder.write("trace/rank0000.json.gz", "");
  const ProgramResult run = run_deltatune("inspect " + (folder / "").string());
  EXPECT_EQ(run.code, 3);
  EXPECT_TRUE(contains(run.err, R"(but "profile.json", "trace/rank0000.json.gz")")) << run.err;
  const ProgramResult trace = run_deltatune("inspect " + (folder / "trace").string());
  EXPECT_EQ(trace.code, 3);
  EXPECT_TRUE(contains(trace.err, R"(but "rank0000.json.gz")")) << trace.err;
}

}  // namespace
}  // namespace deltatune
