// Profiles out of made-up events and records: who claims what, per step, gaps with the host's work, the CPU's
// times, tables and the file's form.
#include "observe/profile.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "observe/profile_table.h"

namespace deltatune {
namespace {

TraceEvent event(uint64_t id, const char* name, int64_t begin, int64_t end, TraceKind kind = TraceKind::op,
                 TracePhase phase = TracePhase::forward) {
  TraceEvent e;
  e.id = id;
  e.name = name;
  e.begin_ns = begin;
  e.end_ns = end;
  e.kind = kind;
  e.phase = phase;
  e.kernel = kind == TraceKind::op ? "fast" : "";
  return e;
}

TraceEvent sized(TraceEvent e, double bytes, double flops, int64_t rows) {
  e.bytes = bytes;
  e.flops = flops;
  e.shape.dtype = "bf16";
  e.shape.rank = 2;
  e.shape.d[0] = rows;
  e.shape.d[1] = 8;
  return e;
}

ActivityRecord kernel(int64_t start, int64_t end, uint32_t correlation, uint64_t queued_by,
                      uint64_t noted_by = 0) {
  return {start, end, 0, correlation, 7, ActivityKind::kernel, queued_by, noted_by};
}

uint64_t captured(uint64_t n) {
  return TraceBuffer::captured | n;
}

const ProfileOp& find(const Profile& p, const std::string& name) {
  for (const ProfileOp& op : p.ops) {
    if (op.op == name) return op;
  }
  throw Error(ErrorKind::internal, "no op " + name, "test");
}

// Two steps of 1 ms: "a" is queued by the host, "b" and "c" are parts of a graph that runs once a step; a
// kernel of the step before reaches into the window, and one has no op.
ProfileInput two_steps() {
  ProfileInput in;
  in.device = "made up";
  in.gpu = true;
  in.gemm_tflops = 1;
  in.copy_gb_s = 1000;
  in.untraced_ms = 0.98;
  in.untraced = 4;
  in.captured = {sized(event(captured(1), "b", 1, 2, TraceKind::op, TracePhase::backward), 2e8, 1e8, 4),
                 event(captured(2), "c", 3, 4, TraceKind::op, TracePhase::update)};
  ProfileWindow& w = in.windows.emplace_back();
  w.begin_ns = 1'000'000;
  w.end_ns = 3'000'000;
  w.steps = 2;
  w.marked_s = 0.0021;
  for (int64_t step = 0; step < 2; ++step) {
    const uint64_t id = 10 + 4 * static_cast<uint64_t>(step);
    const int64_t t = 1'000'000 + step * 1'000'000;
    const auto correlation = static_cast<uint32_t>(10 * step);
    w.events.push_back(event(id, "step", t, t + 990'000, TraceKind::span));
    w.events.push_back(sized(event(id + 1, "a", t + 100'000, t + 110'000), 1e8, 0, 2));
    w.events.push_back(event(id + 2, "forward", t + 120'000, t + 130'000, TraceKind::launch));
    w.events.push_back(event(id + 3, "wait for the device", t + 200'000, t + 900'000, TraceKind::wait));
    w.activity.records.push_back(kernel(t + 150'000, t + 350'000, correlation + 1, id + 1));
    w.activity.records.push_back(kernel(t + 400'000, t + 700'000, correlation + 2, id + 2, captured(1)));
    w.activity.records.push_back(kernel(t + 700'000, t + 800'000, correlation + 2, id + 2, captured(1)));
    w.activity.records.push_back(kernel(t + 800'000, t + 900'000, correlation + 2, id + 2, captured(2)));
    // A launch's kernel that was not noted.
    w.activity.records.push_back(kernel(t + 900'000, t + 920'000, correlation + 2, id + 2));
  }
  w.activity.records.push_back(kernel(950'000, 1'050'000, 99, 3));
  w.activity.names = {"k"};
  return in;
}

TEST(Profile, RecordsGoToTheOpsThatQueuedOrCapturedThem) {
  const Profile p = make_profile(two_steps());
  EXPECT_EQ(p.steps, 2);
  EXPECT_DOUBLE_EQ(p.step_ms, 1);
  EXPECT_DOUBLE_EQ(p.marked_ms, 1.05);
  EXPECT_DOUBLE_EQ(p.span_ms, (2.92 - 1.05) / 2);
  const ProfileOp& a = find(p, "a");
  EXPECT_DOUBLE_EQ(a.calls, 1);
  EXPECT_DOUBLE_EQ(a.device_ms, 0.2);
  EXPECT_DOUBLE_EQ(a.device_us(), 200);
  EXPECT_DOUBLE_EQ(a.host_us, 10);
  EXPECT_EQ(a.shape, "bf16 [2, 8]");
  EXPECT_EQ(a.phase, "forward");
  EXPECT_DOUBLE_EQ(a.gb_s(), 500);
  EXPECT_DOUBLE_EQ(a.roofline(p.gemm_tflops, p.copy_gb_s).value(), 0.5);
  const ProfileOp& b = find(p, "b");
  EXPECT_DOUBLE_EQ(b.calls, 1) << "two kernels of one call";
  EXPECT_DOUBLE_EQ(b.queued, 0);
  EXPECT_DOUBLE_EQ(b.device_ms, 0.4);
  EXPECT_DOUBLE_EQ(b.flops, 1e8);
  EXPECT_DOUBLE_EQ(b.tflop_s(), 0.25);
  EXPECT_DOUBLE_EQ(find(p, "c").device_ms, 0.1);
  EXPECT_FALSE(find(p, "c").roofline(1, 1).has_value()) << "no cost";
  EXPECT_EQ(p.ops.front().op, "b");
  EXPECT_DOUBLE_EQ(p.unnamed_ms, 0.02);
  EXPECT_NEAR(p.named_share(), 0.7 / 0.72, 1e-12);
  EXPECT_DOUBLE_EQ(p.launches, 2) << "one call and one graph a step";
  EXPECT_DOUBLE_EQ(p.kernels, 5);
  EXPECT_TRUE(p.graph);
}

TEST(Profile, IdleTimeIsTheWindowsAndSaysWhatTheHostDid) {
  const Profile p = make_profile(two_steps());
  // 0.05 of the step before; per step 0.2 + 0.52.
  EXPECT_DOUBLE_EQ(p.busy_ms, (0.05 + 2 * 0.72) / 2);
  EXPECT_DOUBLE_EQ(p.idle_ms, 1 - p.busy_ms);
  ASSERT_GE(p.gaps.size(), 3U);
  // From 920 us of the first step to 150 us of the second: 60 us inside of step, 10 us between the two ...
  EXPECT_DOUBLE_EQ(p.gaps[0].us, 230);
  EXPECT_DOUBLE_EQ(p.gaps[0].at_us, 920);
  EXPECT_EQ(p.gaps[0].host, "in step");
  EXPECT_EQ(p.gaps[0].after, "k");
  // Between the two parts of each step the host waits: 50 us each that are not the host's fault.
  const double all = 0.1 + 0.05 + 0.23 + 0.05 + 0.08;
  EXPECT_NEAR(p.host_bound_ms, (all - 0.1) / 2, 1e-9);
  EXPECT_DOUBLE_EQ(p.host_wait_ms, 0.7);
}

TEST(Profile, WithoutRecordsThereAreHostTimesOnly) {
  ProfileInput in = two_steps();
  in.missing = "no CUPTI";
  in.windows[0].activity = {};
  const Profile p = make_profile(in);
  EXPECT_DOUBLE_EQ(find(p, "a").host_us, 10);
  EXPECT_EQ(p.named_ms(), 0);
  EXPECT_EQ(p.idle_ms, 0);
  const std::string text = profile_text(p, {});
  EXPECT_NE(text.find("no device times: no CUPTI"), std::string::npos) << text;
}

TEST(Profile, OnTheCpuAnOpTakesTheTimeInWhichItRan) {
  ProfileInput in;
  in.device = "cpu";
  ProfileWindow& w = in.windows.emplace_back();
  w.begin_ns = 0;
  w.end_ns = 10'000'000;
  w.steps = 1;
  w.events = {event(5, "step", 100'000, 9'000'000, TraceKind::span), event(6, "a", 1'000'000, 3'000'000),
              event(7, "gather", 3'000'000, 4'000'000, TraceKind::op, TracePhase::comm),
              event(8, "b", 5'000'000, 5'010'000),
              event(9, "data wait", 6'000'000, 6'500'000, TraceKind::data)};
  w.events[3].run_begin_ns = 6'000'000;  // on a stream that is a thread
  w.events[3].run_end_ns = 8'000'000;
  const Profile p = make_profile(in);
  EXPECT_DOUBLE_EQ(find(p, "a").device_ms, 2);
  EXPECT_DOUBLE_EQ(find(p, "b").device_ms, 2);
  EXPECT_NEAR(find(p, "b").host_us, 10, 1e-9);
  EXPECT_DOUBLE_EQ(p.busy_ms, 5);
  EXPECT_DOUBLE_EQ(p.gather_ms, 1);
  EXPECT_DOUBLE_EQ(p.exposed_ms, 1);
  EXPECT_DOUBLE_EQ(p.data_wait_ms, 0.5);
  EXPECT_FALSE(p.off_ms.has_value());
}

TEST(Profile, CommunicationBesideComputeIsNotExposed) {
  ProfileInput in = two_steps();
  ProfileWindow& w = in.windows[0];
  w.events.push_back(event(18, "gather", 2'900'000, 2'910'000, TraceKind::op, TracePhase::comm));
  w.events.push_back(event(19, "reduce", 2'910'000, 2'920'000, TraceKind::op, TracePhase::comm));
  w.activity.records.push_back(kernel(1'100'000, 1'200'000, 50, 18));  // 50 us beside "a"
  w.activity.records.push_back(kernel(1'200'000, 1'300'000, 51, 19));  // all of it
  const Profile p = make_profile(in);
  EXPECT_DOUBLE_EQ(p.gather_ms, 0.05);
  EXPECT_DOUBLE_EQ(p.reduce_ms, 0.05);
  EXPECT_DOUBLE_EQ(p.exposed_ms, 0.025);
}

TEST(Profile, FileReadsBackAndTablesSort) {
  const Profile p = make_profile(two_steps());
  const Profile again = Profile::from_json(json::parse(json::dump(p.to_json()), "profile.json"));
  EXPECT_EQ(json::dump(again.to_json()), json::dump(p.to_json()));
  json::Value other = p.to_json();
  other.set("format", int64_t{2});
  EXPECT_THROW(Profile::from_json(other), Error);

  for (const std::string& column : profile_columns()) {
    for (const char* group : {"op", "op_shape", "kernel", "phase"}) {
      const std::string text = profile_text(p, {group, column, 0});
      EXPECT_NE(text.find("97.22 %"), std::string::npos) << text;
      EXPECT_NE(text.find("0.980 ms without (4 steps): +2.04 %, which so few"), std::string::npos) << text;
    }
  }
  const auto before = [](const std::string& text, const char* x, const char* y) {
    return text.find(x) < text.find(y);
  };
  EXPECT_TRUE(before(profile_text(p, {"op", "total", 0}), "\nb ", "\na "));
  EXPECT_TRUE(before(profile_text(p, {"op", "op", 0}), "\na ", "\nb "));
  EXPECT_TRUE(before(profile_text(p, {"op", "gb_s", 0}), "\nb ", "\nc "));
  EXPECT_NE(profile_text(p, {"op_shape", "total", 1}).find("b bf16 [4, 8]"), std::string::npos);
  EXPECT_NE(profile_text(p, {"op", "total", 1}).find("2 more"), std::string::npos);
}

TEST(Profile, RanksSideBySideNameTheSlowest) {
  const Profile fast = make_profile(two_steps());
  ProfileInput in = two_steps();
  in.windows[0].activity.records[0].end_ns += 40'000;
  const Profile slow = make_profile(in);
  const std::string text = ranks_text({fast, slow}, 0);
  EXPECT_NE(text.find("slowest: rank 1, 0.740 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("2 ranks"), std::string::npos);
}

TEST(Trace, BufferIsBoundedAndIdsGoOn) {
  TraceBuffer buffer(3, 1);
  current_trace = &buffer;
  {
    const TracePhaseScope phase(TracePhase::backward);
    const TraceSpan outer("outer");
    const TraceSpan inner("inner", TraceKind::op, "a stream with a long name", 5);
  }
  buffer.capturing = true;
  { const TraceSpan noted("noted", TraceKind::op); }
  { const TraceSpan lost("lost", TraceKind::op); }
  buffer.capturing = false;
  auto events = buffer.events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].id, 1U);
  EXPECT_EQ(events[1].phase, TracePhase::backward);
  EXPECT_STREQ(events[1].stream, "a stream with a");
  EXPECT_GE(events[0].end_ns, events[1].end_ns);
  ASSERT_EQ(buffer.captured_events().size(), 1U);
  EXPECT_EQ(buffer.captured_events()[0].id, captured(1));
  EXPECT_EQ(buffer.dropped(), 1);
  { const TraceSpan third("third"); }
  { const TraceSpan fourth("fourth"); }
  EXPECT_EQ(buffer.dropped(), 2);
  buffer.clear();
  { const TraceSpan next("next"); }
  EXPECT_EQ(buffer.events().front().id, 4U);
  current_trace = nullptr;
  { const TraceSpan nowhere("nowhere"); }
  EXPECT_EQ(buffer.events().size(), 1U);
}

TEST(Trace, ShapesAreThoseOfBenchOp) {
  TraceShape product;
  EXPECT_EQ(product.text(), "");
  product = {"nt", "bf16", true, 3, {8192, 5120, 16480, 0}};
  EXPECT_EQ(product.text(), "nt 8192x5120x16480 bf16 +=");
  EXPECT_EQ((TraceShape{"", "f32", false, 2, {7, 3, 0, 0}}).text(), "f32 [7, 3]");
}

}  // namespace
}  // namespace deltatune
