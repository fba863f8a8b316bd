"""Draws loss curves of several runs and their relative difference from the first, and writes the numbers as JSON.

  python3 bench/curves/plot.py OUT.png OUT.json "title" LABEL=metrics.jsonl [LABEL=metrics.jsonl ...]

A run is the `step` lines of deltatune's metrics.jsonl, which must be of the same steps. Needs matplotlib.
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    return {x["step"]: x["loss"] for x in lines if x.get("event") == "step"}


def main():
    picture, numbers, title = sys.argv[1:4]
    runs = dict(argument.split("=", 1) for argument in sys.argv[4:])
    runs = {label: read(path) for label, path in runs.items()}
    steps = sorted(set.intersection(*(set(run) for run in runs.values())))
    labels = list(runs)
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(8, 6), height_ratios=[3, 2])
    styles = ["-", "--", ":", "-."]
    for label, style in zip(labels, styles):
        top.plot(steps, [runs[label][s] for s in steps], style, label=label, linewidth=1.2)
    top.set_ylabel("loss")
    top.set_title(title)
    top.legend()
    result = {"title": title, "steps": len(steps), "loss": {}, "difference": {}}
    for label in labels:
        result["loss"][label] = [round(runs[label][s], 6) for s in steps]
    pairs = [(labels[0], label) for label in labels[1:]]
    for (first, second), style in zip(pairs, styles[1:]):
        d = [abs(runs[second][s] / runs[first][s] - 1) for s in steps]
        bottom.semilogy(steps, [max(x, 1e-9) for x in d], style, label=f"|{second} / {first} - 1|", linewidth=1)
        result["difference"][f"{second} / {first} - 1"] = {
            "largest": max(d), "median": sorted(d)[len(d) // 2], "first": d[0], "last": d[-1]}
    bottom.set_xlabel("step")
    bottom.set_ylabel("relative difference")
    bottom.legend(fontsize=8)
    for axis in (top, bottom):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    with open(numbers, "w") as file:
        json.dump(result, file)
        file.write("\n")
    print(json.dumps(result["difference"], indent=1))


if __name__ == "__main__":
    main()
