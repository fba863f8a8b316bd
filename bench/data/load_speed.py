#!/usr/bin/env python3
"""Times loading of a dataset, cold (tokenised) and warm (from the token cache), with the memory each takes.

usage: load_speed.py DELTATUNE DATASET --tokenizer FOLDER [--template FILE] [--threads N] [--warm 3]
                     [--json FILE] [-- more flags of `data stats`]

Runs `deltatune data stats --json`: reads, renders, tokenises, masks, packs, and counts the steps. The cache is a
new folder, removed at the end. Memory is the peak resident set as the kernel accounts it (ru_maxrss), mapped
files included. The files of the data set are read once before, so that the disk is not what is measured.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time


def files_of(path):
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def run(command, environment):
    start = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    talk = process.stderr.read()
    if status != 0:
        sys.exit(f"{' '.join(command)}\n{talk}")
    return {"seconds": round(seconds, 2), "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
            "peak_rss_gib": round(usage.ru_maxrss / 2 ** 20, 3)}, json.loads(out), talk


def main():
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("deltatune")
    parser.add_argument("dataset")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--template")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args(words[:split])
    bytes_read = 0
    for path in files_of(args.dataset):
        with open(path, "rb") as file:
            while block := file.read(1 << 24):
                bytes_read += len(block)
    cache = tempfile.mkdtemp(prefix="deltatune-cache-", dir=os.environ.get("TMPDIR"))
    environment = dict(os.environ, DELTATUNE_CACHE=cache, DELTATUNE_NUM_THREADS=str(args.threads))
    command = [args.deltatune, "data", "stats", "--json", "--dataset", args.dataset, "--tokenizer_name_or_path",
               args.tokenizer] + (["--chat_template", args.template] if args.template else []) + words[split + 1:]
    try:
        cold, stats, talk = run(command, environment)
        sys.stderr.write(talk)
        warm = []
        for _ in range(args.warm):
            times, again, _ = run(command, environment)
            assert again == stats, "the second start has other results"
            warm.append(times)
        size = sum(os.path.getsize(path) for path in files_of(cache))
    finally:
        shutil.rmtree(cache)
    result = {"dataset_bytes": bytes_read, "threads": args.threads, "cold": cold, "warm": warm, "cache_bytes": size,
              "load_average": os.getloadavg()[0],
              **{key: stats[key] for key in ("rows", "conversations", "tokens", "supervised_share", "fill",
                                             "steps_per_epoch")}}
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
