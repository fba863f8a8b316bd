#!/usr/bin/env python3
"""Does following the advice give what it predicts? Three runs that are slow for a reason, on a GPU.

  launch     a narrow model of many layers with short rows, op by op: the host cannot launch as fast as the GPU computes
  padding    conversations of chat-like lengths in rectangles
  recompute  every block computed twice with most of the memory free

Each is trained with a few profiled steps, `deltatune advise` is asked, the key of its first finding is set to the value it
names, and the run is made again. Printed: the cause that was named, tokens/s (real ones, median of the last steps) before
and after, the gain that was predicted and the one that was measured. Random weights, random tokens.

    bench/advice/follow.py DELTATUNE CONFIGS_OF_MODELS [--json OUT.json] [--case NAME ...]
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

STEPS, LAST = 60, 25


def write_rows(path, lengths, vocabulary):
    rng = random.Random(5)
    with open(path, "w", encoding="utf-8") as out:
        for length in lengths:
            ids = [rng.randrange(vocabulary) for _ in range(length)]
            out.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def narrow_model(models, folder):
    """48 layers of the 0.8B model's heads at a quarter of its width, with a small vocabulary."""
    with open(os.path.join(models, "qwen3.5-0.8b", "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    text = config["text_config"]
    kinds = (text["layer_types"] * 2)[:48]
    text.update(hidden_size=256, intermediate_size=512, num_hidden_layers=48, layer_types=kinds, vocab_size=4096,
                num_attention_heads=2, num_key_value_heads=1, linear_num_key_heads=2, linear_num_value_heads=2,
                eos_token_id=2)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return folder


def chat_lengths(count):
    rng = random.Random(3)
    return [max(60, min(4096, int(rng.lognormvariate(7.0, 0.5)))) for _ in range(count)]


def train(program, folder, keys):
    shutil.rmtree(folder, ignore_errors=True)
    words = [program, "train", "--output_dir", folder, "--init", "random", "--max_steps", str(STEPS), "--num_train_epochs",
             "1000", "--learning_rate", "1e-5", "--logging_steps", "1", "--save_steps", "0", "--save_only_model",
             "--progress", "none", "--device", "cuda", "--dtype", "bf16", "--profile", "ops", "--profile_wait", "20",
             "--profile_active", "4"]
    for key, value in keys.items():
        words += ["--" + key, str(value)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        steps = [event for event in map(json.loads, file) if event["event"] == "step"][-LAST:]
    # Rows differ in what they hold: tokens over time, not the median of rates.
    return sum(step["real_tokens"] for step in steps) / sum(step["time_s"] for step in steps), steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("models")
    parser.add_argument("--json")
    parser.add_argument("--case", nargs="*", default=["launch", "padding", "recompute"])
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix="deltatune-advice-")
    short, chats = os.path.join(work, "short.jsonl"), os.path.join(work, "chats.jsonl")
    write_rows(short, [63] * 400, 4000)
    write_rows(chats, chat_lengths(700), 200000)
    small = os.path.join(args.models, "qwen3.5-0.8b")
    cases = {
        "launch": {"model_name_or_path": narrow_model(args.models, os.path.join(work, "narrow")), "dataset": short,
                   "max_tokens": 64, "max_length": 64, "cuda_graph": "false"},
        "padding": {"model_name_or_path": small, "dataset": chats, "max_tokens": 8192, "max_length": 8192,
                    "batching": "padded", "recompute": "none"},
        "recompute": {"model_name_or_path": small, "dataset": chats, "max_tokens": 8192, "max_length": 8192,
                      "recompute": "block"},
    }
    results = []
    for name in args.case:
        keys = cases[name]
        before, steps = train(args.program, os.path.join(work, "before"), keys)
        said = subprocess.run([args.program, "advise", os.path.join(work, "before"), "--json"], capture_output=True, text=True)
        findings = json.loads(said.stdout)["findings"]
        first = findings[0]
        if not first["key"]:
            print(f"{name}: {first['rule']} names no key: {first['evidence']}; host-bound {steps[-1].get('host_bound_share')}")
            continue
        after, _ = train(args.program, os.path.join(work, "after"), {**keys, first["key"]: first["value"]})
        measured = 100 * (after / before - 1)
        result = {"case": name, "rule": first["rule"], "key": first["key"], "value": first["value"],
                  "evidence": first["evidence"], "predicted": first["gain"], "low": first["gain_low"],
                  "high": first["gain_high"], "measured": measured, "tokens_per_s": [before, after],
                  "measured_over_predicted": measured / first["gain"] if first["gain"] else None,
                  "others": [finding["rule"] for finding in findings[1:]],
                  "host_bound_share": steps[-1].get("host_bound_share"), "step_s": statistics.median(s["time_s"] for s in steps)}
        results.append(result)
        print(f"{name}: {first['rule']}: {first['key']}: {first['value']}: predicted +{first['gain']:.1f} % "
              f"({first['gain_low']:.1f} to {first['gain_high']:.1f}), measured +{measured:.1f} % "
              f"({before:.0f} -> {after:.0f} tokens/s); {first['evidence']}; then {result['others']}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"results": results}, file, indent=1)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
