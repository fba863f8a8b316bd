#!/usr/bin/env python3
"""Follows the advice on any configuration and device, slow run and followed run by turns.

Usage: alternate.py BINARY CONFIG OUT --cause KEY=VALUE... [--set KEY=VALUE...] [--steps N] [--rounds N] [--no-profile] [--json FILE]
A run is made slow on purpose: CONFIG with the keys of --cause. It is trained for N steps and profiled, then `deltatune
advise` is asked. The first finding that names a key and a gain is followed: the same run with that key set. Slow and
followed run alternate, so that both meet the same machine; each counts with the median of its logged steps' real tokens
per second, the first fifth of a run left out. --set changes both. Prints the finding, both rates, the predicted and the
measured gain, and their ratio; exit code 1 if no finding could be followed.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys


def run(words, **more):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode:
        sys.stderr.write(done.stderr[-2000:])
        sys.exit(f"{' '.join(words[:3])} ended with exit code {done.returncode}")
    return done.stdout


def flags(pairs):
    return [word for key, value in pairs.items() for word in ("--" + key.replace("_", "-"), value)]


class Follow:
    def __init__(self, options):
        self.options = options
        self.shared = dict(pair.split("=", 1) for pair in options.set)
        self.cause = dict(pair.split("=", 1) for pair in options.cause)

    def keys(self, name, changes):
        keys = {"logging_steps": "1", "save_steps": "0", "eval_steps": "0", "max_steps": str(self.options.steps)}
        return {**keys, **self.shared, **self.cause, **changes, "output_dir": os.path.join(self.options.out, name)}

    def train(self, name, changes):
        keys = self.keys(name, changes)
        shutil.rmtree(keys["output_dir"], ignore_errors=True)
        run([self.options.binary, "train", self.options.config, *flags(keys)])
        return self.rate(keys["output_dir"])

    def rate(self, folder):
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
            steps = [e for e in map(json.loads, file) if e["event"] == "step"]
        return statistics.median(e["real_tokens"] / e["time_s"] for e in steps[len(steps) // 5:])

    def advice(self):
        self.train("slow", {})
        if not self.options.no_profile:
            keys = self.keys("slow", {})
            del keys["max_steps"]
            run([self.options.binary, "profile", self.options.config, *flags(keys)])
        return json.loads(run([self.options.binary, "advise", os.path.join(self.options.out, "slow"), "--json"]))["findings"]

    def measure(self, finding):
        changes = {finding["key"]: finding["value"]}
        slow, followed = [], []
        for number in range(self.options.rounds):
            slow.append(self.train(f"slow-{number}", {}))
            followed.append(self.train(f"followed-{number}", changes))
        gains = [100 * (b / a - 1) for a, b in zip(slow, followed)]
        return slow, followed, statistics.median(gains), gains


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("binary")
    parser.add_argument("config")
    parser.add_argument("out")
    parser.add_argument("--cause", nargs="+", required=True, metavar="KEY=VALUE")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    follow = Follow(options)
    findings = follow.advice()
    usable = [f for f in findings if f["key"] and f["gain"]]
    for place, finding in enumerate(findings, 1):
        print(f"{place}. {finding['rule']}: {finding['evidence']}")
    if not usable:
        sys.exit("no finding names a key and a gain")
    finding = usable[0]
    slow, followed, gain, gains = follow.measure(finding)
    result = {"cause": follow.cause, "findings": [f["rule"] for f in findings], "followed": finding, "slow_tokens_per_s": slow,
              "followed_tokens_per_s": followed, "gains": gains, "measured_gain": gain, "measured_over_predicted": gain / finding["gain"]}
    print(f"set {finding['key']}: {finding['value']}; predicted +{finding['gain']} % ({finding['gain_low']} to {finding['gain_high']}), "
          f"measured {gain:+.1f} % (rounds {', '.join(f'{g:+.1f}' for g in gains)}); measured / predicted {gain / finding['gain']:.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
