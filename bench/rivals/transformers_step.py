"""Times a training step of transformers (with FLA where it is installed) on random weights of a model's width.

  python3 bench/rivals/transformers_step.py examples/configs/models/qwen3.8-27b --depths 4 8 --json OUT.json

One document of --tokens random ids, bf16 weights, bf16 AdamW states (torch.optim.AdamW, fused), non-reentrant
checkpointing of every block, SDPA, transformers' own loss over all tokens. The step of all layers is extrapolated
from two depths: step(L) = head + L layer. Median of --steps after --warmup steps by CUDA events.

transformers takes the short convolution from the causal-conv1d package and falls back to torch's without it.
--fla-convolution puts FLA's Triton kernel in that place instead: what a user with fast kernels gets, without a build.
--no-checkpointing keeps all activations (where they fit).
"""

import argparse
import gc
import json
import os

import common


def use_fla_convolution():
    from fla.modules.conv.causal_conv1d import causal_conv1d
    from transformers.models.qwen3_5 import modeling_qwen3_5

    def convolution(x, weight, bias=None, activation=None, **_):  # x: [batch, channels, tokens]
        return causal_conv1d(x.transpose(1, 2).contiguous(), weight, bias, activation=activation)[0].transpose(1, 2)

    modeling_qwen3_5.causal_conv1d_fn = convolution


def step_times(text, depth, tokens, warmup, steps, checkpointing):
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    kinds = text.get("layer_types")
    config = Qwen3_5TextConfig(**{**text, "num_hidden_layers": depth, "use_cache": False,
                                  "layer_types": kinds[:depth] if kinds else None})
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0, fused=True)
    ids = torch.randint(0, config.vocab_size, (1, tokens), device="cuda")
    forward_backward, update = common.time_steps(model, optimizer, ids, warmup, steps)
    peak = torch.cuda.max_memory_allocated() / 2**30
    del model, optimizer
    gc.collect()
    torch.cuda.empty_cache()
    return {"depth": depth, "forward_backward_ms": forward_backward, "optimizer_ms": update, "peak_gib": peak}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder with config.json")
    parser.add_argument("--depths", type=int, nargs=2, default=[4, 8], help="multiples of the layer pattern")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--fla-convolution", action="store_true")
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()

    marks = common.lift_fla_refusal()
    if args.fla_convolution:
        use_fla_convolution()
        marks["convolution"] = "FLA's Triton kernel in the place of causal-conv1d's"
    marks["checkpointing"] = not args.no_checkpointing
    with open(os.path.join(args.model, "config.json")) as file:
        config = json.load(file)
    text = config.get("text_config", config)
    layers = text["num_hidden_layers"]
    result = {**common.machine(), **marks, "tokens": args.tokens, "documents": 1, "layers": layers, "depths": []}
    for depth in args.depths:
        result["depths"].append(step_times(text, depth, args.tokens, args.warmup, args.steps,
                                           not args.no_checkpointing))
    common.extrapolate(result, layers)
    result["tokens_per_s"] = args.tokens / result["all_layers_step_ms"] * 1e3
    common.finish(result, args.json)


if __name__ == "__main__":
    main()
