// Memory of the moments, and their way to the device and back.
#include "shard/moments.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"
#include "base/trace.h"
#include "ops/moment_codes.h"

namespace deltatune {
namespace {

const char* describe(DType dtype) {
  return dtype == DType::u8 ? "8-bit" : name_of(dtype);
}

double bytes_of(const MomentViews& x) {
  return static_cast<double>(x.m.bytes() + x.v.bytes() + x.m_unit.bytes() + x.v_unit.bytes());
}

void copy_up(Stream& stream, const MomentViews& to, const MomentViews& from) {
  if (stream.device().is_null()) return;  // a plan's host memory is not there
  const TraceSpan span("copy moments up", TraceKind::op, stream.name(), bytes_of(to));
  stream.upload(to.m, from.m.data);
  stream.upload(to.v, from.v.data);
  if (to.m_unit.empty()) return;
  stream.upload(to.m_unit, from.m_unit.data);
  stream.upload(to.v_unit, from.v_unit.data);
}

void copy_down(Stream& stream, const MomentViews& to, const MomentViews& from) {
  if (stream.device().is_null()) return;
  const TraceSpan span("copy moments down", TraceKind::op, stream.name(), bytes_of(from));
  stream.download(to.m.data, from.m);
  stream.download(to.v.data, from.v);
  if (to.m_unit.empty()) return;
  stream.download(to.m_unit.data, from.m_unit);
  stream.download(to.v_unit.data, from.v_unit);
}

}  // namespace

MomentViews MomentViews::slice(int64_t begin, int64_t count) const {
  MomentViews out;
  out.m = m.slice(begin, count);
  out.v = v.slice(begin, count);
  if (m_unit.empty()) return out;
  DELTATUNE_ASSERT(begin % moment_block == 0);
  out.m_unit = m_unit.slice(begin / moment_block, moment_blocks(count));
  out.v_unit = v_unit.slice(begin / moment_block, moment_blocks(count));
  return out;
}

Moments::Moments(Device& device, const Options& options, const std::vector<int64_t>& counts)
    : options_(options) {
  DELTATUNE_ASSERT(options.piece > 0 && options.piece % moment_block == 0);
  int64_t elements = 0;
  int64_t largest = 0;
  for (const int64_t count : counts) {
    DELTATUNE_ASSERT(count % moment_block == 0);
    elements += count;
    largest = std::max(largest, count);
  }
  const MomentViews all = take(device, elements, options.offload ? ", host" : "", options.offload);
  int64_t at = 0;
  for (const int64_t count : counts) {
    groups_.push_back(all.slice(at, count));
    at += count;
  }
  if (!options.offload) return;
  for (size_t s = 0; s < slots_.size(); ++s)
    slots_[s].views = take(device, std::min(options.piece, largest), format(", slot {}", s), false);
  up_ = device.make_stream("moments up");
  down_ = device.make_stream("moments down");
}

MomentViews Moments::take(Device& device, int64_t count, const std::string& where, bool host) {
  const auto buffer = [&](DType dtype, int64_t n, const std::string& what) -> Tensor {
    const size_t bytes = static_cast<size_t>(n) * size_of(dtype);
    const std::string name = "Adam " + what + where;
    buffers_.push_back(host ? device.allocate_staging(bytes, name, "parameters")
                            : device.allocate(bytes, name, "parameters", Lifetime::run));
    return {buffers_.back().data(), dtype, {n}};
  };
  const DType dtype = options_.dtype;
  MomentViews out;
  out.m = buffer(dtype, count, format("m {}", describe(dtype)));
  out.v = buffer(dtype, count, format("v {}", describe(dtype)));
  if (dtype != DType::u8) return out;
  out.m_unit = buffer(DType::f32, moment_blocks(count), "m units");
  out.v_unit = buffer(DType::f32, moment_blocks(count), "v units");
  return out;
}

void Moments::begin(Stream& stream) {
  if (!options_.offload) return;
  stream.record(begun_);
  up_->wait(begun_);
  down_->wait(begun_);
  for (Slot& slot : slots_) slot.filled.set = slot.updated.set = slot.emptied.set = false;
}

void Moments::end(Stream& stream) {
  if (!options_.offload) return;
  // Everything that went up has been waited for by the updates, which the way down waits for.
  down_->record(ended_);
  stream.wait(ended_);
}

void Moments::each_piece(Stream& stream, size_t group,
                         const std::function<void(int64_t, const MomentViews&)>& update) {
  const MomentViews& rest = groups_[group];
  if (!options_.offload) return update(0, rest);
  for (int64_t begin = 0; begin < rest.m.count(); begin += options_.piece) {
    const int64_t count = std::min(options_.piece, rest.m.count() - begin);
    Slot& slot = slots_[next_];
    next_ = 1 - next_;
    const MomentViews home = rest.slice(begin, count);
    const MomentViews guest = slot.views.slice(0, count);
    const auto mark = [](Stream& s, Mark& m) {
      s.record(m.event);
      m.set = true;
    };
    if (slot.emptied.set) up_->wait(slot.emptied.event);
    copy_up(*up_, guest, home);
    mark(*up_, slot.filled);
    stream.wait(slot.filled.event);
    update(begin, guest);
    mark(stream, slot.updated);
    down_->wait(slot.updated.event);
    copy_down(*down_, home, guest);
    mark(*down_, slot.emptied);
  }
}

void Moments::sync() {
  if (up_) up_->sync();
  if (down_) down_->sync();
}

}  // namespace deltatune
