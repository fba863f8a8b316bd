// Keys to CheckpointOptions.
#include "train/save_options.h"

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "comm/exchange.h"
#include "observe/machine.h"
#include "train/output_folder.h"
#include "train/setup.h"
#include "train/state_image.h"

namespace deltatune {

bool saves_copy(const Config& config, const Device& device, uint64_t copy, uint64_t free) {
  if (config.async_save == "false" || config.save_steps == 0) return false;
  if (device.target() == Target::cpu) return true;  // looked at again at each save
  const uint64_t wanted = copy * static_cast<uint64_t>(config.local_world_size);
  if (wanted <= free - free / 5) return true;
  if (config.async_save == "true") {
    throw Error(ErrorKind::resource,
                format("copies of the state take {} of host memory, {} are free", format_bytes(wanted),
                       format_bytes(free)),
                "async_save: true", "use async_save: auto, or save_only_model: true");
  }
  return false;
}

CheckpointOptions save_options(const Config& config, const Engine& engine, const fs::path& side_files,
                               int64_t total_steps) {
  CheckpointOptions out;
  out.output_dir = config.output_dir;
  out.storage = storage_dtype(config);
  out.side_files = side_files;
  out.max_shard_bytes = parse_bytes(config.max_shard_size);
  out.save_total_limit = config.save_total_limit;
  out.only_model = config.save_only_model;
  const bool due = config.save_steps > 0 && config.save_steps <= total_steps;
  const size_t copy = image_bytes(engine.store(), config.save_only_model);
  const auto free = static_cast<uint64_t>(this_machine().memory_available_bytes);
  const bool copies = due && saves_copy(config, engine.device(), copy, free);
  out.copies = min_over_ranks(engine.comm(), copies ? 1 : 0) == 1;
  if (due && !out.copies && config.async_save == "auto")
    log::info("saves hold training up: there is no host memory for a copy of {}", format_bytes(copy));
  return out;
}

}  // namespace deltatune
