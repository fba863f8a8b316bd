// Everything a user can choose, as plain values. Only standard types, so that any folder above `train` can
// pass it on; the member initialisers here are the only place where a default is written.
//
// src/cli/options.cpp has exactly one row per member (a test counts them): names, aliases, ranges, choices
// and documentation are there. Whoever holds a Config that came through the command line may rely on those
// ranges and choices; combinations of keys are checked by whoever reads them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deltatune {

struct Config {
  // model
  std::string model_name_or_path;            ///< checkpoint folder, or an id in the local Hugging Face cache
  std::string init = "pretrained";           ///< pretrained | random (only config.json is read)
  std::string tokenizer_name_or_path;        ///< empty: the model folder
  std::string chat_template = "from_model";  ///< from_model, a Jinja file, or a named one of the checkpoint
  std::map<std::string, std::string> chat_template_kwargs;  ///< variable -> JSON text of its value

  // data
  std::vector<std::string> dataset;           ///< files, folders or globs
  std::string dataset_train_split = "train";  ///< of the folders in dataset
  std::vector<std::string> dataset_weights;   ///< one number for each entry of dataset; empty: all 1
  bool streaming = false;                     ///< tokenise while training
  int64_t shuffle_buffer_size = 10000;        ///< streaming: conversations of a window
  int64_t dataloader_prefetch_factor = 2;     ///< micro-batches made ahead of the step; 0: none
  std::string dataset_schema = "auto";        ///< auto | messages | sharegpt | alpaca | prompt_completion
  std::string messages_field;                 ///< empty: messages, then conversations
  std::string train_on = "assistant";         ///< assistant | last | all
  std::string think_prefix = "generated";     ///< generated | all | skip_empty
  std::string overflow = "truncate";          ///< truncate | drop | split
  std::string on_bad_row = "error";           ///< error | skip
  std::string dataset_cache = "auto";         ///< auto | off | a folder
  double dataset_cache_limit = 64;            ///< GiB of token caches in that folder; 0: no limit
  bool parse_special_in_content = false;  ///< control-token strings typed in a message become control tokens
  int64_t max_length = 8192;              ///< tokens of one conversation

  // batches
  std::string batching = "packed";       ///< packed | padded | sorted
  std::string packing_strategy = "bfd";  ///< bfd: best fit decreasing
  int64_t max_tokens = 16384;            ///< T: token slots of one micro-batch on one device
  int64_t max_documents = 0;             ///< most conversations in a row; 0: one per 32 slots, at least 16;
                                         ///< a run takes memory for as many as its data needs
  int64_t gradient_accumulation_steps = 1;

  // optimizer
  double num_train_epochs = 1;
  int64_t max_steps = -1;  ///< -1: from num_train_epochs
  double learning_rate = 1e-5;
  std::string lr_scheduler_type = "cosine";  ///< cosine | linear | constant | constant_with_warmup, as HF's
  double warmup_ratio = 0.03;
  int64_t warmup_steps = 0;  ///< > 0 beats warmup_ratio
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;         ///< 0: no clipping
  std::string optim = "adamw";        ///< adamw | adamw_8bit
  std::string on_nonfinite = "stop";  ///< stop | skip

  // precision and memory
  std::string dtype = "bf16";               ///< bf16 | f32: weights in use and activations
  std::string optim_dtype = "f32";          ///< f32 | bf16: m and v
  bool master_weights = true;               ///< fp32 copy of the weights
  std::string weight_rounding = "nearest";  ///< nearest | stochastic: weights and moments in bf16
  std::string grad_dtype = "f32";           ///< f32 | bf16: accumulated gradients
  bool offload_optimizer = false;           ///< m and v in host memory
  bool gradient_release = false;            ///< update each group as soon as its gradient is complete
  std::string recompute = "auto";           ///< auto | none | cheap | block

  // device and distribution
  std::string device = "auto";          ///< auto | cpu | cuda
  int64_t nproc = 1;                    ///< ranks to start on this machine
  int64_t nodes = 1;                    ///< plan: machines of nproc ranks each
  int rank = 0;                         ///< of this process; no key, comes from the launch
  int world_size = 1;                   ///< likewise
  int local_world_size = 1;             ///< likewise; of this machine
  std::string shard = "full";           ///< full | grads | none
  std::string reduce_dtype = "f32";     ///< f32 | bf16: gradients on the wire
  int64_t ddp_timeout = 1800;           ///< seconds a rank waits for its peers
  std::string comm_transport = "auto";  ///< auto | peer | nccl: between GPUs
  int64_t max_restarts = 0;
  bool allow_slow_kernels = false;
  bool deterministic = false;
  std::string matmul_tuning = "auto";  ///< auto | off
  std::string cuda_graph = "auto";     ///< auto | true | false

  // logging
  std::string output_dir;
  std::string run_name;  ///< empty: the name of output_dir
  int64_t logging_steps = 10;
  std::vector<std::string> report_to = {"jsonl"};
  std::string logging_dir;        ///< of TensorBoard; empty: runs/TIME_HOST in output_dir
  std::string progress = "auto";  ///< auto | bar | plain | json | none
  std::string profile = "off";    ///< off | ops | trace
  int64_t profile_wait = 1;       ///< steps of a cycle, see train/profiler.h
  int64_t profile_warmup = 1;
  int64_t profile_active = 1;
  int64_t profile_repeat = 1;

  // saving
  int64_t save_steps = 500;            ///< 0: only at the end
  int64_t save_total_limit = 0;        ///< 0: keep all
  bool save_only_model = false;        ///< checkpoints without resume state
  std::string async_save = "auto";     ///< auto | true | false: write from a copy while training goes on
  std::string resume_from_checkpoint;  ///< empty: no; "true": the latest complete one; else a path
  std::string max_shard_size = "5GB";  ///< only where there was no input checkpoint
  bool overwrite_output_dir = false;

  // reading from object stores
  int64_t read_retries = 10;     ///< of one request
  double read_retry_wait = 0.5;  ///< seconds before the first retry; doubles
  double read_timeout = 30;      ///< seconds without an answer

  // evaluation
  std::string dataset_test_split = "test";  ///< of the folders in eval_dataset
  std::vector<std::string> eval_dataset;
  int64_t eval_steps = 0;  ///< 0: at the end of the run only
  double val_size = 0;     ///< < 1: fraction of dataset held out; >= 1: number of rows

  // randomness
  int64_t seed = 42;
  int64_t data_seed = -1;  ///< -1: seed

  // What one command is asked; accepted on the command line only.
  std::string device_card;         ///< plan --device: an entry of devices.json
  std::vector<std::string> sweep;  ///< plan --sweep key=a,b,c
  bool scaling = false;            ///< plan --scaling: 2 to 1,024 devices
  std::string rank_status;       ///< train: file in which a rank tells the program that started it how it is
  bool dry_run = false;          ///< train: everything except the step
  int64_t row = -1;              ///< data show: which row; -1: the first few
  int64_t rows = 3;              ///< data show, render: how many rows when none is named
  std::vector<std::string> set;  ///< data render: template variables k=v
  bool compare = false;          ///< data pack: all three ways of batching
  std::string pack_lengths;      ///< data pack --lengths: a file of lengths in place of a dataset
  std::string text;              ///< data tokenize: the text itself; "-": lines of standard input
  bool hex = false;              ///< data tokenize: text is given as hexadecimal bytes
  bool special = false;          ///< data tokenize: control-token strings become control tokens
  std::string render_messages;   ///< data render --messages: a file of conversations in place of a dataset
  bool add_generation_prompt = false;  ///< data render: end with the start of an answer
  std::string prompt;                  ///< generate: one user message
  std::string system;                  ///< generate: a system message before it
  int64_t max_new_tokens = 128;
  double temperature = 0;  ///< 0: greedy
  int64_t top_k = 0;       ///< 0: no limit
  double top_p = 1;
  std::string order = "forward";            ///< parity: forward | reverse
  int64_t micro_batches = 1;                ///< parity: rows the sequences are spread over
  std::string bench_model = "qwen3.8-27b";  ///< bench --model
  int64_t bench_tokens = 8192;              ///< bench --tokens
  std::string bench_lengths;                ///< bench --lengths: file of document lengths
  std::string bench_kernel;                 ///< bench op --kernel
  int64_t bench_layers = 8;                 ///< bench step --layers: the deeper of two depths
  std::vector<std::string> bench_depths;    ///< bench step --depths; empty: half of bench_layers, and these
  int64_t bench_bits = 0;                   ///< bench step --check-bits: rounds
  int64_t bench_devices = 1;                ///< bench ladder --devices
  std::string bench_svg;                    ///< bench ladder --svg: file for the picture
  std::string bench_rivals;                 ///< bench ladder --rivals: the script that times them
  std::string bench_json;                   ///< bench --json: file for the results
  std::string profile_sort = "total";       ///< profile --sort
  std::string profile_group = "op";         ///< profile --group: op | op_shape | kernel | phase
  int64_t profile_top = 30;                 ///< profile --top; 0: all
  bool profile_only = false;                ///< no key: a run that only profiles, and saves nothing
  bool json = false;                        ///< results as JSON on stdout
  bool ignore_foreign_keys = false;
  bool quiet = false;
  bool verbose = false;
};

}  // namespace deltatune
