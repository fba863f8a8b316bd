#!/usr/bin/env python3
"""Does following the advice give what it predicts? Three runs that are slow for a reason, on a GPU.

  launch     op by op with one processor that three other processes want, too: the host cannot launch as fast as the GPU
             computes
  padding    conversations of chat-like lengths in rectangles
  recompute  every block computed twice with most of the memory free

Each is trained with a few profiled steps, `deltatune advise` is asked, the key of its first finding is set to the value it
names, and the run is made again. Printed: the cause that was named, tokens/s (real ones, median of the last steps) before
and after, the gain that was predicted and the one that was measured. Random weights, random tokens.

    bench/advice/follow.py DELTATUNE CONFIGS_OF_MODELS [--json OUT.json] [--case NAME ...]
"""
import argparse
import contextlib
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


def chat_lengths(count):
    rng = random.Random(3)
    return [max(60, min(4096, int(rng.lognormvariate(7.0, 0.5)))) for _ in range(count)]


class BusyProcessor:
    """Three processes that compute on processor 0, and the words that put a run there, too."""

    def __enter__(self):
        self.others = [subprocess.Popen(["taskset", "-c", "0", sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        return ["taskset", "-c", "0"]

    def __exit__(self, *_):
        for other in self.others:
            other.kill()
            other.wait()


def train(program, folder, keys, prefix=()):
    shutil.rmtree(folder, ignore_errors=True)
    words = [*prefix, program, "train", "--output_dir", folder, "--init", "random", "--max_steps", str(STEPS), "--num_train_epochs",
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


def follow(program, work, name, keys, prefix):
    before, steps = train(program, os.path.join(work, "before"), keys, prefix)
    said = subprocess.run([program, "advise", os.path.join(work, "before"), "--json"], capture_output=True, text=True)
    findings = json.loads(said.stdout)["findings"]
    first = findings[0]
    result = {"case": name, "rule": first["rule"], "key": first["key"], "value": first["value"],
              "evidence": first["evidence"], "predicted": first["gain"], "low": first["gain_low"],
              "high": first["gain_high"], "others": [[f["rule"], f["gain"]] for f in findings[1:]],
              "host_bound_share": statistics.median(step.get("host_bound_share", 0) for step in steps),
              "step_s": statistics.median(step["time_s"] for step in steps)}
    if first["key"]:
        after, _ = train(program, os.path.join(work, "after"), {**keys, first["key"]: first["value"]}, prefix)
        result["tokens_per_s"] = [before, after]
        result["measured"] = 100 * (after / before - 1)
        if first["gain"]:
            result["measured_over_predicted"] = result["measured"] / first["gain"]
    print(json.dumps(result), flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("models")
    parser.add_argument("--json")
    parser.add_argument("--case", nargs="*", default=["launch", "padding", "recompute"])
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix="deltatune-advice-")
    short, chats = os.path.join(work, "short.jsonl"), os.path.join(work, "chats.jsonl")
    write_rows(short, [250, 262] * 150, 200000)
    write_rows(chats, chat_lengths(700), 200000)
    small = os.path.join(args.models, "qwen3.5-0.8b")
    cases = {
        "launch": {"model_name_or_path": small, "dataset": short, "max_tokens": 512, "max_length": 512,
                   "cuda_graph": "false", "recompute": "none"},
        "padding": {"model_name_or_path": small, "dataset": chats, "max_tokens": 8192, "max_length": 8192,
                    "batching": "padded", "recompute": "none"},
        "recompute": {"model_name_or_path": small, "dataset": chats, "max_tokens": 8192, "max_length": 8192,
                      "recompute": "block"},
    }
    results = []
    for name in args.case:
        busy = BusyProcessor() if name == "launch" else contextlib.nullcontext(())
        with busy as prefix:
            results.append(follow(args.program, work, name, cases[name], prefix))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"results": results}, file, indent=1)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
