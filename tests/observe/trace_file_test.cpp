// Trace files: what is written is sound, lanes nest, ranks merge on one clock; the checker sees every fault.
#include "observe/trace_file.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"

namespace deltatune {
namespace {

TraceEvent event(uint64_t id, const char* name, int64_t begin, int64_t end, TraceKind kind,
                 TracePhase phase = TracePhase::forward, const char* stream = "compute") {
  TraceEvent e;
  e.id = id;
  e.name = name;
  e.begin_ns = begin;
  e.end_ns = end;
  e.kind = kind;
  e.phase = phase;
  if (kind == TraceKind::op) std::snprintf(e.stream, sizeof e.stream, "%s", stream);
  return e;
}

ProfileInput input(int rank, int64_t shift = 0) {
  ProfileInput in;
  in.device = "made \"up\"";
  in.rank = rank;
  in.world = 2;
  in.gpu = true;
  ProfileWindow& w = in.windows.emplace_back();
  w.begin_ns = 5'000'000 + shift;
  w.end_ns = 6'000'000 + shift;
  w.steps = 1;
  const auto at = [&](int64_t us) { return w.begin_ns + us * 1000; };
  w.events = {event(1, "step", at(1), at(900), TraceKind::span),
              event(2, "data wait", at(2), at(10), TraceKind::data),
              event(3, "matmul", at(20), at(30), TraceKind::op),
              event(4, "gather", at(30), at(40), TraceKind::op, TracePhase::comm, "comm"),
              event(5, "reduce", at(40), at(50), TraceKind::op, TracePhase::comm, "comm"),
              event(6, "adamw", at(50), at(60), TraceKind::op, TracePhase::update, "update")};
  w.activity.names = {"kernel<a, \"b\">"};
  const auto record = [&](int64_t begin, int64_t end, uint64_t id) {
    w.activity.records.push_back(
        {at(begin), at(end), 0, static_cast<uint32_t>(id), 7, ActivityKind::kernel, id, 0});
  };
  record(100, 200, 3);
  record(150, 250, 3);  // beside the other on one stream's lane
  record(160, 170, 3);
  record(100, 300, 4);
  record(300, 400, 5);
  record(250, 260, 6);
  return in;
}

std::map<std::string, int64_t> lanes(const TraceSummary& trace) {
  std::map<std::string, int64_t> out;
  for (const TraceLane& lane : trace.lanes) out[std::to_string(lane.process) + " " + lane.name] = lane.events;
  return out;
}

TEST(TraceFile, LanesAndTimes) {
  const std::string text = trace_text(input(0), {"here", 4'000'000});
  const TraceSummary trace = check_trace(text, "trace");
  EXPECT_TRUE(trace.problems.empty()) << trace.problems.front();
  const std::map<std::string, int64_t> expected = {{"0 host", 5},      {"0 data", 1},   {"0 compute", 2},
                                                   {"0 compute 2", 1}, {"0 gather", 1}, {"0 reduce", 1},
                                                   {"0 update", 1}};
  EXPECT_EQ(lanes(trace), expected);
  EXPECT_DOUBLE_EQ(trace.begin_us, 1);
  EXPECT_DOUBLE_EQ(trace.end_us, 900);
  for (const TraceLane& lane : trace.lanes) {
    if (lane.name == "compute") {
      EXPECT_DOUBLE_EQ(lane.busy_us, 100) << "the inner one counts once";
    } else if (lane.name == "host") {
      EXPECT_DOUBLE_EQ(lane.busy_us, 899);
    }
  }
}

TEST(TraceFile, RanksOfOneHostShareItsClockOthersMeet) {
  const std::string first = trace_text(input(0), {"here", 4'000'000});
  const std::string same = trace_text(input(1, 70'000), {"here", 4'050'000});
  // Another clock altogether: it met the others 1.2 ms before its window, rank 0 1 ms.
  const std::string other = trace_text(input(1, 900'000'000'000), {"there", 900'003'800'000});
  const auto begin_of_rank_1 = [&](const std::string& second) {
    const std::string text = merged_trace_text({first, second});
    EXPECT_TRUE(check_trace(text, "merged").problems.empty());
    double begin = 1e30;
    const json::Value root = json::parse(text, "merged");
    for (const json::Value& e : root.at("traceEvents").as_array()) {
      if (e.at("pid").as_integer() == 1 && e.find("ts")) begin = std::min(begin, e.at("ts").as_number());
    }
    return begin;
  };
  EXPECT_DOUBLE_EQ(begin_of_rank_1(same), 1 + 70);
  EXPECT_NEAR(begin_of_rank_1(other), 1 + 200, 1e-6);
}

TEST(TraceFile, CheckerSeesEveryFault) {
  const std::string head =
      R"({"traceEvents":[{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"a"}},)";
  const std::string good = R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":1,"dur":5})";
  const auto problems = [&](const std::string& more) {
    return check_trace(head + good + more + "]}", "trace").problems;
  };
  EXPECT_TRUE(problems("").empty());
  EXPECT_TRUE(problems(R"(,{"ph":"X","name":"x","pid":0,"tid":1,"ts":2,"dur":4})").empty()) << "inside";
  EXPECT_TRUE(problems(R"(,{"ph":"X","name":"x","pid":0,"tid":1,"ts":6,"dur":4})").empty()) << "behind";
  for (const char* bad : {R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":3,"dur":5})",
                          R"({"ph":"X","name":"x","pid":0,"tid":2,"ts":3,"dur":5})",
                          R"({"ph":"X","name":"","pid":0,"tid":1,"ts":7,"dur":5})",
                          R"({"ph":"X","pid":0,"tid":1,"ts":7,"dur":5})",
                          R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":7,"dur":-1})",
                          R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":7})",
                          R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":"7","dur":1})",
                          R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":1e999,"dur":1})",
                          R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":1e308,"dur":1})",
                          R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":-1e19,"dur":1})",
                          R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":7,"dur":1e308})",
                          R"({"ph":"X","name":"x","pid":"0","tid":1,"ts":7,"dur":1})",
                          R"({"ph":"X","name":"x","pid":0,"tid":1,"ts":7,"dur":1,"args":[]})",
                          R"({"ph":"B","name":"x","pid":0,"tid":1,"ts":7})",
                          R"({"ph":"M","name":"thread_name","pid":0,"tid":1})", "7", "[]", "null"}) {
    try {
      EXPECT_EQ(problems("," + std::string(bad)).size(), 1U) << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data) << bad;  // a number that is none
    }
  }
  EXPECT_EQ(check_trace(R"({"traceEvents":[]})", "trace").problems.size(), 1U);
  for (const char* no_trace : {"[]", "{}", R"({"traceEvents":7})", "", "x"})
    EXPECT_THROW(check_trace(no_trace, "trace"), Error) << no_trace;
}

TEST(TraceFile, ProblemsAreBounded) {
  std::string text = R"({"traceEvents":[)";
  for (int i = 0; i < 1000; ++i) text += i == 0 ? "1" : ",1";
  EXPECT_EQ(check_trace(text + "]}", "trace").problems.size(), 20U);
}

}  // namespace
}  // namespace deltatune
