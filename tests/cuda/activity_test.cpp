// The tracer of device activity: what was queued is what was recorded, op by op and out of a graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "cuda/cuda_case.h"
#include "io/test_files.h"
#include "observe/busy.h"
#include "ops/ops.h"
#include "train/profiler.h"
#include "train/tiny_engine.h"

namespace deltatune {
namespace {

class CudaActivity : public cuda_case::Cuda {
 protected:
  // The tracer, started; or a skip where CUPTI is not there.
  const ActivityTracer* started() {
    std::string why;
    const ActivityTracer& tracer = cuda_plugin(why)->activity;
    return tracer.start(why) ? &tracer : (reason_ = why, nullptr);
  }
  std::string reason_;
};

int64_t count_of(const ActivityTrace& trace, ActivityKind kind) {
  return std::count_if(trace.records.begin(), trace.records.end(),
                       [&](const ActivityRecord& r) { return r.kind == kind; });
}

int64_t count_of(const ActivityTrace& trace, std::string_view part_of_name) {
  return std::count_if(trace.records.begin(), trace.records.end(), [&](const ActivityRecord& r) {
    return kernel_label(trace.names[r.name]).find(part_of_name) != std::string::npos;
  });
}

// The device's clock is fitted to the host's.
constexpr int64_t clocks_agree_ns = 100000;

// The graph is made before the tracer knows of it, as in bench step.
TEST_F(CudaActivity, RecordsWhatIsQueued) {
  std::string why;
  Device& device = *cuda_case::cuda_device(why);
  const auto stream = device.make_stream("traced");
  constexpr int64_t count = 1 << 22;
  const Buffer memory = device.allocate(count * sizeof(float), "x", "activity", Lifetime::run);
  const Tensor x{memory.data(), DType::f32, {count}};
  const std::vector<float> host(1000, 1.0f);
  ops::fill(*stream, x, 3);
  stream->begin_capture();
  for (int i = 0; i < 5; ++i) ops::add(*stream, x, x);
  const Graph graph = stream->end_capture();
  stream->sync();

  for (int round = 0; round < 2; ++round) {
    const ActivityTracer* tracer = started();
    if (!tracer) GTEST_SKIP() << reason_;
    const int64_t begin = tracer->now();
    for (int i = 0; i < 3; ++i) ops::fill(*stream, x, 2);
    stream->upload({x.data, DType::f32, {1000}}, host.data());
    stream->launch(graph);
    stream->launch(graph);
    stream->sync();
    const int64_t end = tracer->now();
    const ActivityTrace trace = tracer->stop();
    EXPECT_EQ(trace.dropped, 0);
    EXPECT_EQ(count_of(trace, ActivityKind::kernel), 3 + 2 * 5) << round;
    EXPECT_EQ(count_of(trace, "fill"), 3);
    EXPECT_EQ(count_of(trace, "add"), 10);
    EXPECT_EQ(count_of(trace, ActivityKind::copy), 1);
    EXPECT_EQ(count_of(trace, "copy host to device"), 1);
    for (const ActivityRecord& r : trace.records) {
      EXPECT_GE(r.start_ns, begin - clocks_agree_ns);
      EXPECT_GT(r.end_ns, r.start_ns);
      EXPECT_LE(r.end_ns, end + clocks_agree_ns);
    }
    // One stream: nothing overlaps.
    const BusyReport busy = busy_report(trace);
    int64_t sum = 0;
    for (const BusyName& name : busy.names) sum += name.total_ns;
    EXPECT_EQ(busy.busy_ns, sum);
    // Untraced work leaves no record behind.
    ops::fill(*stream, x, 1);
    stream->sync();
  }
}

TEST_F(CudaActivity, NothingQueuedNothingRecorded) {
  const ActivityTracer* tracer = started();
  if (!tracer) GTEST_SKIP() << reason_;
  const ActivityTrace trace = tracer->stop();
  EXPECT_TRUE(trace.records.empty());
  EXPECT_EQ(trace.dropped, 0);
  EXPECT_TRUE(tracer->stop().records.empty()) << "stopped twice";
}

// Ids that are open where work is queued, and where it is captured; graphs that were captured before are
// known by their launch alone.
TEST_F(CudaActivity, JoinsWorkWithTheIdsThatWereOpen) {
  std::string why;
  Device& device = *cuda_case::cuda_device(why);
  const ActivityTracer& tracer = cuda_plugin(why)->activity;
  const auto stream = device.make_stream("joined");
  constexpr int64_t count = 1 << 16;
  const Buffer memory = device.allocate(2 * count * sizeof(float), "x", "activity", Lifetime::run);
  const Tensor x{memory.data(), DType::f32, {count}};
  const Tensor y{memory.data() + count * sizeof(float), DType::f32, {count}};
  const std::vector<float> host(1000, 1.0f);
  // A copy, a fill with a kernel, and a copy between memories of the device.
  const auto capture = [&] {
    stream->begin_capture();
    tracer.push(101);
    ops::add(*stream, x, x);
    tracer.push(102);
    ops::fill(*stream, y, 0);
    ops::fill(*stream, y, 3);
    tracer.pop();
    stream->copy(y, x);
    tracer.pop();
    return stream->end_capture();
  };
  const Graph before = capture();
  if (!tracer.start_joined(why)) GTEST_SKIP() << why;
  const Graph graph = capture();
  for (int round = 0; round < 2; ++round) {
    if (round == 1) {
      ASSERT_TRUE(tracer.start_joined(why)) << why;
    }
    tracer.push(7);
    ops::fill(*stream, x, 2);
    tracer.push(8);
    stream->upload({x.data, DType::f32, {1000}}, host.data());
    tracer.pop();
    ops::add(*stream, x, x);
    tracer.pop();
    ops::add(*stream, x, y);
    for (const uint64_t id : {9, 10}) {
      tracer.push(id);
      stream->launch(graph);
      tracer.pop();
    }
    tracer.push(11);
    stream->launch(before);
    tracer.pop();
    const ActivityTrace trace = tracer.stop();
    EXPECT_EQ(trace.dropped, 0);
    std::map<std::pair<uint64_t, uint64_t>, int> seen;
    for (const ActivityRecord& r : trace.records) ++seen[{r.queued_by, r.noted_by}];
    const std::map<std::pair<uint64_t, uint64_t>, int> expected = {
        {{0, 0}, 1},   {{7, 0}, 2},    {{8, 0}, 1},    {{9, 101}, 2},
        {{9, 102}, 2}, {{10, 101}, 2}, {{10, 102}, 2}, {{11, 0}, 4}};
    EXPECT_EQ(seen, expected) << "round " << round;
  }
}

// A whole step: every kernel, copy and fill of it has its op, op by op and in graphs.
TEST_F(CudaActivity, ProfilerNamesTheWholeStep) {
  for (const GraphMode mode : {GraphMode::never, GraphMode::automatic}) {
    EngineOptions options = tiny_options(DType::bf16, 256);
    options.graph = mode;
    options.allow_slow_kernels = true;
    options.keep = Keep::nothing();
    TinyEngine tiny(options, make_cuda_device(0));
    std::vector<Document> documents;
    for (uint32_t i = 0; i < 12; ++i) documents.push_back(random_document(100 + i, 1, 24, i));
    const TokenizedSet set = set_of(documents, 256);
    StreamOptions rows;
    rows.max_tokens = 256;
    rows.max_segments = 8;
    BatchStream stream(set, rows);
    Trainer trainer(tiny.engine, stream, Schedule{"constant", 0.01, 0, 8}, 1);
    const TempFolder folder("cuda_profile");
    Config config;
    config.profile = "trace";
    config.profile_wait = 3;  // graphs are there before anything is traced
    config.profile_active = 2;
    config.output_dir = (folder / "out").string();
    fs::create_directories(config.output_dir);
    Profiler profiler(config, tiny.engine, 8);
    for (int i = 0; i < 8; ++i) {
      profiler.before_step();
      trainer.step();
    }
    profiler.finish();
    const Profile p = Profile::from_json(json::parse_file((folder / "out/profile.json").string()));
    if (!p.missing.empty()) GTEST_SKIP() << p.missing;
    EXPECT_EQ(p.dropped, 0);
    EXPECT_EQ(p.graph, mode == GraphMode::automatic);
    EXPECT_DOUBLE_EQ(p.named_share(), 1) << "graphs: " << p.graph << ", unnamed ms " << p.unnamed_ms;
    EXPECT_GT(p.busy_ms, 0);
    EXPECT_LE(p.busy_ms, p.step_ms);
    std::map<std::string, double> calls;
    for (const ProfileOp& op : p.ops) {
      calls[op.op] += op.calls;
      EXPECT_GT(op.device_ms, 0) << op.op;
    }
    // What the CPU counts for the same step.
    TinyEngine counted(tiny_options(DType::bf16, 256));
    BatchStream again(set, rows);
    Trainer other(counted.engine, again, Schedule{"constant", 0.01, 0, 8}, 1);
    const auto before = counted.engine.stream().totals();
    other.step();
    const auto& totals = counted.engine.stream().totals();
    for (size_t i = 0; i < static_cast<size_t>(Op::count); ++i) {
      const auto of_a_step = static_cast<double>(totals[i].calls - before[i].calls);
      if (of_a_step == 0) continue;
      const std::string name = name_of(static_cast<Op>(i));
      EXPECT_DOUBLE_EQ(calls[name], of_a_step) << name;
    }
  }
}

}  // namespace
}  // namespace deltatune
