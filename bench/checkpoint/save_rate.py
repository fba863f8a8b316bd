#!/usr/bin/env python3
"""Checkpoints beside the disk itself: how fast a run saves and resumes, as a share of the disk's sequential rate.

The disk's rate is taken in the same call, before and after, by plain pwrite and pread of blocks of 16 MiB with one
and four threads; writes end with an fsync, reads start with the file dropped from the page cache. The best of them is
the measure. Then `deltatune train` saves once in the background, and a second process resumes from that checkpoint,
dropped from the page cache as well.

    bench/checkpoint/save_rate.py FOLDER DELTATUNE ARGUMENTS_OF_TRAIN...

FOLDER is on the disk that is measured. Among the arguments: a model, a dataset; the script sets when is saved.
DISK_BYTES (4 GiB) is how much is written and read each time: a virtual disk takes the first few GiB faster than what
follows. DISK_WAYS (1d,4d,1) are the ways that are tried: threads, d for O_DIRECT. DISK_AGAIN=0 leaves out the second
time, behind the save. What is known so far goes to the standard error line by line.
Prints one JSON object. Not for CI: it measures this machine.
"""
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../scaling"))
import runs

BLOCK = 16 << 20


def buffer():
    memory = mmap.mmap(-1, BLOCK)  # page-aligned, as direct writes want it
    memory.write(os.urandom(BLOCK))
    return memory


def by_threads(count, total, work):
    """work(offset, buffer) for all blocks; the seconds it took."""
    lock, at, failures = threading.Lock(), [0], []
    buffers = [buffer() for _ in range(count)]

    def run(memory):
        try:
            while True:
                with lock:
                    offset = at[0]
                    at[0] += BLOCK
                if offset >= total:
                    return
                work(offset, memory)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(memory,)) for memory in buffers]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic() - start


def drop(path):
    """Out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def disk(folder, total, threads, direct):
    """Write and read rate in GB/s."""
    path = os.path.join(folder, "disk_rate.bin")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if direct else 0), 0o644)
    seconds = by_threads(threads, total, lambda offset, memory: os.pwrite(descriptor, memory, offset))
    start = time.monotonic()
    os.fsync(descriptor)
    write = total / (seconds + time.monotonic() - start) * 1e-9
    os.close(descriptor)
    drop(path)
    descriptor = os.open(path, os.O_RDONLY)
    read = total * 1e-9 / by_threads(threads, total, lambda offset, memory: os.preadv(descriptor, [memory], offset))
    os.close(descriptor)
    os.unlink(path)
    return write, read


def files_below(folder):
    for root, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(root, name)


def train(program, arguments, log, done):
    """Runs until done(text of the log), then ends the process: what follows is not measured. The log's start line."""
    with open(log, "w", encoding="utf-8") as out:
        child = subprocess.Popen([program, "train", *arguments], stdout=out, stderr=out,
                                 preexec_fn=runs.end_with_parent)
    text = ""
    while child.poll() is None:
        text = open(log, encoding="utf-8").read()
        if done(text):
            break
        time.sleep(0.2)
    if child.poll() is None:
        ranks = runs.descendants(child.pid)
        child.kill()  # ranks end with their supervisor
        child.wait()
        while not all(map(runs.gone, ranks)):  # until then they write, and hold memory
            time.sleep(0.05)
    elif not done(open(log, encoding="utf-8").read()):
        sys.exit(f"deltatune ended with {child.returncode}:\n{open(log, encoding='utf-8').read()[-3000:]}")
    return re.search(r"from the start of the process to the first step: (.*)", text).group(1)


def main():
    folder, program, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    os.makedirs(folder, exist_ok=True)
    run = os.path.join(folder, "run")
    total = int(os.environ.get("DISK_BYTES", 4 << 30))
    ways = [(int(way.rstrip("d")), way.endswith("d")) for way in os.environ.get("DISK_WAYS", "1d,4d,1").split(",")]
    out = {"disk_bytes": total, "disk": []}

    def tell(what):
        print(json.dumps(what), file=sys.stderr, flush=True)

    def measure(when):
        for threads, direct in ways:
            write, read = disk(folder, total, threads, direct)
            out["disk"].append({"when": when, "threads": threads, "direct": direct, "write_gb_s": round(write, 2),
                                "read_gb_s": round(read, 2)})
            tell(out["disk"][-1])

    measure("before")
    arguments += ["--output_dir", run, "--progress", "none", "--logging_steps", "1", "--max_steps", "1000000"]
    saving = arguments + ["--overwrite_output_dir", "--save_steps", "4"]
    saved = r"saved (.*checkpoint-4):"
    out["start"] = train(program, saving, os.path.join(folder, "train.log"), lambda text: re.search(saved, text))
    events = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"), encoding="utf-8")]
    save = [event for event in events if event["event"] == "save"][0]
    steps = [event for event in events if event["event"] == "step"]
    tell(save)
    out["save"] = {key: save[key] for key in ("bytes", "stall_s", "wait_s", "write_s", "gb_per_s", "background")}
    out["step_s"] = [round(step["time_s"], 3) for step in steps]
    for name in os.listdir(run):  # what was begun after it
        if name.startswith("checkpoint-") and name != "checkpoint-4":
            shutil.rmtree(os.path.join(run, name))
    if os.environ.get("DISK_AGAIN", "1") != "0":
        measure("between")
    for path in files_below(run):
        drop(path)
    resuming = arguments + ["--resume_from_checkpoint", save["path"], "--save_steps", "0"]
    out["resume"] = train(program, resuming, os.path.join(folder, "resume.log"),
                          lambda text: "to the first step:" in text)
    seconds = max(0.05, float(re.search(r"checkpoint ([0-9.]+)", out["resume"]).group(1)))  # told in tenths
    out["read"] = {"seconds": seconds, "gb_per_s": round(save["bytes"] * 1e-9 / seconds, 2)}
    best_write = max(d["write_gb_s"] for d in out["disk"])
    best_read = max(d["read_gb_s"] for d in out["disk"])
    out["share_of_disk"] = {"write": round(save["gb_per_s"] / best_write, 3),
                            "read": round(out["read"]["gb_per_s"] / best_read, 3)}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
