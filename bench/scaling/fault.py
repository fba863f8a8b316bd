"""kill -9 of one rank in the middle of a step; the run goes on with half the ranks from its checkpoint.

Seen from outside: how long the others took to end, what was said, that the checkpoint is whole, and that the losses of
the run with half the ranks (and twice the micro-batches, so the same rows in a step) are those that the killed run had
for the same steps.
"""

import os
import random
import shutil
import signal
import statistics
import time

import runs

SAVE_STEPS = 10  # so many that a kill soon after a save comes before the next one
MORE = 6  # steps that the resumed run has to make


def room(folder, parameters):
    """Refuses where the disk has no room for two checkpoints: bf16 weights and two moments of 8 bits each."""
    need = 2 * parameters * 4.1 + (1 << 30)
    free = shutil.disk_usage(folder).free
    if free < need:
        runs.stop(f"two checkpoints of {parameters:,} parameters need {need / 2**30:.1f} GiB", f"{folder} has "
                  f"{free / 2**30:.1f} GiB free", "name another folder with --work, or a smaller --fault-model")


def checkpoints(folder):
    """Steps of those that are there; a save under way has another name."""
    return sorted(int(name.split("-")[1]) for name in os.listdir(folder)
                  if name.startswith("checkpoint-") and name.split("-")[1].isdigit())


def whole(checkpoint, ranks):
    """That a checkpoint has its weights and the part of each rank."""
    state = os.path.join(checkpoint, "deltatune")
    parts = [name for name in os.listdir(state) if name.startswith("rank-")]
    weights = [name for name in os.listdir(checkpoint) if name.endswith(".safetensors")]
    return len(parts) == ranks and len(weights) > 0 and os.path.exists(os.path.join(state, "state.json"))


def kill_one(run, ranks, timeout_s, seed, limit_s):
    """Kills a rank in the middle of a step behind the first save, and waits for the others. (record, losses by step)"""
    random_of = random.Random(seed)
    victim, behind = random_of.randrange(ranks), random_of.randrange(1, 4)
    # Early behind a save, so that the killed run has logged steps that the resumed one takes again.
    run.until(lambda: len(run.events()) >= SAVE_STEPS + behind and 1 <= len(run.events()) % SAVE_STEPS <= 4, limit_s,
              f"step {SAVE_STEPS + behind}", every_s=0.005)
    ids = run.ranks()
    if len(ids) != ranks:
        raise runs.Failed(f"{len(ids)} of {ranks} ranks are there")
    step_s = statistics.median(event["time_s"] for event in run.events()[1:])
    time.sleep(step_s / 2)
    os.kill(ids[victim], signal.SIGKILL)
    killed = time.monotonic()
    others = [process for rank, process in ids.items() if rank != victim]
    while not all(map(runs.gone, others)) or run.process.poll() is None:
        if time.monotonic() - killed > timeout_s + 30:
            raise runs.Failed(f"ranks or their supervisor are still there {timeout_s + 30} s after the kill")
        time.sleep(0.02)
    log = run.log()
    at = log.find("error: ")
    events = run.events()
    return {"step_s": step_s, "killed_rank": victim, "killed_in_step": len(events) + 1,
            "all_ended_after_s": round(time.monotonic() - killed, 2), "exit_code": run.process.returncode,
            "errors": log.count("error: "), "said": log[at:at + 400].strip().splitlines()[:3]
            }, {event["step"]: event["loss"] for event in events}


def kill_and_resume(program, keys, ranks, work, timeout_s, seed, limit_s):
    """The record of it. keys: of the run, without nproc; ranks: at least 2, even."""
    out = {"ranks": ranks, "ddp_timeout_s": timeout_s}
    folder = os.path.join(work, "fault")
    shutil.rmtree(folder, ignore_errors=True)
    keys = {**keys, "max_steps": "100000", "ddp_timeout": timeout_s, "save_total_limit": "1"}
    first = {**keys, "nproc": ranks, "gradient_accumulation_steps": 1, "save_steps": SAVE_STEPS, "async_save": "false"}
    with runs.Run(program, first, folder, os.path.join(work, "killed.log")) as run:
        record, before = kill_one(run, ranks, timeout_s, seed, limit_s)
    out.update(record)
    saved = checkpoints(folder)
    if not saved:
        raise runs.Failed("no checkpoint is left")
    checkpoint = os.path.join(folder, f"checkpoint-{saved[-1]}")
    out.update({"saved_at_step": saved[-1], "checkpoint_whole": whole(checkpoint, ranks)})
    second = {**keys, "nproc": ranks // 2, "gradient_accumulation_steps": 2, "save_steps": "0",
              "resume_from_checkpoint": checkpoint}
    with runs.Run(program, second, folder, os.path.join(work, "resumed.log")) as run:
        # What the killed run wrote behind its checkpoint is taken out of the file when the run goes on.
        run.until(lambda: "resumed from" in run.log() and [e for e in run.events() if e["step"] >= saved[-1] + MORE],
                  limit_s, "the resumed steps")
        after = {event["step"]: event["loss"] for event in run.events() if event["step"] > saved[-1]}
    same = sorted(set(before) & set(after))
    out["resumed"] = {"ranks": ranks // 2, "steps": sorted(after), "losses": [after[step] for step in sorted(after)],
                      "losses_of_the_killed_run": {str(step): before[step] for step in same},
                      "largest_difference": max(abs(after[s] / before[s] - 1) for s in same) if same else None}
    out["passed"] = (out["all_ended_after_s"] <= timeout_s and out["exit_code"] == 5 and out["checkpoint_whole"]
                     and len(after) >= MORE)
    shutil.rmtree(folder, ignore_errors=True)
    return out
