// A small fixed thread pool with one verb, parallel_for. Not OpenMP: libgomp is opaque to ThreadSanitizer.
//
// The split into ranges depends on `count`, `grain` and the pool size only through which indices go together;
// callers write disjoint outputs per index, so results never depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace deltatune {

/// Number of threads of the process-wide pool: DELTATUNE_NUM_THREADS, else the hardware's.
int thread_count();

/// Calls body(begin, end, worker) for disjoint ranges that cover [0, count), `grain` indices or more each;
/// worker is in [0, thread_count()) and unique among the calls running at one time (it selects scratch).
/// Returns when all are done; the first exception of a body is rethrown here. Nested calls run inline with
/// the caller's worker number.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body);

}  // namespace deltatune
