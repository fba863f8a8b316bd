// The rows of the options table.
#include "cli/options.h"

#include <limits>

#include "observe/profile_table.h"

namespace deltatune::cli {

Option& Option::alias(std::vector<std::string> names) {
  aliases = std::move(names);
  return *this;
}
Option& Option::one_of(std::vector<std::string> values) {
  choices = std::move(values);
  return *this;
}
Option& Option::not_yet(std::vector<std::string> values) {
  later = std::move(values);
  return *this;
}
Option& Option::not_yet() {
  unbuilt = true;
  return *this;
}
Option& Option::spelled(std::vector<std::pair<std::string, std::string>> pairs) {
  renamed = std::move(pairs);
  return *this;
}
Option& Option::range(double lowest, double highest) {
  low = lowest;
  high = highest;
  return *this;
}
Option& Option::above(double lowest) {
  low_open = true;
  return at_least(lowest);
}
Option& Option::at_least(double lowest) {
  return range(lowest, std::numeric_limits<double>::infinity());
}
Option& Option::at_most(double highest) {
  high = highest;
  return *this;
}
Option& Option::command_line() {
  flag_only = true;
  return *this;
}
Option& Option::flag(std::string spelling) {
  flag_name = std::move(spelling);
  return *this;
}
Option& Option::also_flag(std::string spelling) {
  flag_alias = std::move(spelling);
  return *this;
}

namespace {

using namespace reader;

constexpr unsigned training = train | plan;
constexpr unsigned with_model = training | eval | generate;
constexpr unsigned with_data = training | eval | data;
constexpr unsigned with_text = with_data | generate;
constexpr unsigned of_rows = data_show | data_render | data_tokenize;

// Collects rows of one group after another.
class Table {
 public:
  void group(std::string name) { group_ = std::move(name); }
  template <class M>
  Option& add(const char* name, M Config::*member, unsigned readers, const char* doc) {
    Option& row = rows.emplace_back();
    row.name = name;
    row.member = member;
    row.doc = doc;
    row.group = group_;
    row.readers = readers;
    row.flag_name = name;
    row.low = -std::numeric_limits<double>::infinity();
    row.high = std::numeric_limits<double>::infinity();
    return row;
  }
  std::vector<Option> rows;

 private:
  std::string group_;
};

void model_rows(Table& t) {
  t.group("model");
  t.add("model_name_or_path", &Config::model_name_or_path, with_model | data,
        "checkpoint folder, or an id that is in the local Hugging Face cache; nothing is downloaded")
      .alias({"model", "base_model"});
  t.add("init", &Config::init, with_model,
        "weights: read from the checkpoint, or random from config.json alone by Hugging Face's initialiser; "
        "eval and "
        "generate use random ones only where the folder has no others")
      .one_of({"pretrained", "random"});
  t.add("tokenizer_name_or_path", &Config::tokenizer_name_or_path, with_text,
        "folder with tokenizer.json; empty means the model folder")
      .alias({"tokenizer_name", "tokenizer"});
  t.add("chat_template", &Config::chat_template, with_text,
        "from_model, the path of a Jinja file, or the name of another template of the checkpoint")
      .alias({"chat_template_path"})
      .also_flag("template");
  t.add("chat_template_kwargs", &Config::chat_template_kwargs, with_text,
        "variables of the chat template, e.g. {enable_thinking: false}");
}

void data_rows(Table& t) {
  t.group("data");
  t.add("dataset", &Config::dataset, with_data,
        "training data: files, folders, globs or URIs (s3://, gs://, hdfs://) of Parquet, JSONL or JSON, the "
        "last two plain, .gz or .zst")
      .alias({"dataset_name", "train_dataset"});
  t.add("dataset_train_split", &Config::dataset_train_split, with_data,
        "split to read where a folder of dataset has several");
  t.add("dataset_weights", &Config::dataset_weights, training | data,
        "how often an epoch uses the conversations of each entry of dataset: 0.5 is every second one, 2 is "
        "twice");
  t.add("streaming", &Config::streaming, train,
        "tokenise while training, for data that is too large to tokenise first; needs max_steps");
  t.add("shuffle_buffer_size", &Config::shuffle_buffer_size, train,
        "with streaming: conversations that are shuffled and packed together")
      .alias({"streaming_multipack_buffer_size"})
      .range(1, 1 << 24);
  t.add("dataloader_prefetch_factor", &Config::dataloader_prefetch_factor, train,
        "micro-batches that a thread makes ahead of the step; 0 means none")
      .range(0, 1024);
  t.add("dataset_schema", &Config::dataset_schema, with_data, "what the rows are; auto: from their members")
      .one_of({"auto", "messages", "sharegpt", "alpaca", "prompt_completion"});
  t.add("messages_field", &Config::messages_field, with_data,
        "field of a row that holds the conversation; without it messages, then conversations")
      .alias({"field_messages", "dataset_text_field"});
  t.add("train_on", &Config::train_on, with_data,
        "tokens that count in the loss: every assistant turn, the last one, or everything")
      .one_of({"assistant", "last", "all"});
  t.add(
       "think_prefix", &Config::think_prefix, with_data,
       "think block at the start of a turn: train what the generation prompt does not give, all of it, or no "
       "empty one")
      .one_of({"generated", "all", "skip_empty"});
  t.add("overflow", &Config::overflow, with_data,
        "conversations longer than max_length: cut their end, leave them out, or cut them in pieces")
      .one_of({"truncate", "drop", "split"})
      .alias({"excess_length_strategy"});
  t.add("on_bad_row", &Config::on_bad_row, with_data,
        "malformed or unusable rows: stop, or skip and count them")
      .one_of({"error", "skip"});
  t.add(
      "dataset_cache", &Config::dataset_cache, with_data,
      "where tokenised datasets are kept for the next start: auto (in DELTATUNE_CACHE, from 4 MiB on), off, "
      "or a folder");
  t.add("dataset_cache_limit", &Config::dataset_cache_limit, with_data,
        "GiB of token caches that are kept: what was not used for longest goes first; 0 means no limit")
      .at_least(0);
  t.add("parse_special_in_content", &Config::parse_special_in_content, with_text,
        "let control tokens typed inside a message become control tokens, as a plain render would");
  t.add("max_length", &Config::max_length, with_text, "tokens of one conversation, at most")
      .alias({"sequence_len", "cutoff_len", "max_seq_length"})
      .range(2, 1 << 24);
}

void batch_rows(Table& t) {
  t.group("batches");
  t.add("batching", &Config::batching, with_data,
        "rows: whole conversations packed end to end, one per row padded, or padded and sorted by length")
      .one_of({"packed", "padded", "sorted"});
  t.add("packing_strategy", &Config::packing_strategy, with_data,
        "how conversations are put into rows: bfd is best fit decreasing")
      .one_of({"bfd"});
  t.add("max_tokens", &Config::max_tokens, with_data,
        "tokens of one packed row: one micro-batch on one device")
      .range(2, 1 << 24);
  t.add("max_documents", &Config::max_documents, with_data,
        "conversations in one row, at most; 0 means one per 32 slots (at least 16). Memory is taken for as "
        "many "
        "as the data needs")
      .range(0, 1 << 24);
  t.add("gradient_accumulation_steps", &Config::gradient_accumulation_steps, training | data,
        "micro-batches of one optimizer step")
      .range(1, 1 << 20);
}

void optimizer_rows(Table& t) {
  t.group("optimizer");
  t.add("num_train_epochs", &Config::num_train_epochs, training | data,
        "passes over the data; fractions are fine")
      .alias({"num_epochs"})
      .above(0)
      .at_most(10000);
  t.add("max_steps", &Config::max_steps, training, "optimizer steps; -1 means from num_train_epochs")
      .at_least(-1);
  t.add("learning_rate", &Config::learning_rate, training, "peak learning rate").alias({"lr"}).range(0, 1);
  t.add("lr_scheduler_type", &Config::lr_scheduler_type, training,
        "schedule after the warm-up; constant has no warm-up")
      .alias({"lr_scheduler"})
      .one_of({"cosine", "linear", "constant", "constant_with_warmup"});
  t.add("warmup_ratio", &Config::warmup_ratio, training, "share of all steps in which the rate rises from 0")
      .range(0, 1);
  t.add("warmup_steps", &Config::warmup_steps, training, "steps of warm-up; above 0 it beats warmup_ratio")
      .at_least(0);
  t.add("weight_decay", &Config::weight_decay, training,
        "decoupled weight decay; norms and one-dimensional parameters are exempt")
      .range(0, 1);
  t.add("adam_beta1", &Config::adam_beta1, training, "decay of the first moment").range(0, 0.999999);
  t.add("adam_beta2", &Config::adam_beta2, training, "decay of the second moment").range(0, 0.999999);
  t.add("adam_epsilon", &Config::adam_epsilon, training, "added to the root of the second moment")
      .range(0, 1);
  t.add("max_grad_norm", &Config::max_grad_norm, training,
        "clip the global gradient norm to this; 0 means never")
      .at_least(0);
  t.add("optim", &Config::optim, training | bench,
        "adamw_8bit keeps the two moments in 8 bits, in blocks of 128 with one scale each")
      .one_of({"adamw", "adamw_8bit"})
      .alias({"optimizer"})
      .spelled({{"adamw_torch", "adamw"},
                {"adamw_torch_fused", "adamw"},
                {"adamw_hf", "adamw"},
                {"adamw_bnb_8bit", "adamw_8bit"}});
  t.add("on_nonfinite", &Config::on_nonfinite, train,
        "a loss or gradient that is NaN or infinite: stop, or skip the step")
      .one_of({"stop", "skip"});
}

void memory_rows(Table& t) {
  t.group("precision and memory");
  t.add("dtype", &Config::dtype, with_model | parity | bench, "weights in use and activations")
      .one_of({"bf16", "f32"})
      .alias({"torch_dtype"})
      .spelled({{"bfloat16", "bf16"}, {"float32", "f32"}, {"fp32", "f32"}});
  t.add("optim_dtype", &Config::optim_dtype, training | bench, "storage of Adam's two moments")
      .one_of({"f32", "bf16"});
  t.add("master_weights", &Config::master_weights, training | bench,
        "keep an fp32 copy of bf16 weights; without it most updates are lost unless weight_rounding is "
        "stochastic");
  t.add("weight_rounding", &Config::weight_rounding, training | bench,
        "rounding of what the optimizer keeps in bf16: weights without master_weights, moments")
      .one_of({"nearest", "stochastic"});
  t.add("grad_dtype", &Config::grad_dtype, training, "storage of accumulated gradients")
      .one_of({"f32", "bf16"})
      .not_yet({"bf16"});
  t.add("offload_optimizer", &Config::offload_optimizer, training,
        "keep Adam's moments in host memory; they visit the GPU for the update");
  t.add("gradient_release", &Config::gradient_release, training,
        "update each block of weights as soon as its gradient is complete, and keep no gradients; excludes "
        "accumulation and clipping");
  t.add("recompute", &Config::recompute, training | parity | bench_step,
        "activations: keep all, keep matrix products, keep each block's input, or what free memory pays best "
        "for")
      .one_of({"auto", "none", "cheap", "block"});
}

void device_rows(Table& t) {
  t.group("devices");
  t.add("device", &Config::device, train | eval | generate | parity | bench,
        "where to compute; auto prefers a GPU")
      .one_of({"auto", "cpu", "cuda"});
  t.add("device_card", &Config::device_card, plan,
        "plan for this device, e.g. h200; empty means this machine")
      .flag("device")
      .command_line();
  t.add("nproc", &Config::nproc, training, "ranks on this machine")
      .alias({"nproc_per_node", "gpus"})
      .range(1, 1 << 16);
  t.add("nodes", &Config::nodes, plan, "machines of nproc ranks each").range(1, 1 << 16).command_line();
  t.add("shard", &Config::shard, training,
        "what is cut over the ranks: all, gradients and optimizer, nothing")
      .one_of({"full", "grads", "none"});
  t.add("reduce_dtype", &Config::reduce_dtype, training, "gradients while they are summed over ranks")
      .one_of({"f32", "bf16"});
  t.add("comm_transport", &Config::comm_transport, train,
        "what carries bytes between GPUs: copies between those of one host, or NCCL; auto takes copies where "
        "all "
        "ranks can")
      .one_of({"auto", "peer", "nccl"});
  t.add("ddp_timeout", &Config::ddp_timeout, training, "seconds a rank waits for the others")
      .range(1, 1 << 24);
  t.add("rank_status", &Config::rank_status, train,
        "file in which a rank tells the program that started it how it is; --nproc sets it")
      .command_line();
  t.add("max_restarts", &Config::max_restarts, train,
        "times the ranks are started again from the latest checkpoint after one was killed, hung or failed")
      .at_least(0);
  t.add("allow_slow_kernels", &Config::allow_slow_kernels, with_model | bench,
        "run even where an operation has only its plain, slow kernel on this GPU (f32 has no others)");
  t.add("deterministic", &Config::deterministic, with_model | parity | bench,
        "only kernels that repeat bit for bit");
  t.add("matmul_tuning", &Config::matmul_tuning, with_model | bench,
        "auto times the library's algorithms for each matrix product once and stores the choice in "
        "DELTATUNE_CACHE; off takes its first suggestion")
      .one_of({"auto", "off"});
  t.add("cuda_graph", &Config::cuda_graph, training | bench_step, "capture the step as CUDA graphs")
      .one_of({"auto", "true", "false"})
      .spelled({{"True", "true"}, {"False", "false"}});
}

void output_rows(Table& t) {
  t.group("logging");
  t.add("output_dir", &Config::output_dir, training, "folder for checkpoints, logs and the report");
  t.add("run_name", &Config::run_name, train, "name in logs and report; empty means that of output_dir");
  t.add("logging_steps", &Config::logging_steps, train, "steps between two logged lines").range(1, 1 << 24);
  t.add("report_to", &Config::report_to, train, "where metrics go; metrics.jsonl is always written")
      .one_of({"jsonl", "tensorboard", "prometheus", "mlflow", "none"});
  t.add("logging_dir", &Config::logging_dir, train,
        "folder of TensorBoard's event files; empty means runs/TIME_HOST in output_dir");
  t.add("progress", &Config::progress, train | eval, "progress on stderr")
      .one_of({"auto", "bar", "plain", "json", "none"});
  t.add("profile", &Config::profile, train,
        "trace some steps: ops writes profile.json, trace also a file for Perfetto")
      .one_of({"off", "ops", "trace"});
  t.add("profile_wait", &Config::profile_wait, train, "steps of a profiler cycle before anything is traced")
      .also_flag("wait")
      .range(0, 1 << 24);
  t.add("profile_warmup", &Config::profile_warmup, train, "steps then that are traced and thrown away")
      .also_flag("warmup")
      .range(0, 1 << 16);
  t.add("profile_active", &Config::profile_active, train, "steps then that are profiled")
      .also_flag("active")
      .range(1, 1 << 10);
  t.add("profile_repeat", &Config::profile_repeat, train, "profiler cycles")
      .also_flag("repeat")
      .range(1, 1 << 10);
  t.group("saving");
  t.add("save_steps", &Config::save_steps, train, "steps between two checkpoints; 0 means only at the end")
      .at_least(0);
  t.add("save_total_limit", &Config::save_total_limit, train, "checkpoints to keep; 0 means all").at_least(0);
  t.add("save_only_model", &Config::save_only_model, train, "write no resume state into checkpoints");
  t.add("async_save", &Config::async_save, train | plan,
        "write checkpoints from a copy in host memory while training goes on; auto: where memory suffices")
      .one_of({"auto", "true", "false"})
      .spelled({{"True", "true"}, {"False", "false"}});
  t.add("resume_from_checkpoint", &Config::resume_from_checkpoint, train,
        "true means the latest complete checkpoint of output_dir; or a checkpoint folder")
      .spelled({{"True", "true"}, {"False", ""}, {"false", ""}});
  t.add("max_shard_size", &Config::max_shard_size, train,
        "size of one weight file where there is no input checkpoint whose layout is kept");
  t.add("overwrite_output_dir", &Config::overwrite_output_dir, train,
        "start anew in an output folder that holds an earlier run");
  t.group("object stores");
  t.add("read_retries", &Config::read_retries, with_data,
        "retries of a request to an object store that brought nothing; 0 means none")
      .range(0, 1000);
  t.add("read_retry_wait", &Config::read_retry_wait, with_data,
        "seconds before the first retry; doubles, drawn at random between half and all of it")
      .range(0, 600);
  t.add("read_timeout", &Config::read_timeout, with_data,
        "seconds without an answer after which a request is sent again; a quarter of it is reported")
      .range(0.1, 3600);
  t.group("evaluation");
  t.add("eval_dataset", &Config::eval_dataset, training | eval, "held-out data, as dataset");
  t.add("dataset_test_split", &Config::dataset_test_split, training | eval,
        "split to read where a folder of eval_dataset has several");
  t.add("eval_steps", &Config::eval_steps, train, "steps between two evaluations; 0 means only at the end")
      .at_least(0);
  t.add("val_size", &Config::val_size, with_data,
        "hold out this share (below 1) or number of rows of dataset for evaluation")
      .alias({"val_set_size"})
      .at_least(0);
  t.group("randomness");
  t.add("seed", &Config::seed, with_model | data, "seed of everything random").at_least(0);
  t.add("data_seed", &Config::data_seed, with_data, "seed of the order of data; -1 means seed").at_least(-1);
}

void command_rows(Table& t) {
  t.group("this command");
  t.add("dry_run", &Config::dry_run, train, "read and pack the data, plan, open the output folder; no step")
      .command_line();
  t.add("sweep", &Config::sweep, plan, "plan each value: key=a,b,c").command_line();
  t.add("scaling", &Config::scaling, plan,
        "one line each for 2, 4, ... 1024 devices, in nodes of nproc (or 8)")
      .command_line();
  t.add("row", &Config::row, of_rows, "row number, from 0; -1 means the first few")
      .at_least(-1)
      .command_line();
  t.add("rows", &Config::rows, of_rows, "how many rows where none is named").range(1, 1 << 20).command_line();
  t.add("render_messages", &Config::render_messages, data_render,
        "conversations in place of a dataset: a JSON file or lines, - for standard input; gives a JSON line "
        "for each")
      .flag("messages")
      .command_line();
  t.add("add_generation_prompt", &Config::add_generation_prompt, data_render,
        "end with what starts an answer, as a server renders")
      .command_line();
  t.add("set", &Config::set, data, "template variable name=value; the value is read as JSON where it parses")
      .command_line();
  t.add("compare", &Config::compare, data_pack, "padded, sorted and packed side by side").command_line();
  t.add("pack_lengths", &Config::pack_lengths, data_pack,
        "file of conversation lengths in tokens, one a line, in place of a dataset")
      .flag("lengths")
      .command_line();
  t.add("text", &Config::text, data_tokenize, "text to tokenize; - means lines of standard input")
      .command_line();
  t.add("hex", &Config::hex, data_tokenize, "the text, or each line, is bytes in hexadecimal").command_line();
  t.add("special", &Config::special, data_tokenize,
        "control-token strings in the text become control tokens, as in other tokenizers")
      .command_line();
  t.add("prompt", &Config::prompt, generate, "the user's message").command_line();
  t.add("system", &Config::system, generate, "system message before it").command_line();
  t.add("max_new_tokens", &Config::max_new_tokens, generate, "tokens to generate, at most")
      .range(1, 1 << 24)
      .command_line();
  t.add("temperature", &Config::temperature, generate, "0 takes the most likely token")
      .range(0, 100)
      .command_line();
  t.add("top_k", &Config::top_k, generate, "sample among this many tokens; 0 means all")
      .at_least(0)
      .command_line();
  t.add("top_p", &Config::top_p, generate, "sample among the likeliest tokens with this total")
      .range(0, 1)
      .command_line();
  t.add("order", &Config::order, parity, "order of the sequences in the row")
      .one_of({"forward", "reverse"})
      .command_line();
  t.add("micro_batches", &Config::micro_batches, parity, "rows that the sequences are spread over")
      .range(1, 1 << 16)
      .command_line();
  t.add("bench_model", &Config::bench_model, bench,
        "model whose shapes are timed: qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b, qwen3.5-9b, qwen3.8-27b, or a "
        "folder with "
        "config.json")
      .flag("model")
      .command_line();
  t.add("bench_tokens", &Config::bench_tokens, bench, "tokens of the row")
      .range(2, 1 << 24)
      .flag("tokens")
      .command_line();
  t.add("bench_lengths", &Config::bench_lengths, bench,
        "file with document lengths, one a line; without it documents of 1240")
      .flag("lengths")
      .command_line();
  t.add("bench_kernel", &Config::bench_kernel, bench_op, "time this kernel of each op, e.g. plain")
      .flag("kernel")
      .command_line();
  t.add("bench_layers", &Config::bench_layers, bench_step | bench_ladder,
        "layers that are measured, beside half as many; figures are extended to all")
      .range(1, 1 << 16)
      .flag("layers")
      .command_line();
  t.add("bench_depths", &Config::bench_depths, bench_step | bench_ladder,
        "the numbers of layers themselves, e.g. 4,8")
      .flag("depths")
      .command_line();
  t.add("bench_bits", &Config::bench_bits, bench_step,
        "in place of times: repeat forward and backward this often and compare the bits of the gradients")
      .range(0, 1 << 30)
      .flag("check_bits")
      .command_line();
  t.add("bench_devices", &Config::bench_devices, bench_ladder,
        "devices that share the epoch and the memory of the whole model")
      .range(1, 1 << 20)
      .flag("devices")
      .command_line();
  t.add("bench_svg", &Config::bench_svg, bench_ladder, "file for a picture of the rungs")
      .flag("svg")
      .command_line();
  t.add("bench_rivals", &Config::bench_rivals, bench_ladder,
        "bench/rivals/ladder.py, run by python3: rungs of transformers beside ours")
      .flag("rivals")
      .command_line();
  t.add("bench_json", &Config::bench_json, bench, "file for results, machine and versions")
      .flag("json")
      .command_line();
  t.add("profile_sort", &Config::profile_sort, profile, "column that rows of the tables are sorted by")
      .one_of(profile_columns())
      .flag("sort")
      .command_line();
  t.add("profile_group", &Config::profile_group, profile, "what a row of the tables is")
      .one_of({"op", "op_shape", "kernel", "phase"})
      .flag("group")
      .command_line();
  t.add("profile_top", &Config::profile_top, profile, "rows of a table, at most; 0 means all")
      .range(0, 1 << 20)
      .flag("top")
      .command_line();
  t.add("json", &Config::json, every & ~(train | report | bench), "print results as JSON").command_line();
  t.add("ignore_foreign_keys", &Config::ignore_foreign_keys, with_text,
        "skip keys of other frameworks that mean nothing here")
      .command_line();
  t.add("quiet", &Config::quiet, every, "warnings and errors only (-q)").command_line();
  t.add("verbose", &Config::verbose, every, "more detail (-v)").command_line();
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> rows = [] {
    Table table;
    model_rows(table);
    data_rows(table);
    batch_rows(table);
    optimizer_rows(table);
    memory_rows(table);
    device_rows(table);
    output_rows(table);
    command_rows(table);
    return std::move(table.rows);
  }();
  return rows;
}

const Option* find_option(std::string_view key) {
  for (const Option& option : options()) {
    if (option.name == key) return &option;
    for (const std::string& alias : option.aliases) {
      if (alias == key) return &option;
    }
  }
  return nullptr;
}

}  // namespace deltatune::cli
