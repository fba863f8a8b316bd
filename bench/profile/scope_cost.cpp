// What tracing costs the host for each op: without a trace, and with one. Prints nanoseconds; the results are
// in bench/notes/insight.md.
//
//   cmake --build build/cpu --target bench_trace && build/cpu/bench_trace
#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "ops/null_device.h"
#include "ops/op.h"

namespace {

using namespace deltatune;

constexpr int calls = 1 << 20;

// The fastest of some rounds of `calls` scopes.
template <class F>
double nanoseconds(F&& call) {
  double least = 1e9;
  for (int round = 0; round < 9; ++round) {
    const Stopwatch clock;
    for (int i = 0; i < calls; ++i) call(i);
    least = std::min(least, clock.seconds() * 1e9 / calls);
  }
  return least;
}

}  // namespace

int main() {
  const auto device = make_null_device(Target::cuda);
  const auto stream = device->make_stream("compute");
  std::vector<std::byte> memory(16);
  const CTensor sizes{memory.data(), DType::f32, {2, 2}};
  volatile double bytes = 8;
  const auto counted = [&](int) {  // what the scope did before there was a trace
    OpTotals& totals = stream->totals()[static_cast<size_t>(Op::add)];
    ++totals.calls;
    totals.bytes += bytes;
    totals.flops += bytes;
    if (stream->timing()) std::abort();
  };
  const auto scope = [&](int) {
    const OpScope op(*stream, Op::add, {.bytes = bytes, .flops = bytes}, sizes);
  };
  std::printf("counters alone     %6.2f ns\n", nanoseconds(counted));
  std::printf("op, no trace       %6.2f ns\n", nanoseconds(scope));
  const auto span = [&](int) { const TraceSpan one("span"); };
  std::printf("span, no trace     %6.2f ns\n", nanoseconds(span));
  TraceBuffer trace(calls, 0);
  current_trace = &trace;
  std::printf("span, traced       %6.2f ns\n", nanoseconds([&](int i) {
                if (i == 0) trace.clear();
                span(i);
              }));
  current_trace = nullptr;
  return 0;
}
