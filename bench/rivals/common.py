"""What the rival timings share: machine facts, FLA without its refusal, medians."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import statistics
import sys
import tempfile


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def lift_fla_refusal():
    """Makes FLA's gated delta rule backward run on Hopper with Triton 3.4 to 3.7.0, FOR TIMING ONLY.

    FLA refuses it there because its results are wrong. A throw-away copy of the package without the check is put
    first on sys.path; the installed one is untouched. Returns what the results have to be marked with.
    """
    spec = importlib.util.find_spec("fla")
    if spec is None:
        return {"fla": None}
    copy = tempfile.mkdtemp(prefix="fla-timing-only-")
    shutil.copytree(os.path.dirname(spec.origin), os.path.join(copy, "fla"))
    path = os.path.join(copy, "fla", "ops", "common", "chunk_o.py")
    with open(path) as file:
        text = file.read()
    text, found = re.subn(r"if g is not None and IS_NVIDIA_HOPPER and [^:\n]*:", "if False:", text)
    with open(path, "w") as file:
        file.write(text)
    sys.path.insert(0, copy)
    marks = {"fla": version("fla-core"), "triton": version("triton")}
    if found:
        marks["backward"] = "timing only: FLA refuses this backward with this Triton (wrong results); check removed"
    marks["causal_conv1d"] = version("causal-conv1d") or "not installed"
    return marks


def machine():
    import torch

    return {
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": version("transformers"),
    }


def time_ms(call, repeats=20, warmup=5):
    """Median milliseconds of call() by CUDA events."""
    import torch

    for _ in range(warmup):
        call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def time_steps(model, optimizer, ids, warmup, steps, **inputs):
    """Median milliseconds of (forward and backward, optimizer) over `steps` training steps after `warmup`.

    inputs: more arguments of the model, e.g. attention_mask.
    """
    import torch

    parts = []
    for step in range(warmup + steps):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        model(input_ids=ids, labels=ids, **inputs).loss.backward()
        marks[1].record()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        marks[2].record()
        torch.cuda.synchronize()
        if step >= warmup:
            parts.append((marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])))
    return tuple(statistics.median(part) for part in zip(*parts))


def extrapolate(result, layers):
    """Adds the times of `layers` layers to a result with two depths: step(L) = head + L layer."""
    low, high = result["depths"]
    for key in ("forward_backward_ms", "optimizer_ms"):
        layer = (high[key] - low[key]) / (high["depth"] - low["depth"])
        result["all_layers_" + key] = low[key] + (layers - low["depth"]) * layer
    result["all_layers_step_ms"] = result["all_layers_forward_backward_ms"] + result["all_layers_optimizer_ms"]


def read_lengths(path, default):
    if path is None:
        return [default]
    with open(path) as file:
        return [int(line) for line in file if line.strip()]


def finish(result, path):
    print(json.dumps(result, indent=1))
    if path:
        with open(path, "w") as file:
            json.dump(result, file, indent=1)
