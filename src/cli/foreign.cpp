// The list of foreign keys. Names as in Hugging Face TrainingArguments, TRL SFTConfig, axolotl and
// LLaMA-Factory.
#include "cli/foreign.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/format.h"

namespace deltatune::cli {
namespace {

bool is_true(const yaml::Node& node) {
  return node.text == "true" || node.text == "True" || node.text == "yes" || node.text == "on";
}
bool is_false(const yaml::Node& node) {
  return node.kind == yaml::Kind::null || node.text == "false" || node.text == "False" || node.text == "no" ||
         node.text == "off" || node.text == "null" || node.text == "None" || node.text == "~";
}

// A switch that sets `key` to one of two values; "" leaves it alone.
struct Switch {
  const char* name;
  const char* key;
  const char* when_true;
  const char* when_false;
};
constexpr Switch switches[] = {
    {"bf16", "dtype", "bf16", "f32"},
    {"gradient_checkpointing", "recompute", "block", "none"},
    {"packing", "batching", "packed", "padded"},
    {"sample_packing", "batching", "packed", "padded"},
    {"neat_packing", "batching", "packed", ""},
    {"group_by_length", "batching", "sorted", ""},
    {"assistant_only_loss", "train_on", "assistant", "all"},
    {"completion_only_loss", "train_on", "last", ""},
    {"train_on_inputs", "train_on", "all", "assistant"},
    {"train_on_prompt", "train_on", "all", "assistant"},
};

// Accepted at one value (as text; several separated by '|').
struct Always {
  const char* name;
  const char* values;
  const char* why;
};
constexpr Always always[] = {
    {"fp16", "false|False", "fp16 is not offered; dtype: bf16 needs no loss scaling"},
    {"stage", "sft", "supervised fine-tuning is all there is"},
    {"finetuning_type", "full", "every text parameter is trained"},
    {"do_train", "true|True", "the verb decides"},
    {"do_eval", "true|True|false|False", "evaluation runs where eval_dataset or val_size is given"},
    {"plot_loss", "true|True", "report.html always has the curves"},
    {"logging_strategy", "steps", "logging_steps counts steps"},
    {"save_strategy", "steps", "save_steps counts steps"},
    {"eval_strategy", "steps|no", "evaluation runs where eval_dataset or val_size is given"},
    {"save_safetensors", "true|True", "weights are always safetensors"},
};

struct Refused {
  const char* name;  // a '*' at the end stands for any ending
  const char* reason;
};
constexpr Refused refused[] = {
    {"deepspeed*", "deltatune shards by itself: shard: full is what ZeRO-3 does, grads ZeRO-2"},
    {"fsdp*",
     "deltatune shards by itself: FULL_SHARD is shard: full, SHARD_GRAD_OP shard: grads, NO_SHARD shard: "
     "none"},
    {"lora*", "deltatune trains all text parameters; there are no adapters"},
    {"qlora*", "deltatune trains all text parameters; there are no adapters"},
    {"peft*", "deltatune trains all text parameters; there are no adapters"},
    {"use_peft", "deltatune trains all text parameters; there are no adapters"},
    {"adapter*", "deltatune trains all text parameters; there are no adapters"},
    {"freeze*", "deltatune trains all text parameters"},
    {"load_in_8bit", "training is in bf16 or f32; quantised weights are not trained"},
    {"load_in_4bit", "training is in bf16 or f32; quantised weights are not trained"},
    {"quantization*", "training is in bf16 or f32; quantised weights are not trained"},
    {"fp16*", "fp16 needs loss scaling; use dtype: bf16"},
    {"tf32", "matrix products are bf16 or full f32; use dtype"},
    {"attn_implementation", "each operation's kernel is chosen by the plan and printed at start"},
    {"flash_attn*", "each operation's kernel is chosen by the plan and printed at start"},
    {"flash_attention*", "each operation's kernel is chosen by the plan and printed at start"},
    {"sdp_attention", "each operation's kernel is chosen by the plan and printed at start"},
    {"xformers*", "each operation's kernel is chosen by the plan and printed at start"},
    {"use_liger*", "fused kernels are always on"},
    {"liger*", "fused kernels are always on"},
    {"torch_compile*", "operations are fused by hand; there is no compiler to switch on"},
    {"gradient_checkpointing_kwargs", "write recompute: auto, none, cheap or block"},
    {"per_device_eval_batch_size", "evaluation uses rows of max_tokens, as training does"},
    {"eval_batch_size", "evaluation uses rows of max_tokens, as training does"},
    {"train_batch_size", "write max_tokens, the tokens of one micro-batch on one device"},
    {"datasets", "write dataset: with a list of files or folders"},
    {"dataset_info*", "write dataset: with a list of files or folders; the fields are found by looking"},
    {"dataset_dir", "write dataset: with the path of the files"},
    {"template",
     "the checkpoint's own chat template is used; write chat_template: with a Jinja file to change it"},
    {"roles_to_train", "write train_on: assistant, last or all"},
    {"dataloader_*", "data is read and packed by deltatune's own threads"},
    {"dataset_num_proc", "data is read by deltatune's own threads (DELTATUNE_NUM_THREADS)"},
    {"preprocessing_num_workers", "data is read by deltatune's own threads (DELTATUNE_NUM_THREADS)"},
    {"dataset_prepared_path", "rows are tokenised anew in each run"},
    {"remove_unused_columns", "fields that are not needed are never read"},
    {"trust_remote_code", "no Python is run; the model code is deltatune's own"},
    {"push_to_hub", "nothing is uploaded"},
    {"hub_*", "nothing is uploaded"},
    {"wandb*", "write report_to; Weights & Biases is not among its values"},
    {"use_wandb", "write report_to; Weights & Biases is not among its values"},
    {"saves_per_epoch", "write save_steps"},
    {"evals_per_epoch", "write eval_steps"},
    {"save_strategy", "write save_steps, the steps between two checkpoints"},
    {"eval_strategy", "write eval_steps, the steps between two evaluations"},
    {"evaluation_strategy", "write eval_steps, the steps between two evaluations"},
    {"logging_strategy", "write logging_steps"},
    {"load_best_model_at_end", "all checkpoints are kept as save_total_limit says"},
    {"neftune*", "noise on embeddings is not offered"},
    {"label_smoothing*", "the loss is plain cross-entropy"},
    {"optim_args", "write adam_beta1, adam_beta2, adam_epsilon and weight_decay"},
    {"lr_scheduler_kwargs", "the schedules have no further parameters"},
    {"device_map", "write device and shard"},
    {"local_rank", "ranks come from the launcher's RANK and LOCAL_RANK"},
    {"ddp_find_unused_parameters", "every text parameter is used in every step"},
    {"ddp_backend", "NCCL on GPUs, MPI between CPU ranks"},
    {"stage", "supervised fine-tuning is all there is"},
    {"finetuning_type", "every text parameter is trained"},
    {"do_train", "use the verb: deltatune train or deltatune eval"},
    {"plot_loss", "report.html always has the curves"},
    {"rl", "supervised fine-tuning is all there is"},
    {"dpo_*", "supervised fine-tuning is all there is"},
    {"special_tokens", "the checkpoint's tokenizer is used as it is"},
    {"tokenizer_config", "write tokenizer_name_or_path"},
    {"save_safetensors", "weights are always safetensors"},
    {"tensor_parallel*", "weights are sharded, layers are not cut: write shard"},
    {"pipeline_parallel*", "weights are sharded, layers are not cut: write shard"},
    {"context_parallel*", "a row of max_tokens stays on one device"},
    {"sequence_parallel*", "a row of max_tokens stays on one device"},
};

bool matches(std::string_view pattern, std::string_view key) {
  if (pattern.ends_with('*')) return key.starts_with(pattern.substr(0, pattern.size() - 1));
  return key == pattern;
}

bool listed(std::string_view values, std::string_view word) {
  while (!values.empty()) {
    const size_t bar = std::min(values.find('|'), values.size());
    if (values.substr(0, bar) == word) return true;
    values.remove_prefix(std::min(bar + 1, values.size()));
  }
  return false;
}

yaml::Node scalar(std::string text, int line) {
  yaml::Node node;
  node.kind = yaml::Kind::scalar;
  node.line = line;
  node.text = std::move(text);
  return node;
}

Meaning translate(const Switch& row, const yaml::Node& value, const std::string& where) {
  const bool on = is_true(value) || (std::string_view(row.name) == "bf16" && value.text == "auto");
  if (!on && !is_false(value)) {
    throw Error(ErrorKind::usage,
                format("{} must be true or false, found {}", row.name, json::quote(value.text)), where,
                format("or write {} itself", row.key));
  }
  const std::string target = on ? row.when_true : row.when_false;
  const std::string said = on ? "true" : "false";
  if (target.empty() || value.kind == yaml::Kind::null) {
    return Harmless{format("{}: {} changes nothing", row.name, said)};
  }
  return Translated{row.key, scalar(target, value.line),
                    format("{}: {} is read as {}: {}", row.name, said, row.key, target)};
}

Meaning rows_of_batch(std::string_view key, const yaml::Node& value, const std::string& where) {
  int64_t rows = 0;
  const char* end = value.text.data() + value.text.size();
  const auto parsed = std::from_chars(value.text.data(), end, rows);
  if (parsed.ec != std::errc() || parsed.ptr != end || rows < 1 || rows > (1 << 20)) {
    throw Error(ErrorKind::usage,
                format("{} must be a whole number from 1, found {}", key, json::quote(value.text)), where,
                "or write max_tokens itself");
  }
  return TokensFromRows{rows, format("{}: {} is read as max_tokens: {} x max_length", key, rows, rows)};
}

}  // namespace

std::optional<Meaning> foreign_meaning(std::string_view key, const yaml::Node& value,
                                       const std::string& where) {
  for (const Switch& row : switches) {
    if (key == row.name) return translate(row, value, where);
  }
  if (key == "per_device_train_batch_size" || key == "micro_batch_size")
    return rows_of_batch(key, value, where);
  for (const Always& row : always) {
    if (key == row.name && value.kind == yaml::Kind::scalar && listed(row.values, value.text)) {
      return Harmless{format("{}: {} changes nothing: {}", key, value.text, row.why)};
    }
  }
  for (const Refused& row : refused) {
    if (matches(row.name, key)) return Foreign{row.reason};
  }
  return std::nullopt;
}

bool foreign_switch(std::string_view key) {
  return std::any_of(std::begin(switches), std::end(switches),
                     [&](const Switch& row) { return key == row.name; });
}

}  // namespace deltatune::cli
