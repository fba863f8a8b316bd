"""Runs of deltatune that bench/scaling starts, watches and ends; model folders and rows for them.

A run is ended with SIGKILL once it has shown what was asked of it: a final model of 27B is not worth waiting for. Only
processes that were started here are ended, by their ids.
"""

import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

# Seven conversations that fill a row of 8,192, about as long as UltraChat's.
LENGTHS = (1503, 877, 2210, 640, 1340, 980, 642)
KEYS = {"init": "random", "dtype": "bf16", "optim": "adamw_8bit", "master_weights": "false",
        "weight_rounding": "stochastic", "learning_rate": "1e-5", "warmup_steps": "2",
        "lr_scheduler_type": "constant_with_warmup", "seed": "7"}
# One GPU holds the whole model in this layout only.
LOW_MEMORY = {"gradient_release": "true", "max_grad_norm": "0"}


class Failed(Exception):
    """A run that ended by itself before it had shown what was asked of it, or that took too long."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def stop(what, where, fix):
    sys.exit(f"error: {what}\n  where: {where}\n  fix:   {fix}")


# ---- model and rows -------------------------------------------------------------------------------------------------


def text_config(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        whole = json.load(file)
    return whole, whole.get("text_config", whole)


def write_model(source, folder, layers):
    """A copy of the folder with the first `layers` layers; `source` itself where it has no more. (folder, layers)."""
    whole, text = text_config(source)
    if layers is None or layers == text["num_hidden_layers"]:
        return source, text["num_hidden_layers"]
    if not 1 <= layers <= text["num_hidden_layers"]:
        stop(f"{layers} layers of a model of {text['num_hidden_layers']}", "--layers", "ask for as many as there are")
    text["num_hidden_layers"] = layers
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][:layers]
    shutil.copytree(source, folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(whole, file)
    return folder, layers


def lengths_of(tokens):
    """Of the conversations of a row: LENGTHS, which fill 8,192 slots, scaled; as many as have two tokens each."""
    lengths = []
    for length in LENGTHS:
        length = max(2, length * tokens // 8192)
        if sum(lengths) + length <= tokens:
            lengths.append(length)
    lengths[-1] += tokens - sum(lengths)
    return lengths


def write_rows(path, rows, tokens, vocabulary):
    """Conversations that fill `rows` rows: noisy walks over some 500 ids, so that there is something to learn."""
    rng = random.Random(7)
    first, ids = min(1000, vocabulary // 2), min(500, vocabulary // 2)
    lengths = lengths_of(tokens)
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(rows):
            for length in lengths:
                at, row = rng.randrange(ids), []
                for _ in range(length):
                    at = (at * 7 + 3) % ids if rng.random() < 0.8 else rng.randrange(ids)
                    row.append(first + at)
                out.write(json.dumps({"input_ids": row, "labels": row}) + "\n")


# ---- processes ------------------------------------------------------------------------------------------------------


def processes():
    """Process -> its parent, of all that there are."""
    out = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", encoding="utf-8") as file:
                out[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
    return out


def descendants(process):
    parents, out = processes(), []
    todo = [process]
    while todo:
        parent = todo.pop()
        children = [child for child, its in parents.items() if its == parent]
        out += children
        todo += children
    return out


def end_with_parent():
    """In a child that is about to become another program: SIGKILL when this script is gone, however it ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def rank_of(process):
    """The rank that a process is, by the variables of its launcher; None: it is none."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            if os.path.basename(file.read().split(b"\0")[0]) in (b"mpirun", b"orted", b"prterun"):
                return None
        with open(f"/proc/{process}/environ", "rb") as file:
            found = re.search(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|RANK)=(\d+)", file.read())
    except OSError:
        return None
    return int(found[1]) if found else None


def gone(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


class Run:
    """`deltatune train` in the background, what it wrote, and its end."""

    def __init__(self, program, keys, output, log):
        self.keys = {**keys, "output_dir": output, "progress": "none", "logging_steps": "1"}
        self.output, self.log_path = output, log
        self.words = [program, "train"] + words_of(self.keys)
        with open(log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(self.words, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                            preexec_fn=end_with_parent)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def events(self, kind="step"):
        out = []
        with contextlib.suppress(OSError), open(os.path.join(self.output, "metrics.jsonl"), encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError):  # the last line may be cut
                    event = json.loads(line)
                    if event.get("event") == kind:
                        out.append(event)
        return out

    def ranks(self):
        """Rank -> process."""
        return {rank: process for process in descendants(self.process.pid)
                if (rank := rank_of(process)) is not None}

    def until(self, condition, limit_s, what, every_s=0.1):
        """Waits for condition(). Throws Failed where the run ends before it, or the time is over."""
        end = time.monotonic() + limit_s
        while not condition():
            if self.process.poll() is not None:
                if condition():
                    return
                raise Failed(f"ended with {self.process.returncode} before {what}: {self.log()[-1500:]}")
            if time.monotonic() > end:
                raise Failed(f"{what} took more than {limit_s:.0f} s: {self.log()[-1500:]}")
            time.sleep(every_s)

    def end(self):
        """Ends it with all its ranks, and waits until they are gone: their memory is free then."""
        mine = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + 30
        while not all(map(gone, mine)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in mine:
            if not gone(process):
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)


def words_of(keys):
    return [word for key, value in keys.items() for word in (f"--{key}", str(value))]


def call(words):
    return subprocess.run(words, capture_output=True, text=True, preexec_fn=end_with_parent)


def json_of(words):
    """What a verb prints with --json, or None and why."""
    done = call(words)
    if done.returncode not in (0, 4):  # 4: plan says that it does not fit
        return None, done.stderr[-600:]
    return json.loads(done.stdout), ""


def driver_memory_mib():
    """Memory in use on each GPU, as the driver has it; empty without one."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=20)
        return [int(line) for line in done.stdout.split()] if done.returncode == 0 else []
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []


def gpu_names():
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                              text=True, timeout=20)
        return done.stdout.strip().splitlines() if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        return []
