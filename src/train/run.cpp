// The training run. The step itself is step.cpp.
#include "train/run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/phases.h"
#include "comm/exchange.h"
#include "data/hold_out.h"
#include "data/remote.h"
#include "data/stats.h"
#include "observe/console.h"
#include "observe/report.h"
#include "observe/run_info.h"
#include "train/checkpoint.h"
#include "train/checkpoint_saver.h"
#include "train/evaluate.h"
#include "train/kernel_report.h"
#include "train/output_folder.h"
#include "train/plan.h"
#include "train/profiler.h"
#include "train/recompute.h"
#include "train/run_data.h"
#include "train/run_log.h"
#include "train/run_stream.h"
#include "train/save_options.h"
#include "train/setup.h"
#include "train/step.h"
#include "train/stop_signal.h"

namespace deltatune {
namespace {

// The sign of a NaN says nothing.
std::string in_words(double x) {
  return std::isnan(x) ? "nan" : format("{}", x);
}

// available: what the run might have taken.
json::Value plan_json(const MemoryPlan& plan, uint64_t available) {
  json::Array regions;
  for (const Region& region : plan.regions()) {
    json::Value item;
    item.set("name", region.name);
    item.set("lifetime", name_of(region.lifetime));
    item.set("bytes", static_cast<int64_t>(region.bytes));
    if (region.host) item.set("host", true);
    regions.push_back(std::move(item));
  }
  json::Value out;
  out.set("total_bytes", static_cast<int64_t>(plan.total()));
  out.set("available_bytes", static_cast<int64_t>(std::min(available, uint64_t{1} << 62)));
  out.set("regions", std::move(regions));
  return out;
}

class TrainingRun {
 public:
  TrainingRun(Device& device, Communicator& comm, const Config& config, const RunContext& context)
      : device_(device),
        comm_(comm),
        leads_(comm.rank() == 0),
        writes_(leads_ && !config.dry_run && !config.profile_only),
        status_(context.status),
        resolved_config_(context.resolved_config),
        config_(config),
        output_(config.output_dir),
        resume_(resume_together()),
        info_(output_ / "run.json", context.command_line),
        terminal_(terminal_of_stderr()),
        console_(progress_style(leads_ ? config.progress : "none", terminal_), terminal_),
        log_(config, comm, console_, context.report) {
    if (leads_) prepare_output_folder(config, resume_.has_value());
    comm_.exchange("");  // nobody goes on before the folder is there
    check_shared_folder(comm_, output_);
    if (!writes_) return;
    write_file_atomic(output_ / "config.resolved.yaml", context.resolved_config);
    if (!config.run_name.empty()) info_.set("run_name", config.run_name);
    info_.write();
  }

  int run() {
    try {
      const int code = run_steps();
      if (!writes_) return code;
      info_.finish(code);
      log_.end(code == 0 ? RunEnd::done : RunEnd::stopped);
      log_.write_page(true);
      return code;
    } catch (const Error& error) {
      finish_failed(error);
      throw;
    }
  }

 private:
  // Looking may finish an interrupted save: one rank does it.
  std::optional<fs::path> resume_together() {
    const auto found = leads_ ? find_resume(config_.resume_from_checkpoint, output_) : std::nullopt;
    const std::string path = from_rank_0(comm_, found ? found->string() : "");
    return path.empty() ? std::nullopt : std::optional<fs::path>(path);
  }

  static constexpr const char* training = "training";
  void at(const char* phase) {
    int64_t step = trainer_ ? trainer_->steps_done() : 0;
    if (phase == training) ++step;
    comm_.note(step, phase);
    set_activity(phase == training ? format("step {} of {}", step, total_steps_) : phase);
    if (status_ != nullptr) status_->at(step, phase);
  }

  int run_steps() {
    const StopSignal signals;
    phases_.end("program and device");
    at("loading the data");
    load();
    if (config_.dry_run) return dry_run();
    at("laying out memory and choosing kernels");
    place();
    start();
    phases_.end(resume_ ? "checkpoint" : "weights");
    int stopped = 0;
    while (!trainer_->done() && stopped == 0) {
      one_step();
      if (trainer_->steps_done() == started_at_ + 1) report_start();
      // What one rank is told or wants, all do.
      int64_t word = 2 * StopSignal::exit_code() + (log_.telemetry_due() ? 1 : 0);
      if (comm_.world_size() > 1) word = max_over_ranks(comm_, word);
      stopped = static_cast<int>(word / 2);
      if (word % 2 == 1) log_.write_telemetry(trainer_->steps_done());
    }
    console_.finish();
    if (profiler_) profiler_->finish();
    if (config_.profile_only) return end_profile(stopped);
    if (skipped_rows_ && skipped_rows_->count() > 0)
      log::info("{} skipped rows are listed in {}", skipped_rows_->count(), skipped_rows_->path().string());
    if (stopped != 0 && !trainer_->done()) {
      if (saved_step_ != trainer_->steps_done()) save();
      finish_save();
      log::info("stopped after step {}; go on with --resume_from_checkpoint true", trainer_->steps_done());
      return stopped;
    }
    finish();
    return 0;
  }

  int end_profile(int stopped) {
    const std::string text = profiler_->text();
    std::fwrite(text.data(), 1, text.size(), stdout);
    return stopped;
  }

  void load() {
    check_data_keys(config_);
    check_engine_keys(config_, true);
    source_ = open_model(config_.model_name_or_path, config_.init);
    phases_.end("model files");
    text_ = open_run_text(config_, source_, false);
    if (config_.dataset.empty()) {
      throw Error(ErrorKind::usage, "no dataset is named", "dataset",
                  "give a list of files, folders or globs");
    }
    console_.phase("reading and tokenising the data", 0, 0);
    if (!config_.streaming) {
      train_set_ = load_set(config_.dataset, config_.dataset_train_split, config_, source_, text_);
      if (writes_) write_skipped_rows(train_set_, output_);
      data_facts_ = dataset_json(train_set_);
    } else if (writes_) {
      skipped_rows_ = std::make_shared<SkippedRowsFile>(output_ / "skipped_rows.jsonl", resume_.has_value());
    }
    if (!config_.eval_dataset.empty())
      eval_set_ = load_set(config_.eval_dataset, config_.dataset_test_split, config_, source_, text_);
    if (!config_.streaming && config_.eval_dataset.empty() && config_.val_size > 0) split_validation();
    RunStream stream = config_.streaming ? open_streaming(config_, source_, text_, skipped_rows_)
                                         : open_stream(config_, train_set_, text_.pad_id());
    int64_t segments = stream.max_segments;
    if (eval_set_) {
      const EvalBatches batches(*eval_set_, stream_options(config_, text_.pad_id()));
      segments = std::max(segments, batches.max_segments());
    }
    sized_ = with_segments(config_, segments);
    total_steps_ = stream.total_steps;
    stream_ = std::move(stream.rows);
    phases_.end("data");
  }

  void split_validation() {
    auto [train, held_out] = hold_out(train_set_, config_.val_size, static_cast<uint64_t>(config_.seed));
    train_set_ = std::move(train);
    eval_set_ = std::move(held_out);
    log::info("held out {} for evaluation (val_size)", counted(eval_set_->size(), "conversation"));
  }

  int dry_run() {
    console_.finish();
    const PlanReport plan = make_plan(sized_, source_, std::nullopt);
    const std::string text = plan.to_text();
    std::fwrite(text.data(), 1, text.size(), stdout);
    log::info("dry run: {} would be run; nothing was trained", counted(total_steps_, "step"));
    return plan.fits() ? 0 : exit_code(ErrorKind::resource);
  }

  void place() {
    const auto budget = shared_budget();
    const KeepChoice choice = choose_keep(sized_, source_, device_.facts(), comm_.world_size(), budget);
    if (choice.plan_bytes > budget) {
      throw Error(
          ErrorKind::resource,
          format("the run needs {}, {} are available", format_bytes(choice.plan_bytes), format_bytes(budget)),
          "plan with recompute: " + choice.name,
          "lower max_tokens; `deltatune plan` shows where the bytes go and which memory layout fits");
    }
    engine_ = std::make_unique<Engine>(device_, comm_, source_.config, source_.tied,
                                       engine_options(sized_, choice.keep, true));
    log::info("model: {} parameters in {}, {}; device {}, dtype {}, recompute {}, {} allocated",
              format_count(engine_->store().table().element_count()),
              counted(source_.config.layers(), "layer"), source_.tied ? "tied head" : "own head",
              device_.name(), config_.dtype, choice.name, format_bytes(device_.plan().total()));
    if (config_.recompute == "auto") log::info("recompute auto: {}", choice.describe());
    if (config_.gradient_release)
      log::info("gradient_release: each block is updated inside of backward; no accumulation, no clipping");
    log::info("{}", describe_decay(engine_->store().table(), config_.weight_decay));
    warn_of_rounding();
    Schedule schedule{config_.lr_scheduler_type, config_.learning_rate,
                      warmup_steps(config_.warmup_steps, config_.warmup_ratio, total_steps_), total_steps_};
    if (schedule.type != "constant" && schedule.warmup_steps >= total_steps_) {
      log::warn("all {} steps are warm-up: the learning rate never reaches {}", total_steps_,
                config_.learning_rate);
    }
    trainer_ = std::make_unique<Trainer>(*engine_, *stream_, std::move(schedule),
                                         config_.gradient_accumulation_steps);
    log_.measure(*engine_, *trainer_, source_.tied);
    phases_.end("memory and kernels");
    phases_.split("tuning", engine_->tuning_seconds());
    const fs::path side_files = config_.tokenizer_name_or_path.empty() ? fs::path() : text_.folder;
    if (config_.profile != "off") profiler_ = std::make_unique<Profiler>(config_, *engine_, total_steps_);
    if (config_.profile_only) {
      allocations_ = device_.allocation_count();
      return;
    }
    saver_ = std::make_unique<CheckpointSaver>(*engine_, source_,
                                               save_options(config_, *engine_, side_files, total_steps_));
    phases_.end("memory for saves");
    allocations_ = device_.allocation_count();
    if (!leads_) return;
    info_.set("plan", plan_json(device_.plan(), budget));
    if (!data_facts_.is_null()) info_.set("data", data_facts_);
    if (device_.target() == Target::cuda) info_.set("kernels", kernels_json(engine_->kernels()));
    info_.set("recompute", choice.name);
    info_.set("data_fingerprint", stream_->fingerprint());
    info_.set("total_steps", total_steps_);
    info_.set("world_size", int64_t{comm_.world_size()});
    if (status_ != nullptr) info_.set("restarts", status_->restarts());
  }

  // What each rank may take, where CPU ranks share a machine's memory: the same on all.
  uint64_t shared_budget() {
    uint64_t budget = device_.available_bytes();
    if (comm_.world_size() == 1) return budget;
    if (device_.target() == Target::cpu) budget /= static_cast<uint64_t>(config_.local_world_size);
    const auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return static_cast<uint64_t>(min_over_ranks(comm_, static_cast<int64_t>(std::min(budget, most))));
  }

  void start() {
    at("loading the weights");
    console_.phase(resume_ ? "loading the checkpoint" : "loading the weights", 0, 0);
    if (resume_) {
      restore();
    } else {
      together(comm_, "load the weights", [&] {
        fill_store(engine_->store(), engine_->stream(), source_, static_cast<uint64_t>(config_.seed));
      });
      if (writes_ && config_.overwrite_output_dir) remove_previous_run(output_);
    }
    started_at_ = trainer_->steps_done();
    json::Value fields;
    fields.set("step", trainer_->steps_done());
    fields.set("total_steps", total_steps_);
    if (const RemoteCounts remote = remote_counts(); remote.requests > 0) {
      fields.set("remote_reads", json::Object{{"requests", remote.requests},
                                              {"bytes", remote.bytes},
                                              {"retries", remote.retries},
                                              {"retry_wait_s", remote.waited_s},
                                              {"stalls", remote.stalls},
                                              {"stalled_s", remote.stalled_s}});
    }
    log_.start(started_at_, total_steps_, engine_->kernels().slow(), std::move(fields), resolved_config_);
  }

  void warn_of_rounding() const {
    const bool bf16_weights = config_.dtype == "bf16" && !config_.master_weights;
    if (bf16_weights && config_.weight_rounding == "nearest") {
      log::warn(
          "master_weights: false with weight_rounding: nearest loses updates below half a bf16 step; "
          "weight_rounding: stochastic keeps them on average");
    }
    if (config_.weight_rounding == "stochastic" && !bf16_weights && moments_dtype(config_) != DType::bf16)
      log::warn("weight_rounding: stochastic changes nothing here: no weight and no moment is kept in bf16");
  }

  void restore() {
    json::Value state;
    together(comm_, "load the checkpoint", [&] { state = load_checkpoint(*resume_, *engine_); });
    if (const json::Value* dtype = state.find("dtype"); dtype && dtype->as_string() != config_.dtype) {
      throw Error(
          ErrorKind::usage,
          format("the checkpoint was made with dtype {}, this run has {}", dtype->as_string(), config_.dtype),
          resume_->string(), "resume with the same dtype");
    }
    if (const json::Value* rounding = state.find("weight_rounding");
        rounding && rounding->as_string() != config_.weight_rounding) {
      log::warn("weight_rounding was {} until the checkpoint and is {} from here on", rounding->as_string(),
                config_.weight_rounding);
    }
    trainer_->restore(state.at("trainer"));
    log_.restore_window(state.at("log_window"));
    tokens_seen_ = state.at("tokens_seen").as_integer();
    log_.history() = read_trainer_state(*resume_).log_history;
    saved_step_ = trainer_->steps_done();
    log::info("resumed from {} at step {}", resume_->string(), trainer_->steps_done());
    if (trainer_->done())
      log::info("nothing is left to do: {} of {} steps are done", trainer_->steps_done(), total_steps_);
  }

  void report_start() {
    phases_.end("first step");
    log::info("from the start of the process to the first step: {}", phases_.text());
    json::Value seconds = json::Object{};
    for (const auto& [name, value] : phases_.all()) seconds.set(name, value);
    if (writes_) info_.set("startup_s", std::move(seconds));
  }

  void one_step() {
    at(training);
    if (profiler_) profiler_->before_step();
    const StepReport report = trainer_->step();
    DELTATUNE_ASSERT(device_.allocation_count() == allocations_);
    tokens_seen_ += report.tokens;
    if (report.nonfinite) handle_nonfinite(report);
    if (report.empty) {
      log_.warn(report.step, format("step {} has no supervised target; weights are unchanged", report.step));
    }
    const bool last = trainer_->done();
    const auto due = [&](int64_t every) { return every > 0 && (report.step % every == 0 || last); };
    log_.step(report, due(config_.logging_steps));
    if (eval_set_ && due(config_.eval_steps) && config_.eval_steps > 0) run_evaluation();
    if (!saver_) return;
    if (const auto saved = saver_->poll()) report_save(*saved);
    if (config_.save_steps > 0 && report.step % config_.save_steps == 0) save();
  }

  void handle_nonfinite(const StepReport& report) {
    json::Value fields;
    fields.set("step", report.step);
    const NonfiniteOrigin& origin = report.nonfinite_origin;
    const std::string began = origin.where.empty() ? "" : "; it began in " + origin.where;
    fields.set("message", "loss or gradient is not finite" + began);
    origin.add_to(fields);
    const std::vector<int>& ranks = report.nonfinite_ranks;
    const std::string whose = ranks.empty() ? "" : name_ranks(ranks) + ", ";
    if (!ranks.empty()) fields.set("ranks", json::Array(ranks.begin(), ranks.end()));
    log_.event("nan", fields);
    if (config_.on_nonfinite == "skip") {
      log_.warn(report.step,
                format("{}step {}: loss or gradient is not finite{}; {}", whose, report.step, began,
                       config_.gradient_release ? "blocks from the first such gradient on are not updated"
                                                : "the step is skipped"));
      return;
    }
    finish_save();  // of an earlier step, which was sound; all ranks come here
    throw Error(ErrorKind::diverged, format("loss or gradient is not finite at step {}", report.step),
                format("{}step {}, {}: loss sum {}, gradient norm {}", whose, report.step,
                       origin.where.empty() ? "forward and backward" : origin.where,
                       in_words(report.loss_sum), in_words(report.grad_norm)),
                "lower learning_rate, look at the rows with `deltatune data show`, or skip such steps with "
                "on_nonfinite: skip; the last checkpoint is kept");
  }

  void run_evaluation() {
    at("evaluating");
    const EvalResult result =
        evaluate(*engine_, *eval_set_, stream_options(sized_, text_.pad_id()),
                 [&](int64_t done, int64_t total) { console_.phase("evaluating", done, total); });
    json::Value fields;
    fields.set("step", trainer_->steps_done());
    fields.set("epoch", stream_->epoch_progress());
    fields.set("eval_loss", result.loss());
    fields.set("eval_tokens", result.targets);
    fields.set("time_s", result.seconds);
    log_.event("eval", fields);
    log_.history().push_back({stream_->epoch_progress(),
                              trainer_->steps_done(),
                              {{"eval_loss", result.loss()}, {"eval_runtime", result.seconds}}});
    log::info("step {}: eval_loss {:.4f} over {}", trainer_->steps_done(), result.loss(),
              counted(result.targets, "target"));
    evaluated_step_ = trainer_->steps_done();
  }

  TrainerState trainer_state() const {
    TrainerState state;
    state.epoch = stream_->epoch_progress();
    state.global_step = trainer_->steps_done();
    state.max_steps = total_steps_;
    state.num_train_epochs = static_cast<int64_t>(std::ceil(config_.num_train_epochs));
    state.logging_steps = config_.logging_steps;
    state.eval_steps = config_.eval_steps;
    state.save_steps = config_.save_steps;
    state.num_input_tokens_seen = tokens_seen_;
    state.log_history = log_.history();
    return state;
  }

  void save() {
    at("saving");
    finish_save();
    log_.sync();
    json::Value state;
    state.set("trainer", trainer_->state());
    state.set("dtype", config_.dtype);
    state.set("weight_rounding", config_.weight_rounding);
    state.set("log_window", log_.window());
    state.set("tokens_seen", tokens_seen_);
    saved_step_ = trainer_->steps_done();
    if (!saver_->start(saved_step_, state, trainer_state())) finish_save();
  }

  // One that is still being written.
  void finish_save() {
    if (!saver_ || !saver_->pending()) return;
    at("saving");
    const Stopwatch clock;
    report_save(saver_->finish());
    if (clock.seconds() > 1) log::info("waited {} for the end of the save", format_duration(clock.seconds()));
  }

  void report_save(const SaveReport& save) {
    if (!leads_) return;
    const double rate = static_cast<double>(save.bytes) * 1e-9 / save.write_s;
    json::Value fields;
    fields.set("step", save.step);
    fields.set("path", save.folder.string());
    fields.set("time_s", save.write_s);
    fields.set("stall_s", save.stall_s);
    fields.set("wait_s", save.wait_s);
    fields.set("write_s", save.write_s);
    fields.set("bytes", save.bytes);
    fields.set("gb_per_s", rate);
    fields.set("background", save.background);
    log_.event("save", fields);
    log::info("saved {}: {} in {}, {:.2f} GB/s; training stood still for {}", save.folder.string(),
              format_bytes(static_cast<uint64_t>(save.bytes)), format_duration(save.write_s), rate,
              format_duration(save.stall_s));
    log_.refresh_report();
  }

  void finish() {
    if (trainer_->updates_done() == 0) {
      // With gradient release the blocks that backward had come to before the first bad gradient are updated.
      const bool release = config_.gradient_release;
      throw Error(ErrorKind::diverged,
                  release ? "no step has updated all of the weights" : "no step has updated the weights",
                  format("{}, each without a finite gradient{} or without a target",
                         counted(trainer_->steps_done(), "step"),
                         release ? " in all blocks (those before the first bad one may be updated)" : ""),
                  "look at the warnings above; no model was written");
    }
    if (eval_set_ && evaluated_step_ != trainer_->steps_done()) run_evaluation();
    finish_save();
    at("saving");
    saver_->save_model(trainer_state());
    log_.write_telemetry(trainer_->steps_done());
    if (!leads_) return;
    json::Value fields;
    fields.set("step", trainer_->steps_done());
    fields.set("time_s", log_.seconds());
    fields.set("tokens_seen", tokens_seen_);
    log_.event("end", fields);
    log::info("done: {} in {}; model in {}, report in {}", counted(trainer_->steps_done(), "step"),
              format_duration(log_.seconds()), output_.string(), (output_ / "report.html").string());
  }

  void finish_failed(const Error& error) {
    console_.finish();
    if (!writes_) return;
    try {
      info_.finish(exit_code(error.kind()), error.what());
      log_.end(RunEnd::failed);
      log_.write_page(true);
    } catch (const Error& second) {
      log::warn("run.json and report.html do not show the end of the run: {}", second.what());
    }
  }

  Device& device_;
  Communicator& comm_;
  bool leads_;   ///< rank 0: logs, metrics, report, and whatever is not a rank's own
  bool writes_;  ///< rank 0 of a run that leaves files behind
  RankStatus* status_;
  const std::string& resolved_config_;
  const Config& config_;
  Config sized_;  ///< with max_documents as the data needs it
  fs::path output_;
  std::optional<fs::path> resume_;
  RunInfo info_;
  Terminal terminal_;
  Console console_;
  RunLog log_;
  ModelSource source_;
  TextSource text_;
  TokenizedSet train_set_;
  std::optional<TokenizedSet> eval_set_;
  std::shared_ptr<SkippedRowsFile> skipped_rows_;  // of a run that streams
  std::unique_ptr<RowStream> stream_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<CheckpointSaver> saver_;  ///< nullptr: nothing is saved
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Profiler> profiler_;
  Phases phases_;
  int64_t total_steps_ = 0;
  int64_t tokens_seen_ = 0;
  int64_t saved_step_ = -1;
  int64_t evaluated_step_ = -1;
  int64_t started_at_ = 0;
  uint64_t allocations_ = 0;
  json::Value data_facts_;  // of the dataset before a part is held out; null: of a run that streams
};

}  // namespace

int run_training(Device& device, Communicator& comm, const Config& config, const RunContext& context) {
  return TrainingRun(device, comm, config, context).run();
}

}  // namespace deltatune
