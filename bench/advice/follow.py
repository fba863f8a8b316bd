#!/usr/bin/env python3
"""Does following the advice give what it predicts?

A run is made slow on purpose, trained and profiled; `deltatune advise` is asked, the key of its first finding with a gain is
set to the value it names, and the run is made again. Slow and followed run take turns, so that both meet the same machine;
each counts with its real tokens over its time, the first fifth of its steps left out (rows differ in what they hold, so it
is not the median of rates). Printed: what was named, both rates, the gain that was predicted and the one that was measured.
Exit code 1 if no finding could be followed.

    follow.py BINARY --config CFG --cause KEY=VALUE... [--set KEY=VALUE...]    any configuration on any device
    follow.py BINARY --models FOLDER [--case launch padding recompute]         three slow runs on a GPU, random weights

  launch     op by op with one processor that three other processes want, too: the host cannot launch as fast as the GPU
             computes
  padding    conversations of chat-like lengths in rectangles
  recompute  every block computed twice with most of the memory free
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


class BusyProcessor:
    """Three processes that compute on processor 0, and the words that put a run there, too."""

    def __enter__(self):
        self.others = [subprocess.Popen(["taskset", "-c", "0", sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        return ["taskset", "-c", "0"]

    def __exit__(self, *_):
        for other in self.others:
            other.kill()
            other.wait()


class Case:
    """A slow run: words before the program, a configuration or none, keys."""

    def __init__(self, name, config, keys, busy=False):
        self.name, self.config, self.keys, self.busy = name, config, keys, busy


def run(words, **more):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\nended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


class Follow:
    def __init__(self, options, work):
        self.options, self.work = options, work

    def words(self, verb, case, prefix, name, changes):
        keys = {"logging_steps": "1", "save_steps": "0", "eval_steps": "0", "progress": "none", **case.keys, **changes,
                "output_dir": os.path.join(self.work, name)}
        if verb == "train":
            keys["max_steps"] = str(self.options.steps)
        flags = [word for key, value in keys.items() for word in ("--" + key.replace("_", "-"), value)]
        return [*prefix, self.options.binary, verb, *([case.config] if case.config else []), *flags]

    def train(self, case, prefix, name, changes):
        folder = os.path.join(self.work, name)
        shutil.rmtree(folder, ignore_errors=True)
        run(self.words("train", case, prefix, name, changes))
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
            steps = [event for event in map(json.loads, file) if event["event"] == "step"]
        steps = steps[len(steps) // 5:]
        rate = sum(step["real_tokens"] for step in steps) / sum(step["time_s"] for step in steps)
        shown = {"step_s": statistics.median(step["time_s"] for step in steps)}
        if "host_bound_share" in steps[0]:
            shown["host_bound_share"] = statistics.median(step["host_bound_share"] for step in steps)
        return rate, shown

    def follow(self, case, prefix):
        _, shown = self.train(case, prefix, "asked", {})
        if not self.options.no_profile:
            run(self.words("profile", case, prefix, "asked", {}))
        findings = json.loads(run([self.options.binary, "advise", os.path.join(self.work, "asked"), "--json"]))["findings"]
        for place, finding in enumerate(findings, 1):
            print(f"{place}. {finding['rule']}: {finding['evidence']}")
        usable = [f for f in findings if f["key"] and f["gain"]]
        result = {"case": case.name, "keys": case.keys, "findings": [[f["rule"], f["gain"]] for f in findings], **shown}
        if not usable:
            print("no finding names a key and a gain")
            return result
        first = usable[0]
        changes = {first["key"]: first["value"]}
        slow, followed = [], []
        for number in range(self.options.rounds):
            slow.append(self.train(case, prefix, f"slow-{number}", {})[0])
            followed.append(self.train(case, prefix, f"followed-{number}", changes)[0])
        gains = [100 * (b / a - 1) for a, b in zip(slow, followed)]
        gain = statistics.median(gains)
        result.update({"followed": first, "slow_tokens_per_s": slow, "followed_tokens_per_s": followed, "gains": gains,
                       "measured": gain, "measured_over_predicted": gain / first["gain"]})
        print(f"{case.name}: set {first['key']}: {first['value']}; predicted +{first['gain']} % ({first['gain_low']} to "
              f"{first['gain_high']}), measured {gain:+.1f} % (rounds {', '.join(f'{g:+.1f}' for g in gains)}); measured / "
              f"predicted {gain / first['gain']:.2f}", flush=True)
        return result


def write_rows(path, lengths, vocabulary):
    rng = random.Random(5)
    with open(path, "w", encoding="utf-8") as out:
        for length in lengths:
            ids = [rng.randrange(vocabulary) for _ in range(length)]
            out.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def gpu_cases(options, work):
    rng = random.Random(3)
    chat_lengths = [max(60, min(4096, int(rng.lognormvariate(7.0, 0.5)))) for _ in range(700)]
    short, chats = os.path.join(work, "short.jsonl"), os.path.join(work, "chats.jsonl")
    write_rows(short, [250, 262] * 150, 200000)
    write_rows(chats, chat_lengths, 200000)
    shared = {"model_name_or_path": os.path.join(options.models, "qwen3.5-0.8b"), "init": "random", "num_train_epochs": "1000",
              "learning_rate": "1e-5", "save_only_model": "true", "device": "cuda", "dtype": "bf16", "profile_wait": "20",
              "profile_active": "4"}
    long = {**shared, "dataset": chats, "max_tokens": "8192", "max_length": "8192"}
    cases = [
        Case("launch", None, {**shared, "dataset": short, "max_tokens": "512", "max_length": "512", "cuda_graph": "false",
                              "recompute": "none"}, busy=True),
        Case("padding", None, {**long, "batching": "padded", "recompute": "none"}),
        Case("recompute", None, {**long, "recompute": "block"}),
    ]
    return [case for case in cases if case.name in options.case]


def own_case(options):
    keys = dict(pair.split("=", 1) for pair in options.set + options.cause)
    return Case(" ".join(options.cause), options.config, keys)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--config")
    parser.add_argument("--cause", nargs="+", default=[], metavar="KEY=VALUE", help="what makes the run slow")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of both runs")
    parser.add_argument("--models")
    parser.add_argument("--case", nargs="*", default=["launch", "padding", "recompute"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    if bool(options.config) == bool(options.models):
        parser.error("give either --config or --models")
    results = []
    with tempfile.TemporaryDirectory(prefix="deltatune-advice-") as work:
        for case in [own_case(options)] if options.config else gpu_cases(options, work):
            with BusyProcessor() if case.busy else contextlib.nullcontext(()) as prefix:
                results.append(Follow(options, work).follow(case, list(prefix)))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"results": results}, file, indent=1)
    sys.exit(0 if all("followed" in result for result in results) else 1)


if __name__ == "__main__":
    main()
