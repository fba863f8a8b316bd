// One step on the null device, and its table.
#include "train/plan.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/counted.h"
#include "base/format.h"
#include "comm/gpu_memory.h"
#include "observe/machine.h"
#include "ops/kernel_list.h"
#include "ops/null_device.h"
#include "train/engine.h"
#include "train/recompute.h"
#include "train/save_options.h"
#include "train/setup.h"
#include "train/state_image.h"

namespace deltatune {
namespace {

// GPUs keep some memory for themselves: context, modules, library handles.
constexpr uint64_t context_bytes = uint64_t{1} << 30;

// Updates may run on a stream of their own, lookups on that of the collectives.
std::vector<PlannedOp> planned_ops(Engine& engine, const std::optional<DeviceCard>& card) {
  std::vector<PlannedOp> out;
  for (size_t i = 0; i < static_cast<size_t>(Op::count); ++i) {
    OpTotals t = engine.stream().totals()[i];
    for (const Stream* beside : {engine.store().update_stream(), engine.store().comm_stream()}) {
      if (!beside) continue;
      const OpTotals& more = beside->totals()[i];
      t.calls += more.calls;
      t.flops += more.flops;
      t.bytes += more.bytes;
    }
    if (t.calls == 0) continue;
    const SelectedKernel& chosen = engine.kernels().ops[i];
    PlannedOp op{
        name_of(static_cast<Op>(i)), short_name(*chosen.kernel), chosen.slow(), t.calls, t.flops, t.bytes, 0};
    if (card) op.seconds = std::max(t.flops / (card->gemm_tflops * 1e12), t.bytes / (card->copy_gb_s * 1e9));
    out.push_back(std::move(op));
  }
  std::stable_sort(out.begin(), out.end(), [&](const PlannedOp& a, const PlannedOp& b) {
    return card ? a.seconds > b.seconds : a.flops > b.flops;
  });
  return out;
}

void run_null_step(Engine& engine, const Config& config, int64_t document_length) {
  const Batch batch = synthetic_batch(config.max_tokens, document_length, engine.options().max_documents);
  if (config.gradient_release) {
    engine.single_step(batch, config.learning_rate, 1, batch.num_targets);
    return;
  }
  engine.begin_window();
  for (int64_t i = 0; i < config.gradient_accumulation_steps; ++i) engine.micro_step(batch);
  engine.update(config.learning_rate, 1, batch.num_targets);
}

double roofline_seconds(const Stream& stream, const DeviceCard& card) {
  double sum = 0;
  for (const OpTotals& t : stream.totals())
    sum += std::max(t.flops / (card.gemm_tflops * 1e12), t.bytes / (card.copy_gb_s * 1e9));
  return sum;
}

// How the step's communication meets its compute; runs forward alone on top of what the engine has counted.
Communication planned_communication(const PlanReport& report, Engine& engine, Communicator& comm,
                                    const Config& config) {
  CommunicationInput in;
  in.step = comm.totals();
  in.per_node = static_cast<int>(config.nproc);
  in.nodes = report.nodes;
  in.at_the_end = engine.options().whole_states && !engine.options().gradient_release;
  double optimizer = 0;
  for (const PlannedOp& op : report.ops) {
    if (op.name == "adamw" || op.name == "sum_squares") optimizer += op.seconds;
  }
  const double before = roofline_seconds(engine.stream(), *report.card);
  engine.evaluate(synthetic_batch(config.max_tokens, report.document_length, engine.options().max_documents));
  const auto rows = static_cast<double>(report.accumulation);
  in.forward_seconds = rows * (roofline_seconds(engine.stream(), *report.card) - before);
  in.forward_gather = rows * (comm.totals().gather_bytes - in.step.gather_bytes);
  const ParamStore& store = engine.store();
  const ModelParams& params = engine.model().params();
  // Sent by a rank, of all micro-batches.
  const auto sent = [&](int64_t elements, DType dtype) {
    return rows * static_cast<double>(elements) * static_cast<double>(size_of(dtype)) *
           (report.world_size - 1) / report.world_size;
  };
  const auto elements = [&](int group) {
    int64_t sum = 0;
    for (const int index : store.table().groups[static_cast<size_t>(group)].params)
      sum += store.table().params[static_cast<size_t>(index)].shape.count();
    return sum;
  };
  const int64_t block = elements(params.block_groups.front()), embedding = elements(params.embedding_group);
  const EngineOptions& options = engine.options();
  if (!options.whole_states)
    in.first_gather = sent(block + (store.looks_up_rows() ? 0 : embedding), options.storage);
  in.last_reduce = sent(block, options.reduce);
  if (!store.reduces_rows()) in.last_reduce += sent(embedding, DType::f32);
  const int64_t looked_up = report.world_size * config.max_tokens * engine.model().config().hidden_size;
  if (store.looks_up_rows()) in.lookup_reduce = sent(looked_up, options.storage);
  if (store.reduces_rows()) in.lookup_gather = sent(looked_up, options.storage);
  in.backward_seconds = report.seconds() - optimizer - in.forward_seconds;
  return forecast_communication(in, *report.card);
}

}  // namespace

double PlanReport::tokens_per_second() const {
  const double compute = seconds();
  // Beside backward, which is most of the step; without release behind it.
  const double host = release ? std::max(0.0, host_link_seconds - compute) : host_link_seconds;
  return static_cast<double>(max_tokens * accumulation) / (compute + host + links.exposed_seconds);
}

double PlanReport::seconds() const {
  double sum = 0;
  for (const PlannedOp& op : ops) sum += op.seconds;
  return sum;
}

uint64_t PlanReport::host_bytes() const {
  uint64_t sum = 0;
  for (const Region& region : memory.regions()) sum += region.host ? region.bytes : 0;
  return sum;
}

namespace {

PlanReport plan_as_it_is(const Config& config, const ModelSource& source,
                         const std::optional<DeviceCard>& card) {
  PlanReport report;
  const bool gpu = card && !card->sm.empty();
  const DeviceFacts facts = gpu ? planned_cuda(card->sm_number()) : DeviceFacts{};
  report.card = card;
  report.nodes = static_cast<int>(config.nodes);
  report.world_size = static_cast<int>(config.nproc * config.nodes);
  report.memory_available = card ? static_cast<uint64_t>(card->memory_bytes) - (gpu ? context_bytes : 0)
                                 : static_cast<uint64_t>(this_machine().memory_available_bytes);
  const KeepChoice choice =
      choose_keep(config, source, facts, report.world_size, report.memory_available, card);
  report.recompute = choice.name;
  report.recompute_detail = choice.describe();
  report.kept = choice.blocks;
  report.recompute_seconds = choice.recompute_seconds;
  const auto device = make_null_device(facts);
  const auto comm = make_null_communicator(report.world_size);
  const CommMemory exchange = allocate_comm_memory(*device, report.world_size);
  Engine engine(*device, *comm, source.config, source.tied, engine_options(config, choice.keep, true));
  // How much host memory the other machine has is not known; the region is listed with its size.
  const StateImage image(engine, config.save_only_model,
                         saves_copy(config, *device, 0, std::numeric_limits<uint64_t>::max()));
  report.document_length = std::min(config.max_length, config.max_tokens);
  run_null_step(engine, config, report.document_length);

  report.model = source.folder.filename().string();
  report.parameters = engine.store().table().element_count();
  report.layers = source.config.layers();
  report.delta_layers =
      std::count(source.config.full_attention.begin(), source.config.full_attention.end(), false);
  report.max_tokens = config.max_tokens;
  report.max_documents = engine.options().max_documents;
  report.accumulation = config.gradient_accumulation_steps;
  report.memory = device->plan();
  report.ops = planned_ops(engine, card);
  for (const PlannedOp& op : report.ops) report.flops_per_step += op.flops;
  report.comm = comm->totals();
  report.embedding_rows = !engine.store().reduces_rows()   ? "no"
                          : engine.store().looks_up_rows() ? "yes"
                                                           : "gradient";
  if (card && report.world_size > 1) report.links = planned_communication(report, engine, *comm, config);
  report.release = config.gradient_release;
  if (config.offload_optimizer && gpu) {
    for (const StateTensor& state : engine.store().state()) {
      const bool moment = !state.replicated && !state.name.ends_with(".weights");
      if (moment) report.host_link_bytes += static_cast<double>(state.data.bytes());
    }
    report.host_link_seconds = report.host_link_bytes / (card->host_link_gb_s * 1e9);
  }
  return report;
}

}  // namespace

PlanReport make_plan(const Config& config, const ModelSource& source, const std::optional<DeviceCard>& card) {
  PlanReport report = plan_as_it_is(config, source, card);
  if (report.fits()) return report;
  const bool gpu = card && !card->sm.empty();
  report.advice = advise_layout(config, gpu, report.memory_available, [&](const Config& changed) {
    const PlanReport other = plan_as_it_is(changed, source, card);
    return LayoutBytes{other.memory.total(), other.host_bytes(), other.host_link_seconds};
  });
  return report;
}

json::Value PlanReport::to_json() const {
  json::Value out;
  out.set("model", model);
  out.set("parameters", parameters);
  out.set("world_size", int64_t{world_size});
  out.set("recompute", recompute);
  json::Value parts = json::Object{};
  for (const auto& [part, blocks] : kept) parts.set(part, blocks);
  out.set("kept", std::move(parts));
  if (card) out.set("recompute_roofline_s", recompute_seconds);
  out.set("max_tokens", max_tokens);
  out.set("gradient_accumulation_steps", accumulation);
  out.set("document_length", document_length);
  out.set("max_documents", max_documents);
  json::Array regions;
  for (const Region& region : memory.regions()) {
    json::Value item;
    item.set("name", region.name);
    item.set("owner", region.owner);
    item.set("lifetime", name_of(region.lifetime));
    item.set("bytes", static_cast<int64_t>(region.bytes));
    if (region.host) item.set("host", true);
    regions.push_back(std::move(item));
  }
  out.set("memory", std::move(regions));
  out.set("memory_total_bytes", static_cast<int64_t>(memory.total()));
  out.set("memory_available_bytes", static_cast<int64_t>(memory_available));
  out.set("fits", fits());
  json::Array list;
  for (const PlannedOp& op : ops) {
    json::Value item;
    item.set("op", op.name);
    item.set("kernel", op.kernel);
    if (op.slow) item.set("slow_kernels", true);
    item.set("calls", op.calls);
    item.set("flops", op.flops);
    item.set("bytes", op.bytes);
    if (card) item.set("roofline_s", op.seconds);
    list.push_back(std::move(item));
  }
  out.set("ops", std::move(list));
  out.set("flops_per_step", flops_per_step);
  out.set("gather_bytes", comm.gather_bytes);
  out.set("reduce_bytes", comm.reduce_bytes);
  out.set("embedding_rows", embedding_rows);
  out.set("host_bytes", static_cast<int64_t>(host_bytes()));
  if (host_link_bytes > 0) {
    out.set("host_link_bytes", host_link_bytes);
    out.set("host_link_s", host_link_seconds);
  }
  if (advice) out.set("advice", advice->to_json());
  if (card) {
    out.set("device", card->name);
    out.set("roofline_s", seconds());
    out.set("nodes", int64_t{nodes});
    out.set("gpu_link_bytes", links.gpu_link_bytes);
    out.set("node_link_bytes", links.node_link_bytes);
    out.set("gpu_link_s", links.gpu_link_seconds);
    out.set("node_link_s", links.node_link_seconds);
    out.set("exposed_communication_s", links.exposed_seconds);
    out.set("tokens_per_s_per_device", tokens_per_second());
    json::Value from = json::Object{};
    for (const auto& [field, where] : card->sources) from.set(field, where);
    out.set("device_card_sources", std::move(from));
  }
  return out;
}

namespace {

double gib(double bytes) {
  return bytes / double(1 << 30);
}
std::string source_text(const DeviceCard& card, const char* field) {
  const auto found = card.sources.find(field);
  return found == card.sources.end() ? "" : format("  {:<16} {}\n", field, found->second);
}
// Where the bytes between ranks go, and what of that takes time of its own.
std::string links_text(const PlanReport& report) {
  const DeviceCard& card = *report.card;
  const Communication& links = report.links;
  std::string out = format("  between devices of a node {:.2f} GB, {:.1f} ms at {} GB/s\n",
                           links.gpu_link_bytes * 1e-9, links.gpu_link_seconds * 1e3, card.gpu_link_gb_s);
  if (report.nodes > 1) {
    out += format("  between nodes             {:.2f} GB, {:.1f} ms at {} GB/s\n",
                  links.node_link_bytes * 1e-9, links.node_link_seconds * 1e3, card.node_link_gb_s);
  }
  out += format("  not hidden by compute     {:.1f} ms, {:.2f} % of the step\n", links.exposed_seconds * 1e3,
                100 * links.exposed_seconds / (report.seconds() + links.exposed_seconds));
  out += source_text(card, "gpu_link_gb_s");
  if (report.nodes > 1) out += source_text(card, "node_link_gb_s");
  return out;
}

}  // namespace

std::string scaling_table(const Config& config, const ModelSource& source, const DeviceCard& card,
                          int per_node) {
  std::string out = format("{:>7} {:>6} {:>9} {:>10} {:>9} {:>10} {:>9} {:>13} {:>13}\n", "devices", "nodes",
                           "GiB", "recompute", "GB inside", "GB outside", "exposed", "tok/s/device", "tok/s");
  for (int world = 2; world <= 1024; world *= 2) {
    Config changed = config;
    changed.nodes = std::max(1, world / per_node);
    changed.nproc = world / changed.nodes;
    const PlanReport report = make_plan(changed, source, card);
    const double step = report.seconds() + report.links.exposed_seconds;
    out += format("{:>7} {:>6} {:>9.2f} {:>10} {:>9.1f} {:>10.1f} {:>7.2f} % {:>13.0f} {:>13.0f}{}\n", world,
                  changed.nodes, gib(static_cast<double>(report.memory.total())), report.recompute,
                  report.links.gpu_link_bytes * 1e-9, report.links.node_link_bytes * 1e-9,
                  100 * report.links.exposed_seconds / step, report.tokens_per_second(),
                  report.tokens_per_second() * world, report.fits() ? "" : "  does not fit");
  }
  out +=
      "tokens/s at the card's rates, which a run comes near to but does not reach; latencies are not "
      "counted\n";
  for (const char* field : {"gemm_tflops", "copy_gb_s", "gpu_link_gb_s", "node_link_gb_s"})
    out += source_text(card, field);
  return out;
}

std::string PlanReport::to_text() const {
  std::string out = format(
      "model   {}  {:.3f} B parameters, {} ({} delta, {} attention)    world {}\n", model,
      static_cast<double>(parameters) * 1e-9, counted(layers, "layer"), delta_layers, layers - delta_layers,
      nodes > 1 ? format("{} ({})", world_size, counted(nodes, "node")) : format("{}", world_size));
  out += format("step    {} x {} slots, documents of {} tokens, every token supervised; recompute {}\n",
                accumulation, max_tokens, document_length, recompute);
  out += format("        {}\n", recompute_detail);
  out += format("        rows of at most {} segments; a run takes memory for as many as its data needs\n\n",
                max_documents);
  out += format("{:<44} {:<7} {:>12}\n", "memory per device", "life", "GiB");
  for (const Region& region : memory.regions()) {
    out +=
        format("  {:<42} {:<7} {:>12.4f}{}\n", region.name, name_of(region.lifetime),
               gib(static_cast<double>(region.bytes)), region.host ? "   host memory, not in the total" : "");
  }
  out += format("  {:<42} {:<7} {:>12.4f}   {} bytes\n\n", "total", "",
                gib(static_cast<double>(memory.total())), format_count(static_cast<int64_t>(memory.total())));
  out += format("{:<26} {:<14} {:>7} {:>12} {:>10} {:>11}\n", "ops per step and device", "kernel", "calls",
                "GFLOP", "GB", card ? "roofline ms" : "");
  for (const PlannedOp& op : ops) {
    out += format("  {:<24} {:<14} {:>7} {:>12.2f} {:>10.3f} {:>11}\n", op.name,
                  op.kernel + (op.slow ? ", slow" : ""), op.calls, op.flops * 1e-9, op.bytes * 1e-9,
                  card ? format("{:.3f}", op.seconds * 1e3) : "");
  }
  if (world_size > 1) {
    out += format("  gathers {:.2f} GB, reductions {:.2f} GB sent per device", comm.gather_bytes * 1e-9,
                  comm.reduce_bytes * 1e-9);
    out += "\n";
    if (embedding_rows != "no") {
      out += format("  of the embedding, rows are sent in place of {}\n",
                    embedding_rows == "yes" ? "the table and its gradient"
                                            : "the gradient of the table, which is gathered");
    }
    if (card) out += links_text(*this);
  }
  if (host_link_bytes > 0) {
    out += format("  moments on the link to host memory: {:.2f} GB each way, {:.1f} ms at {} GB/s, {}\n",
                  host_link_bytes * 1e-9, host_link_seconds * 1e3, card->host_link_gb_s,
                  release ? "beside backward" : "behind the last backward: the step waits");
  }
  if (card) {
    out += format(
        "\nroofline {:.1f} ms a step on {}: {:.0f} tokens/s per device ({} TFLOP/s matrix, {} GB/s copy)\n",
        (seconds() + links.exposed_seconds) * 1e3, card->title, tokens_per_second(), card->gemm_tflops,
        card->copy_gb_s);
    for (const char* field : {"gemm_tflops", "copy_gb_s"}) out += source_text(*card, field);
  }
  const auto slow = std::count_if(ops.begin(), ops.end(), [](const PlannedOp& op) { return op.slow; });
  if (slow > 0) {
    out += format(
        "{} of these ops have only their plain, slow kernel there: a run needs allow_slow_kernels\n", slow);
  }
  const double free = gib(static_cast<double>(memory_available)) - gib(static_cast<double>(memory.total()));
  out += fits() ? format("verdict: fits, {:.2f} of {:.2f} GiB free\n", free,
                         gib(static_cast<double>(memory_available)))
                : format("verdict: does not fit, {:.2f} GiB more than the {:.2f} available\n", -free,
                         gib(static_cast<double>(memory_available)));
  if (advice) out += advice->to_text();
  if (!fits() && !advice) out += "no memory layout fits: lower max_tokens, or use more devices\n";
  return out;
}

}  // namespace deltatune
