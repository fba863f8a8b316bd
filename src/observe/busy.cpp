// Sort by start, walk once.
#include "observe/busy.h"

#include <cxxabi.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <utility>

namespace deltatune {
namespace {

// Index of the "(" that the last ")" closes: that of the arguments.
size_t arguments_of(const std::string& text) {
  int depth = 0;
  for (size_t i = text.size(); i-- > 0;) {
    if (text[i] == ')' || text[i] == '>') ++depth;
    if (text[i] == '(' || text[i] == '<') --depth;
    if (text[i] == '(' && depth == 0) return i;
  }
  return text.size();
}

// Index of what follows the return type, which only templates have: the last space outside of <> and ().
size_t name_of_function(const std::string& text) {
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<' || text[i] == '(') ++depth;
    if (text[i] == '>' || text[i] == ')') --depth;
    if (text[i] == ' ' && depth == 0) begin = i + 1;
  }
  return begin;
}

// The source file of a name in an anonymous namespace, which nvcc calls _GLOBAL__N__HASH_LENGTH_FILE_cu_HASH:
// "attention" of attention.cu. Empty where it is not so.
std::string_view source_of(std::string_view mangled) {
  constexpr std::string_view marker = "_GLOBAL__N__";
  constexpr std::string_view suffix = "_cu";
  const size_t at = mangled.find(marker);
  if (at == std::string_view::npos) return {};
  const size_t number = mangled.find('_', at + marker.size());
  if (number == std::string_view::npos) return {};
  size_t length = 0;
  const char* const end = mangled.data() + mangled.size();
  const auto [rest, error] = std::from_chars(mangled.data() + number + 1, end, length);
  if (error != std::errc() || rest == end || *rest != '_') return {};
  if (static_cast<size_t>(end - rest - 1) < length) return {};
  std::string_view file(rest + 1, length);
  if (!file.ends_with(suffix)) return {};
  file.remove_suffix(suffix.size());
  return file;
}

void erase_all(std::string& text, std::string_view what) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at))
    text.erase(at, what.size());
}

// The longest so far, at most `most` of them.
void keep_gap(std::vector<BusyGap>& largest, size_t most, BusyGap gap) {
  const auto at = std::find_if(largest.begin(), largest.end(),
                               [&](const BusyGap& x) { return x.length_ns < gap.length_ns; });
  if (at == largest.end() && largest.size() >= most) return;
  largest.insert(at, std::move(gap));
  if (largest.size() > most) largest.pop_back();
}

}  // namespace

std::string kernel_label(std::string_view name) {
  std::string out(name);
  if (!name.starts_with("_Z")) return out;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(out.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0 || !plain) return out;
  out = plain.get();
  if (out.ends_with(')')) out.erase(arguments_of(out));
  out.erase(0, name_of_function(out));
  for (const std::string_view ours : {"deltatune::cuda::", "deltatune::", "(anonymous namespace)::"}) {
    erase_all(out, ours);
  }
  const std::string_view source = source_of(name);
  return source.empty() ? out : std::string(source) + "/" + out;
}

BusyReport busy_report(const ActivityTrace& trace, int64_t begin_ns, int64_t end_ns, size_t largest_gaps) {
  BusyReport out;
  out.span_ns = std::max<int64_t>(0, end_ns - begin_ns);
  std::vector<const ActivityRecord*> inside;
  for (const ActivityRecord& r : trace.records) {
    if (r.end_ns > r.start_ns && r.end_ns > begin_ns && r.start_ns < end_ns) inside.push_back(&r);
  }
  std::sort(inside.begin(), inside.end(), [](const ActivityRecord* a, const ActivityRecord* b) {
    return std::pair(a->start_ns, a->end_ns) < std::pair(b->start_ns, b->end_ns);
  });

  std::vector<std::string> labels;
  labels.reserve(trace.names.size());
  for (const std::string& name : trace.names) labels.push_back(kernel_label(name));
  std::map<std::string, BusyName> by_name;
  std::set<uint32_t> calls;
  int64_t until = begin_ns;  // busy or accounted for up to here
  const ActivityRecord* last = nullptr;
  const auto gap_before = [&](int64_t start, const ActivityRecord* next) {
    if (start <= until) return;
    ++out.gaps;
    keep_gap(out.largest, largest_gaps,
             {until, start - until, last ? labels[last->name] : "", next ? labels[next->name] : ""});
  };
  for (const ActivityRecord* r : inside) {
    const int64_t start = std::max(r->start_ns, begin_ns);
    const int64_t end = std::min(r->end_ns, end_ns);
    gap_before(start, r);
    if (end > until) {
      out.busy_ns += end - std::max(start, until);
      until = end;
      last = r;
    }
    BusyName& sum = by_name[labels[r->name]];
    sum.total_ns += end - start;
    if (r->start_ns >= begin_ns) {
      ++sum.calls;
      ++out.records;
      calls.insert(r->correlation);
    }
    if (r->kind == ActivityKind::kernel) out.kernel_ns += end - start;
  }
  gap_before(end_ns, nullptr);

  out.host_calls = static_cast<int64_t>(calls.size());
  for (auto& [name, sum] : by_name) {
    sum.name = name;
    out.names.push_back(std::move(sum));
  }
  std::stable_sort(out.names.begin(), out.names.end(),
                   [](const BusyName& a, const BusyName& b) { return a.total_ns > b.total_ns; });
  return out;
}

BusyReport busy_report(const ActivityTrace& trace, size_t largest_gaps) {
  bool any = false;
  int64_t begin = 0;
  int64_t end = 0;
  for (const ActivityRecord& r : trace.records) {
    if (r.end_ns <= r.start_ns) continue;
    begin = any ? std::min(begin, r.start_ns) : r.start_ns;
    end = any ? std::max(end, r.end_ns) : r.end_ns;
    any = true;
  }
  return busy_report(trace, begin, end, largest_gaps);
}

}  // namespace deltatune
