// How busy a device was: the records of a tracer merged into intervals in which anything ran, and the gaps
// between them.
//
// Copies and fills count as work like kernels do; what runs at the same time counts once. Pure: no device, no
// clock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/activity.h"

namespace deltatune {

/// A time in which nothing ran.
struct BusyGap {
  int64_t start_ns = 0;
  int64_t length_ns = 0;
  std::string before,
      after;  ///< kernel_label of what ended last and of what begins; empty: the window's edge
};

struct BusyName {
  std::string name;  ///< kernel_label
  int64_t calls = 0;
  int64_t total_ns = 0;
};

struct BusyReport {
  int64_t span_ns = 0;
  int64_t busy_ns = 0;           ///< of span_ns, with at least one record
  int64_t kernel_ns = 0;         ///< sum over the kernels, each counted in full however they overlap
  int64_t records = 0;           ///< that begin in the window
  int64_t host_calls = 0;        ///< distinct correlations of those: launches, a whole graph being one
  int64_t gaps = 0;              ///< times without a record, edges included
  std::vector<BusyGap> largest;  ///< of the gaps, longest first, equally long ones in order of time
  std::vector<BusyName> names;   ///< longest total first, then by name

  int64_t idle_ns() const { return span_ns - busy_ns; }
  /// 0 for an empty window.
  double idle_share() const {
    return span_ns > 0 ? static_cast<double>(idle_ns()) / static_cast<double>(span_ns) : 0;
  }
};

/// Of the window [begin_ns, end_ns): records that reach over an edge count with their part inside, as calls
/// where they begin. Records whose end is not after their start have no time and are ignored.
BusyReport busy_report(const ActivityTrace& trace, int64_t begin_ns, int64_t end_ns,
                       size_t largest_gaps = 10);
/// From the first start to the last end.
BusyReport busy_report(const ActivityTrace& trace, size_t largest_gaps = 10);

/// A kernel's name for people: demangled, without return type, arguments and our own namespaces, behind the
/// name of its source file where nvcc put that into the name ("rope/forward_kernel<float, 4>": many files
/// have a forward_kernel). Any other text stays as it is.
std::string kernel_label(std::string_view name);

}  // namespace deltatune
