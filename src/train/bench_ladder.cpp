// Rungs, one bench_step each.
#include "train/bench_ladder.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/rng.h"
#include "data/dataset.h"
#include "data/epoch_rows.h"

namespace deltatune {
namespace {

constexpr int32_t pad_id = 0;

StreamOptions stream_options(const LadderOptions& options, Batching batching) {
  StreamOptions out;
  out.max_tokens = options.step.tokens;
  out.world_size = options.devices;
  out.batching = batching;
  out.max_segments = default_max_documents(options.step.tokens);
  return out;
}

// The first rows of an epoch, with random ids in place of text.
std::vector<Batch> sample_rows(const EpochRows& epoch, const LadderOptions& options) {
  const int64_t count = std::min(options.sampled_rows, epoch.rows.rows());
  Rng rng(1, 3);
  const auto vocabulary = static_cast<uint64_t>(options.step.model.vocab_size);
  json::Array conversations;
  for (int64_t r = 0; r < count; ++r) {
    for (const int32_t document : epoch.row(r)) {
      json::Array ids(static_cast<size_t>(options.lengths[static_cast<size_t>(document)]));
      for (json::Value& id : ids) id = static_cast<int64_t>(rng.below(vocabulary));
      conversations.push_back(json::Object{{"input_ids", ids}, {"labels", ids}});
    }
  }
  DatasetOptions dataset;
  dataset.max_tokens = dataset.max_length = options.step.tokens;
  dataset.vocab_size = options.step.model.vocab_size;
  // A conversation of one token has nothing to learn: it is left out, as in training.
  TokenizedSetBuilder builder(dataset, {});
  builder.add_rows(conversations, "random rows");
  const TokenizedSet set = builder.finish();
  std::vector<Batch> rows;
  int32_t next = 0;
  for (int64_t r = 0; r < count; ++r) {
    std::vector<int32_t> documents;
    for (const int32_t document : epoch.row(r)) {
      if (options.lengths[static_cast<size_t>(document)] > 1) documents.push_back(next++);
    }
    const int32_t slots = epoch.rows.padded_to[static_cast<size_t>(epoch.order[static_cast<size_t>(r)])];
    rows.push_back(make_batch(set, documents, options.step.tokens, pad_id, slots));
  }
  return rows;
}

LadderRung measure(Device& device, const LadderOptions& options, const LadderStep& what,
                   const std::string& title, int64_t real_tokens) {
  const StreamOptions stream = stream_options(options, what.batching);
  const EpochRows epoch = make_epoch_rows(options.lengths, stream, 0);
  BenchStepOptions step = options.step;
  step.title = title;
  step.rows = sample_rows(epoch, options);
  step.parts = false;
  step.recompute = "block";
  if (what.keep) {
    step.keep = [&](int64_t depth) {
      return keep_of_depth(options.keep_of_all, options.step.model.full_attention, depth);
    };
  }
  if (what.plain) {
    step.kernel = "plain";
    step.allow_slow_kernels = true;
  }
  step.graph = what.graph ? GraphMode::always : GraphMode::never;
  const BenchStepReport report = bench_step(device, step);

  LadderRung rung;
  rung.what = what;
  rung.whole = report.whole;
  rung.rows = epoch.rows.rows();
  rung.steps = steps_of_rows(rung.rows, stream);
  rung.fill = static_cast<double>(real_tokens) / static_cast<double>(rung.rows * options.step.tokens);
  rung.step_ms = report.whole.pass_ms + report.whole.update_ms / options.devices;
  rung.hours = static_cast<double>(rung.steps) * rung.step_ms * 1e-3 / 3600;
  const double tokens_of_row = rung.fill * static_cast<double>(options.step.tokens);
  rung.tokens_per_s = tokens_of_row / (rung.step_ms * 1e-3);
  if (options.step.peak_tflop_s > 0) {
    rung.mfu = 6 * report.whole.parameters * tokens_of_row / (rung.step_ms * 1e-3) /
               (options.step.peak_tflop_s * 1e12);
  }
  rung.kernels = report.whole.launches;
  if (report.whole.traced_ms > 0) {
    rung.host_calls = report.whole.host_calls;
    rung.busy_share = report.whole.busy_ms / report.whole.traced_ms;
  }
  rung.utilisation = report.whole.utilisation;
  rung.gib = report.depths.back().figures.bytes / double(1 << 30);
  return rung;
}

std::string hours_text(double hours) {
  if (hours * 3600 < 60) return format("{:.1f} s", hours * 3600);
  const auto minutes = static_cast<int64_t>(hours * 60 + 0.5);
  return minutes < 60 ? format("{} min", minutes) : format("{} h {:02} min", minutes / 60, minutes % 60);
}

std::string or_dash(double value, const std::string& text) {
  return value > 0 ? text : "-";
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return out;
}

}  // namespace

std::vector<LadderStep> ladder_steps(Target target) {
  const std::vector<LadderStep> all = {
      {"plain kernels, padded rows", true, Batching::padded, false, false},
      {"fused kernels, padded rows", false, Batching::padded, false, false},
      {"+ packed rows", false, Batching::packed, false, false},
      {"+ recompute: auto", false, Batching::packed, true, false},
      {"+ CUDA graph", false, Batching::packed, true, true},
  };
  if (target == Target::cuda) return all;
  std::vector<LadderStep> out(all.begin() + 1, all.end() - 1);
  out.front().name = "padded rows";
  return out;
}

Keep keep_of_depth(const Keep& all, const std::vector<bool>& kinds, int64_t depth) {
  std::map<bool, std::vector<int64_t>> of_kind;
  for (size_t b = 0; b < kinds.size(); ++b) of_kind[kinds[b]].push_back(static_cast<int64_t>(b));
  std::map<bool, int64_t> wanted;
  for (int64_t b = 0; b < depth; ++b) ++wanted[kinds[static_cast<size_t>(b)]];
  std::map<bool, int64_t> taken;
  Keep out;
  for (int64_t b = 0; b < depth; ++b) {
    const bool kind = kinds[static_cast<size_t>(b)];
    const auto& blocks = of_kind[kind];
    const auto count = static_cast<int64_t>(blocks.size());
    const int64_t at = (2 * taken[kind]++ + 1) * count / (2 * wanted[kind]);
    out.blocks.push_back(all.of(blocks[static_cast<size_t>(at)]));
  }
  return out;
}

LadderReport bench_ladder(Device& device, const LadderOptions& options) {
  LadderReport report;
  for (const int32_t length : options.lengths) {
    if (length > options.step.tokens) {
      throw Error(ErrorKind::data, format("a conversation of {} tokens", length), "--lengths",
                  format("rows have {} tokens: give --tokens, or cut the lengths", options.step.tokens));
    }
    report.real_tokens += length;
  }
  if (report.real_tokens == static_cast<int64_t>(options.lengths.size())) {
    throw Error(ErrorKind::data, "all conversations have one token: none has anything to learn", "--lengths",
                "give the lengths in tokens, one a line");
  }
  report.device = device.name();
  report.model = options.step.model_name;
  report.dtype = name_of(options.step.storage);
  report.optimizer = options.step.optimizer.to_text(options.step.storage);
  report.keep_description = options.keep_description;
  report.tokens = options.step.tokens;
  report.conversations = static_cast<int64_t>(options.lengths.size());
  report.devices = options.devices;
  report.layers = static_cast<double>(options.step.model.layers());
  report.depths = options.step.depths;
  report.peak_tflop_s = options.step.peak_tflop_s;
  const std::vector<LadderStep> steps = ladder_steps(device.target());
  for (const LadderStep& what : steps) {
    const std::string title = format("rung {} of {}, {}", report.rungs.size() + 1, steps.size(), what.name);
    log::info("{}", title);
    set_activity(title);
    report.rungs.push_back(measure(device, options, what, title, report.real_tokens));
  }
  return report;
}

json::Value LadderReport::to_json() const {
  json::Array list;
  for (const LadderRung& r : rungs) {
    json::Value item;
    item.set("rung", r.what.name);
    item.set("kernels_are", r.what.plain ? "plain" : "fast");
    item.set("batching", name_of(r.what.batching));
    item.set("recompute", r.what.keep ? "auto" : "block");
    item.set("cuda_graph", r.what.graph);
    item.set("rows", r.rows);
    item.set("steps", r.steps);
    item.set("fill", r.fill);
    item.set("step_ms", r.step_ms);
    item.set("forward_backward_ms", r.whole.pass_ms);
    item.set("optimizer_ms", r.whole.update_ms);
    if (r.whole.flat) item.set("lower_bound", true);
    item.set("hours", r.hours);
    item.set("tokens_per_s_per_device", r.tokens_per_s);
    if (r.mfu > 0) item.set("mfu_6n", r.mfu);
    if (r.kernels > 0) item.set("kernels", r.kernels);
    if (r.host_calls > 0) {
      item.set("host_calls", r.host_calls);
      item.set("device_busy_share", r.busy_share);
    }
    item.set("memory_gib_of_depth", r.gib);
    if (r.utilisation >= 0) item.set("gpu_utilisation", r.utilisation);
    list.push_back(std::move(item));
  }
  json::Array measured(depths.begin(), depths.end());
  json::Value out;
  out.set("device", device);
  out.set("model", model);
  out.set("dtype", dtype);
  out.set("optimizer", optimizer);
  out.set("devices", devices);
  out.set("layers", static_cast<int64_t>(layers));
  out.set("measured_depths", std::move(measured));
  out.set("max_tokens", tokens);
  out.set("conversations", conversations);
  out.set("tokens", real_tokens);
  out.set("recompute_auto", keep_description);
  out.set("rungs", std::move(list));
  return out;
}

std::string LadderReport::to_text() const {
  std::string out = format("{}, {:.0f} layers, {}, {}, on {}; an epoch of {} ({}) in rows of {}, on {}\n",
                           model, layers, dtype, optimizer, device, counted(conversations, "conversation"),
                           counted(real_tokens, "token"), format_count(tokens), counted(devices, "device"));
  out += format("{:<28}{:>12}{:>8}{:>11}{:>14}{:>9}{:>8}{:>10}{:>12}{:>8}{:>8}\n", "rung", "steps", "fill",
                "step ms", "epoch", "tok/s", "MFU %", "kernels", "host calls", "busy %", "util %");
  for (const LadderRung& r : rungs) {
    out +=
        format("{:<28}{:>12}{:>6.1f} %{:>11.1f}{:>14}{:>9.0f}{:>8}{:>10}{:>12}{:>8}{:>8}\n", r.what.name,
               format_count(r.steps), 100 * r.fill, r.step_ms, hours_text(r.hours), r.tokens_per_s,
               or_dash(r.mfu, format("{:.1f}", 100 * r.mfu)), or_dash(r.kernels, format("{:.0f}", r.kernels)),
               or_dash(r.host_calls, format("{:.0f}", r.host_calls)),
               or_dash(r.busy_share, format("{:.1f}", 100 * r.busy_share)),
               r.utilisation < 0 ? "-" : format("{:.0f}", 100 * r.utilisation));
  }
  if (rungs.size() > 1) {
    out += format("the last rung takes {:.2f} times less than the first\n",
                  rungs.front().hours / rungs.back().hours);
  }
  const bool flat = std::any_of(rungs.begin(), rungs.end(), [](const LadderRung& r) { return r.whole.flat; });
  if (flat) out += flat_note();
  if (!keep_description.empty()) out += "recompute: auto " + keep_description + "\n";
  if (rungs.front().utilisation >= 0)
    out +=
        "util: what the driver calls GPU utilisation; busy: share of a traced step in which anything ran\n";
  if (devices > 1) out += "communication between devices is not in it\n";
  if (rungs.size() == 3)
    out += "on a CPU each op has one kernel, and there are no graphs: three rungs of five\n";
  return out;
}

std::string LadderReport::to_svg() const {
  constexpr double left = 230, width = 420, bar = 26, gap = 12, top = 56;
  double longest = 0;
  for (const LadderRung& r : rungs) longest = std::max(longest, r.hours);
  const double height = top + static_cast<double>(rungs.size()) * (bar + gap) + 30;
  std::string out = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 820 {:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"16\" y=\"24\" font-size=\"16\" fill=\"#111111\">An epoch of {}: {}, "
      "{}</text>\n<text x=\"16\" y=\"42\" fill=\"#555555\">rows of {} tokens, on {}; hours an epoch, "
      "tokens a second and device</text>\n",
      height, counted(conversations, "conversation"), escaped(model), counted(devices, "device"),
      format_count(tokens), escaped(device));
  double y = top;
  for (const LadderRung& r : rungs) {
    const double w = longest > 0 ? width * r.hours / longest : 0;
    out += format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\" fill=\"#111111\">{}</text>\n<rect x=\"{:.0f}\" "
        "y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"3\" fill=\"#3b6fb6\"/>\n<text x=\"{:.1f}\" "
        "y=\"{:.0f}\" fill=\"#111111\">{}, {:.0f} tok/s</text>\n",
        left - 10, y + 18, escaped(r.what.name), left, y, w, bar, left + w + 8, y + 18, hours_text(r.hours),
        r.tokens_per_s);
    y += bar + gap;
  }
  out += "</svg>\n";
  return out;
}

}  // namespace deltatune
