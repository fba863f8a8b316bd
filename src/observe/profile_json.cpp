// profile.json: its form is docs/profile.md.
#include "base/error.h"
#include "observe/profile.h"

namespace deltatune {
namespace {

json::Value op_json(const ProfileOp& op, double gemm_tflops, double copy_gb_s) {
  const auto roofline = op.roofline(gemm_tflops, copy_gb_s);
  json::Value out;
  out.set("op", op.op);
  out.set("shape", op.shape);
  out.set("phase", op.phase);
  out.set("kernel", op.kernel);
  out.set("slow", op.slow);
  out.set("calls", op.calls);
  out.set("host_calls", op.queued);
  out.set("host_us", op.host_us);
  out.set("device_us", op.device_us());
  out.set("device_ms", op.device_ms);
  out.set("bytes", op.bytes);
  out.set("flops", op.flops);
  out.set("gb_s", op.gb_s());
  out.set("tflop_s", op.tflop_s());
  out.set("roofline", roofline ? json::Value(*roofline) : json::Value());
  return out;
}

ProfileOp op_from(const json::Value& v) {
  ProfileOp op;
  op.op = v.at("op").as_string();
  op.shape = v.at("shape").as_string();
  op.phase = v.at("phase").as_string();
  op.kernel = v.at("kernel").as_string();
  op.slow = v.at("slow").as_bool();
  op.calls = v.at("calls").as_number();
  op.queued = v.at("host_calls").as_number();
  op.host_us = v.at("host_us").as_number();
  op.device_ms = v.at("device_ms").as_number();
  op.bytes = v.at("bytes").as_number();
  op.flops = v.at("flops").as_number();
  return op;
}

}  // namespace

json::Value Profile::to_json() const {
  json::Value out;
  out.set("format", int64_t{1});
  out.set("device", device);
  out.set("rank", int64_t{rank});
  out.set("world", int64_t{world});
  out.set("gpu", gpu);
  if (!missing.empty()) out.set("missing", missing);
  out.set("steps", steps);
  out.set("step_ms", step_ms);
  out.set("busy_ms", busy_ms);
  out.set("idle_ms", idle_ms);
  out.set("marked_ms", marked_ms);
  out.set("span_ms", span_ms);
  out.set("launches", launches);
  out.set("kernels", kernels);
  out.set("graph", graph);
  json::Value overhead;
  if (off_ms) {
    overhead.set("off_ms", *off_ms);
    overhead.set("on_ms", step_ms);
    overhead.set("off_steps", off_steps);
  }
  out.set("overhead", std::move(overhead));
  out.set("dropped", dropped);
  out.set("gemm_tflops", gemm_tflops);
  out.set("copy_gb_s", copy_gb_s);
  json::Array list;
  for (const ProfileOp& op : ops) list.push_back(op_json(op, gemm_tflops, copy_gb_s));
  out.set("ops", std::move(list));
  json::Array names;
  for (const ProfileKernel& kernel : kernel_names)
    names.push_back(json::Object{{"name", kernel.name}, {"calls", kernel.calls}, {"ms", kernel.ms}});
  out.set("kernel_names", std::move(names));
  json::Array holes;
  for (const ProfileGap& gap : gaps) {
    holes.push_back(json::Object{{"after", gap.after},
                                 {"before", gap.before},
                                 {"us", gap.us},
                                 {"at_us", gap.at_us},
                                 {"host", gap.host}});
  }
  out.set("gaps", std::move(holes));
  out.set("named_share", named_share());
  out.set("unnamed_ms", unnamed_ms);
  out.set("communication",
          json::Object{{"gather_ms", gather_ms}, {"reduce_ms", reduce_ms}, {"exposed_ms", exposed_ms}});
  out.set("data_wait_ms", data_wait_ms);
  out.set("host_wait_ms", host_wait_ms);
  out.set("host_bound_ms", host_bound_ms);
  return out;
}

Profile Profile::from_json(const json::Value& v) {
  if (v.at("format").as_integer() != 1) {
    throw Error(ErrorKind::data, "a profile of format " + std::to_string(v.at("format").as_integer()),
                "profile.json", "read it with the version of deltatune that wrote it");
  }
  Profile out;
  out.device = v.at("device").as_string();
  out.rank = static_cast<int>(v.at("rank").as_integer());
  out.world = static_cast<int>(v.at("world").as_integer());
  out.gpu = v.at("gpu").as_bool();
  if (const json::Value* why = v.find("missing")) out.missing = why->as_string();
  out.steps = v.at("steps").as_integer();
  out.graph = v.at("graph").as_bool();
  out.dropped = v.at("dropped").as_integer();
  const auto number = [&](const char* key, double& to) { to = v.at(key).as_number(); };
  number("step_ms", out.step_ms);
  number("busy_ms", out.busy_ms);
  number("idle_ms", out.idle_ms);
  number("marked_ms", out.marked_ms);
  number("span_ms", out.span_ms);
  number("launches", out.launches);
  number("kernels", out.kernels);
  number("gemm_tflops", out.gemm_tflops);
  number("copy_gb_s", out.copy_gb_s);
  number("unnamed_ms", out.unnamed_ms);
  number("data_wait_ms", out.data_wait_ms);
  number("host_wait_ms", out.host_wait_ms);
  number("host_bound_ms", out.host_bound_ms);
  if (const json::Value& overhead = v.at("overhead"); overhead.is_object()) {
    out.off_ms = overhead.at("off_ms").as_number();
    out.off_steps = overhead.at("off_steps").as_integer();
  }
  for (const json::Value& op : v.at("ops").as_array()) out.ops.push_back(op_from(op));
  for (const json::Value& kernel : v.at("kernel_names").as_array())
    out.kernel_names.push_back(
        {kernel.at("name").as_string(), kernel.at("calls").as_number(), kernel.at("ms").as_number()});
  for (const json::Value& gap : v.at("gaps").as_array())
    out.gaps.push_back({gap.at("after").as_string(), gap.at("before").as_string(), gap.at("us").as_number(),
                        gap.at("at_us").as_number(), gap.at("host").as_string()});
  const json::Value& comm = v.at("communication");
  out.gather_ms = comm.at("gather_ms").as_number();
  out.reduce_ms = comm.at("reduce_ms").as_number();
  out.exposed_ms = comm.at("exposed_ms").as_number();
  return out;
}

}  // namespace deltatune
