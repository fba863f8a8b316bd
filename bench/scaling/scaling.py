#!/usr/bin/env python3
"""Trains one model on 1, 2, 4, ... GPUs of a host, the same rows on each, and writes what that costs as JSON and SVG.

    bench/scaling/scaling.py DELTATUNE [--gpus 1 2 4 8] [--policy auto block] [--steps 20 12] [--json OUT] [--svg OUT]

For each number of GPUs that the machine has and each policy of recomputation: tokens/s/GPU, exposed communication,
memory allocated, planned and as the driver has it, launches, losses, and the step beside its matrix products alone,
which are timed in the same call. The others are predicted by `deltatune plan`, and marked as that. README.md beside
this file has what each figure is. A run that fails, and a call that is interrupted, leave what was measured until then.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time

import picture
import runs
from fault import kill_and_resume, room

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "../../examples/configs/models")
POST = {"what": "transformers and FSDP on 32 H200, the post's 27B run", "tokens_per_s_per_gpu": 1743}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the deltatune binary", type=os.path.abspath)
    parser.add_argument("--model", default=os.path.join(MODELS, "qwen3.8-27b"), help="folder with config.json")
    parser.add_argument("--layers", type=int, help="only the first layers: 8 is the short form")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--policy", nargs="+", default=["auto", "block"], choices=["auto", "block", "none"])
    parser.add_argument("--steps", type=int, nargs="+", default=[20],
                        help="measured steps of each policy; the last number counts for the rest, too")
    parser.add_argument("--tokens", type=int, default=8192, help="slots of a row: one row a GPU and step")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--card", default="h200", help="device card of the plans")
    parser.add_argument("--limit", type=float, default=900, help="seconds that a run may take")
    parser.add_argument("--products", nargs="*", default=["none", "block"], choices=["none", "block"],
                        help="policies whose matrix products are timed alone; without a name none are")
    parser.add_argument("--no-profile", action="store_true", help="no traced step behind the measured ones")
    parser.add_argument("--trace", action="store_true",
                        help="the traced step for Perfetto, too: in --work, of the last run")
    parser.add_argument("--fault", action="store_true",
                        help="in place of all else kill a rank of the largest run there can be, resume on half of them")
    parser.add_argument("--fault-model", default=os.path.join(MODELS, "qwen3.5-0.8b"))
    parser.add_argument("--fault-timeout", type=int, default=30, help="ddp_timeout of the run that is killed, seconds")
    parser.add_argument("--seed", type=int, default=1, help="which rank is killed, and in which step")
    parser.add_argument("--work", help="folder for rows, models, runs; a temporary one otherwise")
    parser.add_argument("--json", help="file for the results; what it holds of other runs stays")
    parser.add_argument("--svg")
    args = parser.parse_args()
    if min(args.gpus + args.steps) < 1:
        parser.error("--gpus and --steps are at least 1")
    return args


def existing(args):
    """GPUs that a run may use; on a CPU any number of ranks can be tried."""
    if args.device == "cpu":
        return max(args.gpus)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(runs.gpu_names())
    return there if visible is None else min(there, len([word for word in visible.split(",") if word.strip()]))


def keys_of(args, model, rows, gpus, policy):
    out = {**runs.KEYS, "model_name_or_path": model, "dataset": rows, "max_tokens": args.tokens,
           "max_length": args.tokens, "recompute": policy, "nproc": gpus}
    return {**out, **runs.LOW_MEMORY} if gpus == 1 else out


def plan(args, keys):
    """What `deltatune plan` says of a run: memory, speed, products."""
    words = {**keys, "device": args.card}
    report, why = runs.json_of([args.program, "plan", *runs.words_of(words), "--json"])
    if report is None:
        return {"failed": why}
    products = [op for op in report["ops"] if op["op"] == "matmul"]
    return {"card": report["device"], "memory_bytes": report["memory_total_bytes"], "fits": report["fits"],
            "kept": report.get("kept"), "tokens_per_s_per_gpu": report.get("tokens_per_s_per_device"),
            "exposed_share": share(report.get("exposed_communication_s"), report.get("roofline_s")),
            "product_flops": sum(op["flops"] for op in products)}


def without_folder(word):
    """Results do not tell where on a machine they were made."""
    return os.path.basename(word) if os.path.isabs(word) else word


def share(part, whole):
    return part / (part + whole) if part is not None and whole else None


def rounded(value, digits=5):
    return None if value is None else round(value, digits)


class Products:
    """The step's matrix products alone, by `deltatune bench step`, extended to all layers from two depths."""

    def __init__(self, args, model, layers):
        self.args, self.model, self.layers = args, model, layers
        self.times = {}
        self.commands = []
        self.machine = None

    def of_policy(self, policy):
        """Milliseconds and what bench step says of it, or None and why."""
        if policy not in self.times:
            high = min(self.layers, 8)
            depths = [high // 2, high] if high > 1 else [high]
            with tempfile.NamedTemporaryFile(suffix=".json") as out:
                lengths = os.path.join(self.args.work, "lengths.txt")
                with open(lengths, "w", encoding="utf-8") as file:
                    file.writelines(f"{length}\n" for length in runs.lengths_of(self.args.tokens))
                words = [self.args.program, "bench", "step", "--model", self.model, "--depths",
                         ",".join(map(str, depths)), "--tokens", str(self.args.tokens), "--lengths", lengths,
                         "--recompute", policy, "--optim", "adamw_8bit", "--no-master_weights", "--weight_rounding",
                         "stochastic", "--device", self.args.device, "--json", out.name]
                self.commands.append("deltatune " + " ".join(map(without_folder, words[1:-2])))
                done = runs.call(words)
                if done.returncode != 0:
                    self.times[policy] = {"failed": done.stderr[-600:]}
                else:
                    report = json.load(open(out.name, encoding="utf-8"))
                    self.machine = {"commit": report["commit"], **report["machine"]}
                    whole = report["bench"].get("extrapolated") or report["bench"]["depths"][-1]
                    self.times[policy] = {"gemm_ms": whole["gemm_ms"], "one_gpu_ms": whole["forward_backward_ms"],
                                          "launches_op_by_op": whole["launches"], "depths": depths}
        return self.times[policy]

    def gemm_ms(self, policy, flops, flops_of):
        """Of a policy whose products have `flops`; flops_of(policy) of those that are timed. None: not known.

        auto computes some products again, so it lies between none and block, by its share of what block adds. Where
        only one of them is timed, its rate in FLOPs counts for all products.
        """
        timed = [name for name in self.args.products if self.of_policy(name).get("gemm_ms") and flops_of(name)]
        if policy in timed:
            return self.of_policy(policy)["gemm_ms"]
        if not timed or not flops:
            return None
        first, last = timed[0], timed[-1]
        begin, low, high = self.of_policy(first)["gemm_ms"], flops_of(first), flops_of(last)
        if low == high:
            return begin * flops / low
        return begin + (self.of_policy(last)["gemm_ms"] - begin) * (flops - low) / (high - low)


def from_profile(path):
    """Launches, the update and communication of the traced step."""
    with open(path, encoding="utf-8") as file:
        profile = json.load(file)
    by_phase = {}
    for op in profile["ops"]:
        by_phase[op["phase"]] = by_phase.get(op["phase"], 0) + op["device_ms"]
    return {"host_launches": profile["launches"], "kernels": profile["kernels"], "cuda_graph": profile["graph"],
            "step_ms": profile["step_ms"], "update_ms": by_phase.get("update", 0.0),
            "products_ms": sum(op["device_ms"] for op in profile["ops"] if op["op"] == "matmul"),
            "communication": profile["communication"], "idle_ms": profile["idle_ms"]}


def figures(events, gpus, steps):
    """Of the step events of a run: the first third is warm-up."""
    events = [event for event in events if event["step"] <= steps]
    if not events:
        return {}
    tail = events[len(events) // 3:]
    seconds = sum(event["time_s"] for event in tail)
    exposed = [event["exposed_comm_s"] for event in tail if "exposed_comm_s" in event]
    return {"steps": len(events), "step_ms": statistics.median(event["time_s"] for event in tail) * 1e3,
            "tokens_per_s_per_gpu": {"slots": sum(event["tokens"] for event in tail) / seconds / gpus,
                                     "real": sum(event["real_tokens"] for event in tail) / seconds / gpus},
            "exposed_share": sum(exposed) / seconds if exposed else None,
            "host_bound_share": rounded(events[-1].get("host_bound_share")), "mfu": rounded(events[-1].get("mfu")),
            "losses": [event["loss"] for event in events[:20]],
            "time_s": [event["time_s"] for event in events],
            "exposed_comm_s": [event.get("exposed_comm_s") for event in events]}


class Measurement:
    def __init__(self, args):
        self.args = args
        self.failed = False  # a run of this call
        self.out = {"runs": []}
        if args.json and os.path.exists(args.json):
            with open(args.json, encoding="utf-8") as file:
                self.out = json.load(file)
        self.out["command"] = "bench/scaling/scaling.py deltatune " + " ".join(map(without_folder, sys.argv[2:]))
        self.out["date"] = time.strftime("%Y-%m-%d", time.gmtime())
        self.out["gpus"] = runs.gpu_names() if args.device == "cuda" else []

    def put(self, record):
        same = lambda other: (other["gpus"], other["policy"]) == (record["gpus"], record["policy"])
        # Nothing else replaces what was measured in an earlier call.
        if record["state"] != "measured" and any(same(o) and o["state"] == "measured" for o in self.out["runs"]):
            return
        self.out["runs"] = [o for o in self.out["runs"] if not same(o)] + [record]
        self.out["runs"].sort(key=lambda o: (o["policy"], o["gpus"]))
        self.write()

    def write(self):
        self.out["weak_scaling"] = weak_scaling(self.out["runs"])
        if self.args.json:
            with open(self.args.json + ".tmp", "w", encoding="utf-8") as file:
                json.dump(self.out, file, indent=1)
                file.write("\n")
            os.replace(self.args.json + ".tmp", self.args.json)
        if self.args.svg:
            with open(self.args.svg, "w", encoding="utf-8") as file:
                file.write(picture.draw(self.out))

    def scaling(self):
        args = self.args
        model, layers = runs.write_model(args.model, os.path.join(args.work, "model"), args.layers)
        _, text = runs.text_config(model)
        have = existing(args)
        most = max([n for n in args.gpus if n <= have], default=0)
        rows = os.path.join(args.work, "rows.jsonl")
        runs.write_rows(rows, max(most, 1) * (min(max(args.steps), 100) + 4), args.tokens, text["vocab_size"])
        self.out.update({"model": os.path.basename(args.model), "layers": layers, "tokens_per_gpu": args.tokens,
                         "device": args.device, "keys": runs.KEYS, "keys_of_one_gpu": runs.LOW_MEMORY})
        if os.path.basename(args.model) == "qwen3.8-27b" and args.layers is None:
            self.out["post"] = POST
        products = Products(args, model, layers)
        for index, policy in enumerate(args.policy):
            steps = args.steps[min(index, len(args.steps) - 1)]
            for gpus in sorted(args.gpus):
                keys = keys_of(args, model, rows, gpus, policy)
                record = {"gpus": gpus, "policy": policy, "plan": plan(args, keys)}
                if args.device == "cuda" and record["plan"].get("fits") is False:
                    self.put({**record, "state": "does not fit", "why": "by its plan"})
                    continue
                if gpus > have:
                    self.put({**record, "state": "prediction", "why": f"not run: {have} GPUs are here"})
                    continue
                runs.say(f"{gpus} GPUs, {policy}, {steps} steps")
                self.put(self.train(record, keys, steps))
        if args.products:
            self.beside_products(products, lambda gpus, policy: keys_of(args, model, rows, gpus, policy))

    def train(self, record, planned, steps):
        args, gpus = self.args, record["gpus"]
        folder = os.path.join(args.work, "run")
        shutil.rmtree(folder, ignore_errors=True)
        keys = {**planned, "device": args.device, "max_steps": steps + 8, "num_train_epochs": "1000", "save_steps": "0"}
        if not args.no_profile:
            keys.update({"profile": "trace" if args.trace else "ops", "profile_wait": steps, "profile_warmup": "1",
                         "profile_active": "1"})
        merged = "merged" if gpus > 1 else "rank0000"  # the file that is written last
        traced = os.path.join(folder, f"trace/{merged}.json.gz" if args.trace else "profile.json")
        record["state"] = "failed"
        with runs.Run(args.program, keys, folder, os.path.join(args.work, "run.log")) as run:
            try:
                run.until(lambda: len(run.events()) >= min(3, steps), args.limit, "the first steps")
                record["driver_memory_mib"] = runs.driver_memory_mib()[:gpus]
                run.until(lambda: len(run.events()) >= steps, args.limit, f"step {steps}")
                record["state"] = "measured"
                if not args.no_profile:
                    patience = 20 + 6 * run.events()[-1]["time_s"]
                    run.until(lambda: os.path.exists(traced), patience, "the traced step")
            except runs.Failed as failure:
                record["why"] = str(failure)
            except KeyboardInterrupt:
                if record["state"] != "measured":  # else only its traced step is missing
                    record["state"] = "interrupted"
                self.collect(record, run, planned, steps)
                self.put(record)
                raise
            self.collect(record, run, planned, steps)
        self.failed = self.failed or record["state"] == "failed"
        runs.say(summary_line(record))
        return record

    def collect(self, record, run, planned_keys, steps):
        profile = os.path.join(run.output, "profile.json")
        record.update(figures(run.events(), record["gpus"], steps))
        said = ("communication:", "model:", "recompute auto:", "from the start", "warning:")
        record["log"] = [line for line in run.log().splitlines() if line.startswith(said)][:12]
        if os.path.exists(profile):
            record["traced_step"] = from_profile(profile)
        about = os.path.join(run.output, "run.json")
        if os.path.exists(about):
            with open(about, encoding="utf-8") as file:
                told = json.load(file)
            if told.get("plan"):  # there as soon as memory is taken
                record["memory_bytes"] = told["plan"]["total_bytes"]
            self.out["commit"] = told["commit"]
            self.out["machine"] = {key: told["machine"].get(key) for key in ("cpu", "cores", "memory_bytes", "gpus")}
        # The plan alone takes the most conversations that a row may have; the run has read how many its rows have.
        found = re.search(r"rows of \d+ with at most (\d+) conversations", run.log())
        if found:
            record["plan"] = plan(self.args, {**planned_keys, "max_documents": found[1]})
        planned = record["plan"].get("memory_bytes")
        if planned and "memory_bytes" in record:
            record["memory_to_plan"] = record["memory_bytes"] / planned

    def beside_products(self, products, keys_for):
        """Puts the products alone beside the runs of this call."""
        flops = {}

        def flops_of(policy, gpus=2):
            if policy not in flops:
                flops[policy] = plan(self.args, keys_for(gpus, policy)).get("product_flops")
            return flops[policy]

        for record in self.out["runs"]:
            if record["state"] != "measured" or record["policy"] not in self.args.policy:
                continue
            if record["gpus"] not in self.args.gpus:
                continue
            runs.say(f"matrix products alone, for {record['gpus']} GPUs, {record['policy']}")
            gemm = products.gemm_ms(record["policy"], record["plan"].get("product_flops"), flops_of)
            self.out["products_alone"] = {"commands": products.commands, **products.times}
            if gemm:
                record["products_alone_ms"] = gemm
                record["step_to_products"] = record["step_ms"] / gemm
                update = record.get("traced_step", {}).get("update_ms")
                if update is not None and record["gpus"] > 1:  # one GPU updates inside of backward
                    record["forward_backward_ms"] = record["step_ms"] - update
                    record["forward_backward_to_products"] = record["forward_backward_ms"] / gemm
            self.write()

    def fault(self):
        args = self.args
        ranks = max((n for n in args.gpus if n <= existing(args) and n % 2 == 0), default=0)
        if ranks < 2:
            runs.stop("no even number of GPUs to kill one of", "--gpus", "needs two GPUs or more")
        model, _ = runs.write_model(args.fault_model, os.path.join(args.work, "fault-model"), args.layers)
        _, text = runs.text_config(model)
        rows = os.path.join(args.work, "fault-rows.jsonl")
        runs.write_rows(rows, ranks * 40, args.tokens, text["vocab_size"])
        keys = {**runs.KEYS, "model_name_or_path": model, "dataset": rows, "max_tokens": args.tokens,
                "max_length": args.tokens, "recompute": "block", "device": args.device, "num_train_epochs": "1000"}
        report, why = runs.json_of([args.program, "plan", *runs.words_of({**keys, "device": args.card}), "--json"])
        if report is None:
            runs.stop("the plan of the run that is to be killed failed", why, "see above")
        room(args.work, report["parameters"])
        record = {"model": os.path.basename(args.fault_model), "parameters": report["parameters"]}
        try:
            record.update(kill_and_resume(args.program, keys, ranks, args.work, args.fault_timeout, args.seed,
                                          args.limit))
        except runs.Failed as failure:
            record.update({"passed": False, "why": str(failure)})
        self.out["fault"] = record
        self.write()
        print(json.dumps(record, indent=1))
        return record["passed"]


def weak_scaling(records):
    """Of each policy: tokens/s/GPU of n GPUs over that of the fewest above one, which has the same keys."""
    out = []
    for policy in sorted({record["policy"] for record in records}):
        measured = [r for r in records if r["policy"] == policy and r["state"] == "measured" and r["gpus"] > 1]
        for record in measured[1:]:
            first, last = measured[0]["tokens_per_s_per_gpu"]["slots"], record["tokens_per_s_per_gpu"]["slots"]
            out.append({"policy": policy, "from": measured[0]["gpus"], "to": record["gpus"],
                        "efficiency": last / first})
    return out


def summary_line(record):
    if "tokens_per_s_per_gpu" not in record:
        return f"{record['gpus']} GPUs, {record['policy']}: {record['state']}: {record.get('why', '')[:300]}"
    exposed = record.get("exposed_share")
    return (f"{record['gpus']} GPUs, {record['policy']}: {record['state']}, {record['steps']} steps of "
            f"{record['step_ms']:.1f} ms, {record['tokens_per_s_per_gpu']['slots']:.0f} slots/s/GPU, exposed "
            f"{'-' if exposed is None else f'{100 * exposed:.2f} %'}")


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, interrupted)
    own = args.work is None
    args.work = os.path.abspath(args.work) if args.work else tempfile.mkdtemp(prefix="deltatune-scaling-")
    os.makedirs(args.work, exist_ok=True)
    measurement = Measurement(args)
    try:
        if args.fault:
            return 0 if measurement.fault() else 1
        measurement.scaling()
        print(picture.table(measurement.out))
        return 1 if measurement.failed else 0
    except KeyboardInterrupt:
        runs.say("interrupted: what was measured until here is kept")
        return 130
    finally:
        measurement.write()
        if own:
            shutil.rmtree(args.work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
