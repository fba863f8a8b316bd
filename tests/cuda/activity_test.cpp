// The tracer of device activity: what was queued is what was recorded, op by op and out of a graph.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/cuda_case.h"
#include "observe/busy.h"
#include "ops/ops.h"

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

}  // namespace
}  // namespace deltatune
