#!/usr/bin/env python3
"""Kills ranks of a run (SIGKILL) at random moments, resumes it each time, and looks at what is on disk.

Usage: kill_ranks.py BINARY [--kills 50] [--ranks 2] [--seed 1] [--folder DIR]
A run of a small model saves every second step. Again and again one rank of it, chosen at random, is killed after
a random time, and the run is resumed from its latest checkpoint; when it completes, it starts anew. Checked:
- after every kill, each folder checkpoint-N is complete (every file of its safetensors and of its resume state
  has its full length), and the next start resumes from the latest of them;
- every kill ends the run with exit code 5 and exactly one error, and no rank is left behind;
- a run that completes has the weights of one that nobody disturbed, byte for byte.
The seed fixes ranks and waiting times; where in the step a kill falls depends on the machine. Exit code 1 if
anything is wrong, 77 where ranks cannot be started.
"""
import argparse
import collections
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DEMO = os.path.join(ROOT, "examples/demo")
STEPS = 24
SMALL = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_num_key_heads": 1, "linear_num_value_heads": 2, "layer_types": ["linear_attention", "full_attention"],
}


def write_model(folder):
    os.makedirs(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(os.path.join(DEMO, "model", name), folder)
    with open(os.path.join(DEMO, "model/config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.update(SMALL)
    config["rope_parameters"]["mrope_section"] = [2, 1, 1]
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def write_config(folder, output, ranks):
    keys = {
        "model_name_or_path": os.path.join(folder, "model"), "init": "random",
        "dataset": os.path.join(DEMO, "train.jsonl"), "output_dir": output, "max_length": 128, "max_tokens": 256,
        "max_steps": STEPS, "gradient_accumulation_steps": 2, "learning_rate": 0.002,
        "lr_scheduler_type": "constant", "device": "cpu", "nproc": ranks, "logging_steps": 1, "save_steps": 2,
        "save_total_limit": 3, "seed": 7,
    }
    path = os.path.join(folder, os.path.basename(output) + ".yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{key}: {value}\n" for key, value in keys.items())
    return path


def rank_processes(config):
    """Rank -> process, of the run of this configuration."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read()
            if config.encode() not in words or words.startswith(b"mpirun"):
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                match = re.search(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|RANK)=(\d+)", file.read())
        except OSError:
            continue
        if match:
            found[int(match[1])] = int(name)
    return found


def half_written(folder):
    """What is wrong with a checkpoint folder, or nothing."""
    names = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
    if not names:
        return "no weights"
    paths = [os.path.join(folder, name) for name in names]
    state = os.path.join(folder, "deltatune/state.json")
    if not os.path.exists(state):
        return "no deltatune/state.json"
    with open(state, encoding="utf-8") as file:
        json.load(file)
    ranks = [name for name in os.listdir(os.path.dirname(state)) if name.startswith("rank-")]
    world = {int(re.fullmatch(r"rank-\d+-of-(\d+)\.safetensors", name)[1]) for name in ranks}
    if len(world) != 1 or len(ranks) != world.pop():
        return f"parts {sorted(ranks)}"
    paths += [os.path.join(os.path.dirname(state), name) for name in ranks]
    for path in paths:
        with open(path, "rb") as file:
            head = file.read(8)
            if len(head) < 8:
                return f"{path} is cut off"
            length = struct.unpack("<Q", head)[0]
            header = json.loads(file.read(length))
        end = max(value["data_offsets"][1] for key, value in header.items() if key != "__metadata__")
        if os.path.getsize(path) != 8 + length + end:
            return f"{path} has not its full length"
    return None


def checkpoints(output):
    if not os.path.isdir(output):
        return []
    found = [re.fullmatch(r"checkpoint-(\d+)", name) for name in os.listdir(output)]
    return sorted(int(match[1]) for match in found if match)


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


class Trial:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.folder = options.folder or tempfile.mkdtemp(prefix="deltatune-kills-")
        self.output = os.path.join(self.folder, "killed")
        self.config = None
        self.calm = None
        self.problems = []
        self.where = collections.Counter()
        self.resumed = self.completed = self.kills = 0
        self.span = 1.0

    def wrong(self, text):
        self.problems.append(text)
        print(f"kill_ranks: {text}", flush=True)

    def train(self, config):
        return subprocess.Popen([self.options.binary, "train", config, "--resume_from_checkpoint", "true"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def undisturbed(self):
        write_model(os.path.join(self.folder, "model"))
        calm = os.path.join(self.folder, "calm")
        begin = time.monotonic()
        run = self.train(write_config(self.folder, calm, self.options.ranks))
        log = run.communicate()[1]
        if run.returncode != 0:
            print(log)
            sys.exit(77 if "MPI" in log or "mpirun" in log else 1)
        self.span = time.monotonic() - begin
        self.calm = bytes_of(os.path.join(calm, "model.safetensors"))
        self.config = write_config(self.folder, self.output, self.options.ranks)

    def kill_once(self):
        before = checkpoints(self.output)
        run = self.train(self.config)
        deadline = time.monotonic() + 60
        while len(rank_processes(self.config)) < self.options.ranks and run.poll() is None:
            if time.monotonic() > deadline:
                self.wrong("the ranks did not start")
                break
            time.sleep(0.002)
        time.sleep(self.random.uniform(0, self.span))
        victim = self.random.randrange(self.options.ranks)
        process = rank_processes(self.config).get(victim)
        try:
            os.kill(process or 0, signal.SIGKILL if process else 0)
        except ProcessLookupError:
            process = None
        log = run.communicate(timeout=120)[1]
        if before:
            resumed = f"resumed from {self.output}/checkpoint-{before[-1]} " in log
            trained = re.search(r"\bstep +\d+/", log) is not None  # so it has said where from
            if (trained and not resumed) or "starting from the beginning" in log:
                self.wrong(f"did not resume from checkpoint-{before[-1]}: {log[-600:]}")
            self.resumed += resumed
        self.look(run.returncode, log, process)

    def look(self, code, log, killed):
        left = rank_processes(self.config)
        if left:
            self.wrong(f"ranks left behind: {left}")
        for step in checkpoints(self.output):
            wrong = half_written(os.path.join(self.output, f"checkpoint-{step}"))
            if wrong:
                self.wrong(f"checkpoint-{step}: {wrong}")
        if code == 0:
            self.completed += 1
            if bytes_of(os.path.join(self.output, "model.safetensors")) != self.calm:
                self.wrong("the completed run has other weights than the undisturbed one")
            shutil.rmtree(self.output)
            return
        if not killed:
            self.wrong(f"ended with {code} though nobody was killed: {log[-800:]}")
            return
        self.kills += 1
        if code != 5 or log.count("error: ") != 1:
            self.wrong(f"exit code {code}, {log.count('error: ')} errors: {log[-800:]}")
        place = re.search(r"where: rank \d+, step \d+, ([^\n]*)", log)
        self.where[place[1] if place else "unknown"] += 1

    def run(self):
        self.undisturbed()
        attempts = 0
        while self.kills < self.options.kills and attempts < 3 * self.options.kills + 10 and len(self.problems) < 10:
            attempts += 1
            self.kill_once()
        if self.kills < self.options.kills:
            self.wrong(f"only {self.kills} kills in {attempts} attempts")
        # And to the end.
        run = self.train(self.config)
        log = run.communicate()[1]
        if run.returncode != 0:
            self.wrong(f"the last run ended with {run.returncode}: {log[-800:]}")
        else:
            self.look(0, log, None)
        if not self.options.folder:
            shutil.rmtree(self.folder)
        places = ", ".join(f"{count} {place}" for place, count in self.where.most_common())
        print(f"kill_ranks: {self.kills} kills of {self.options.ranks} ranks, seed {self.options.seed} ({places}); "
              f"{self.resumed} starts from a checkpoint, {self.completed} runs completed; "
              f"{len(self.problems)} problems")
        return 1 if self.problems else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=os.path.abspath)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder")
    sys.exit(Trial(parser.parse_args()).run())


if __name__ == "__main__":
    main()
