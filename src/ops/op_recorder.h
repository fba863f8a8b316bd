// OpRecorder: a stream that notes every op with its arguments and runs none, so that each can be run later,
// alone and as often as one likes: what `bench op` times.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/op.h"

namespace deltatune {

/// One call of an op.
struct RecordedCall {
  Op op = Op::count;
  std::string shape;  ///< "bf16 [8192, 5120]": what tells calls of one op apart
  OpCost cost;
  std::vector<Tensor> outputs;       ///< that it writes or adds to, those that are wanted
  std::function<void(Stream&)> run;  ///< the row of the given stream's table, past the op's checks
};

class OpRecorder final : public Stream {
 public:
  /// `device` is that of the tensors that will be passed.
  explicit OpRecorder(Device& device);
  const std::vector<RecordedCall>& calls() const { return calls_; }

  void record(Event& event) override { event.native = nullptr; }
  void wait(const Event&) override {}
  void sync() override {}
  void upload(Tensor, const void*) override {}
  void download(void*, CTensor) override {}

  /// Called by the recording table.
  void add(std::string shape, std::vector<Tensor> outputs, std::function<void(Stream&)> run);

 private:
  std::vector<RecordedCall> calls_;
  std::array<OpTotals, max_ops> before_{};
};

}  // namespace deltatune
