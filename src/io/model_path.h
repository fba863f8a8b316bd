// From `model_name_or_path` to a folder: a path, or an id looked up in the local Hugging Face cache. Nothing
// is ever downloaded.
//
// Cache layout (huggingface_hub, "Understand caching"): HUB/models--ORG--NAME/refs/REVISION holds a commit,
// HUB/models--ORG--NAME/snapshots/COMMIT/ the files, as links into blobs/.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"

namespace deltatune {

/// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
fs::path hf_hub_cache();

/// What this program may keep between runs (tuned choices): $DELTATUNE_CACHE, else $XDG_CACHE_HOME/deltatune,
/// else ~/.cache/deltatune. Empty where none of these is set. Not created here.
fs::path program_cache();

/// A folder as it is; else an id "org/name" or "name", whose snapshot of `revision` (a ref or a commit) must
/// be in the cache. Throws Error{model} saying where was looked.
fs::path resolve_model_path(const std::string& name_or_path, const std::string& revision = "main");

}  // namespace deltatune
