// The names a model needs against the names a checkpoint has: one message that lists what differs and, where
// the names look like a known mistake, says which one and how to rename.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace deltatune {

/// Throws Error{model} unless each of `expected` is among `present` and each of `present` is expected or
/// starts with one of `carried` (prefixes of tensors that are passed through untrained, such as "mtp.").
/// `where` is the checkpoint folder. Known causes: prefixes doubled or shifted by transformers 5.5.0 to 5.5.3
/// (huggingface/ transformers issue 45357), MLX names, wrappers (PEFT, DistributedDataParallel, FSDP,
/// torch.compile), text-only against composite layout.
void check_tensor_names(std::span<const std::string> expected, std::span<const std::string> present,
                        std::span<const std::string> carried, std::string_view where);

}  // namespace deltatune
