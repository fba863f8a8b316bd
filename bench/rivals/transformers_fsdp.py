"""Times a training step of transformers with FSDP2 (and FLA where it is installed) on several GPUs of one machine.

  torchrun --nproc_per_node 2 bench/rivals/transformers_fsdp.py examples/configs/models/qwen3.8-27b --depths 4 8

As transformers_step.py, with every decoder layer and the model around them cut by fully_shard: bf16 weights, gradients
and AdamW states (fused), gathered again in backward, reduced in bf16. One document of --tokens random ids a GPU. The
step of all layers is extrapolated from two depths. Rank 0 writes; times are of the slowest rank.
"""

import argparse
import gc
import json
import os

import common
from transformers_step import use_fla_convolution


def step_times(text, depth, args):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    kinds = text.get("layer_types")
    config = Qwen3_5TextConfig(**{**text, "num_hidden_layers": depth, "use_cache": False,
                                  "layer_types": kinds[:depth] if kinds else None})
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        torch.manual_seed(0)
        model = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    torch.cuda.empty_cache()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0, fused=True)
    torch.manual_seed(1 + dist.get_rank())
    ids = torch.randint(0, config.vocab_size, (1, args.tokens), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    forward_backward, update = common.time_steps(model, optimizer, ids, args.warmup, args.steps)
    mine = torch.tensor([forward_backward, update, torch.cuda.max_memory_allocated() / 2**30], device="cuda")
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    del model, optimizer
    gc.collect()
    torch.cuda.empty_cache()
    return {"depth": depth, "forward_backward_ms": mine[0].item(), "optimizer_ms": mine[1].item(),
            "peak_gib": mine[2].item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder with config.json")
    parser.add_argument("--depths", type=int, nargs=2, default=[4, 8], help="multiples of the layer pattern")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--fla-convolution", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    marks = common.lift_fla_refusal()
    if args.fla_convolution:
        use_fla_convolution()
        marks["convolution"] = "FLA's Triton kernel in the place of causal-conv1d's"
    with open(os.path.join(args.model, "config.json")) as file:
        config = json.load(file)
    text = config.get("text_config", config)
    layers = text["num_hidden_layers"]
    result = {**common.machine(), **marks, "gpus": dist.get_world_size(), "tokens_per_gpu": args.tokens,
              "layers": layers, "checkpointing": True, "depths": []}
    for depth in args.depths:
        result["depths"].append(step_times(text, depth, args))
    common.extrapolate(result, layers)
    result["tokens_per_s_per_gpu"] = args.tokens / result["all_layers_step_ms"] * 1e3
    if dist.get_rank() == 0:
        common.finish(result, args.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
