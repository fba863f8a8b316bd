"""The rungs of transformers: what `deltatune bench ladder --rivals bench/rivals/ladder.py` prints beside ours.

  python3 bench/rivals/ladder.py --model qwen3.8-27b --depths 4,8 --lengths LENGTHS.txt --devices 32 --json OUT.json

  torch, padded   transformers without flash-linear-attention: what it falls back to in silence
  FLA, padded     with flash-linear-attention's delta rule and convolution
  FLA, packed     a row of --tokens, timed as one document of that length: what packing can reach at best

Padded: rectangles of conversations in the order of the file, rows x longest <= --tokens, as a loader makes them without
packing; three of them are timed, and the median counts. Random weights and ids, bf16 weights and AdamW states,
checkpointing of every block, SDPA; a step of all layers is extended from two depths. Communication is not in it.
A rung that cannot run here (no package, no memory) is left out, and the reason is in "left_out".
"""

import argparse
import gc
import os
import statistics
import sys

import common

HERE = os.path.dirname(os.path.abspath(__file__))
ORIGINALS = {}  # of transformers' module, by name


def rectangles(lengths, tokens):
    """[conversations, longest] of each step."""
    out, count, longest = [], 0, 0
    for length in lengths:
        if count and (count + 1) * max(longest, length) > tokens:
            out.append((count, longest))
            count, longest = 0, 0
        count, longest = count + 1, max(longest, length)
    return out + [(count, longest)] if count else out


def model_config(name, depth):
    import json

    from transformers import Qwen3_5TextConfig

    folder = name if os.path.isdir(name) else os.path.join(HERE, "../../examples/configs/models", name)
    with open(os.path.join(folder, "config.json")) as file:
        whole = json.load(file)
    text = whole.get("text_config", whole)
    kinds = text.get("layer_types")
    layers = text["num_hidden_layers"]
    if depth is None:
        return None, layers
    config = Qwen3_5TextConfig(**{**text, "num_hidden_layers": depth, "use_cache": False,
                                  "layer_types": kinds[:depth] if kinds else None})
    config._attn_implementation = "sdpa"
    return config, layers


def use_kernels(fla):
    """FLA's functions where transformers looks for them, or its own in torch."""
    import importlib.util

    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    if fla and importlib.util.find_spec("fla") is None:
        raise ImportError("flash-linear-attention is not installed")
    for name in ("causal_conv1d_fn", "torch_chunk_gated_delta_rule", "chunk_gated_delta_rule", "FusedRMSNormGated"):
        if not hasattr(modeling, name):  # they differ by version
            continue
        original = ORIGINALS.setdefault(name, getattr(modeling, name))
        # A decorated fallback holds the torch function; a bare import is replaced by None.
        plain = getattr(original, "__wrapped__", original if name == "causal_conv1d_fn" else None)
        setattr(modeling, name, original if fla else plain)
    if fla:
        from transformers_step import use_fla_convolution

        use_fla_convolution()


def step_times(name, depth, shapes, args):
    """Milliseconds of a step at a depth: the median over shapes (conversations, tokens of each)."""
    import torch
    from transformers import Qwen3_5ForCausalLM

    config, _ = model_config(name, depth)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0, fused=True)
    passes, updates = [], []
    for count, tokens in shapes:
        ids = torch.randint(0, config.vocab_size, (count, tokens), device="cuda")
        forward_backward, update = common.time_steps(model, optimizer, ids, args.warmup, args.steps)
        passes.append(forward_backward)
        updates.append(update)
    del model, optimizer
    gc.collect()
    torch.cuda.empty_cache()
    return statistics.median(passes), statistics.median(updates)


def rung(name, shapes, steps, real_tokens, args):
    low, high = args.depths[0], args.depths[-1]
    _, layers = model_config(args.model, None)
    times = [step_times(args.model, depth, shapes, args) for depth in (low, high)]

    def whole(index):
        if low == high:
            return times[0][index]
        return times[0][index] + (times[1][index] - times[0][index]) / (high - low) * (layers - low)

    step_ms = whole(0) + whole(1) / args.devices
    return {"rung": name, "steps": steps, "step_ms": step_ms, "forward_backward_ms": whole(0), "optimizer_ms": whole(1),
            "hours": steps * step_ms * 1e-3 / 3600,
            "tokens_per_s_per_device": real_tokens / (steps * args.devices) / (step_ms * 1e-3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3.8-27b")
    parser.add_argument("--depths", default="4,8", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--lengths")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--json")
    args = parser.parse_args()

    import torch

    if not torch.cuda.is_available():
        sys.exit("no GPU: transformers' rungs are timed on one")
    marks = common.lift_fla_refusal()
    lengths = common.read_lengths(args.lengths, 1240)
    boxes = rectangles(lengths, args.tokens)
    packed_rows = -(-sum(lengths) // args.tokens)
    middle = sorted(boxes[:200], key=lambda box: box[0] * box[1])
    shapes = [middle[len(middle) * part // 4] for part in (1, 2, 3)]
    share = lambda rows: -(-rows // args.devices)
    result = {"machine": common.machine(), "marks": marks, "model": args.model, "depths": args.depths,
              "timed_rectangles": shapes, "rungs": [], "left_out": []}
    # The fallback first: what replaces FLA's functions stays for the process.
    for name, fla, row_shapes, rows in (("torch, padded", False, shapes, len(boxes)),
                                        ("FLA, padded", True, shapes, len(boxes)),
                                        ("FLA, packed", True, [(1, args.tokens)], packed_rows)):
        try:
            use_kernels(fla)
            result["rungs"].append(rung(name, row_shapes, share(rows), sum(lengths), args))
        except (ImportError, RuntimeError) as error:  # torch's out of memory is a RuntimeError
            result["left_out"].append({"rung": name, "why": str(error)[:300]})
            torch.cuda.empty_cache()
    common.finish(result, args.json)


if __name__ == "__main__":
    main()
