"""Reads what `deltatune train` wrote for loggers with the loggers' own packages.

usage: read_loggers.py output_dir [tensorboard|prometheus|mlflow]...
Prints one JSON object: {"tensorboard": {tag: [[step, value], ...]}, "prometheus": {name: [[labels, value], ...]},
"mlflow": {"metrics": {name: [[step, value], ...]}, "params": {...}, "status": ..., "name": ...}}. Exit code 77: a
package is missing.
"""
import glob
import json
import os
import sys

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # MLflow 3.7 and later ask for it


def tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    runs = glob.glob(os.path.join(folder, "runs", "*"))
    assert len(runs) == 1, runs
    events = EventAccumulator(runs[0], size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def prometheus(folder):
    from prometheus_client.parser import text_string_to_metric_families
    out = {}
    with open(os.path.join(folder, "metrics.prom"), encoding="utf-8") as file:
        for family in text_string_to_metric_families(file.read()):
            assert family.type == "gauge", family
            for sample in family.samples:
                out.setdefault(sample.name, []).append([sample.labels, sample.value])
    return out


def mlflow(folder):
    from mlflow.tracking import MlflowClient
    client = MlflowClient("file://" + os.path.abspath(os.path.join(folder, "mlruns")))
    experiment = client.get_experiment_by_name("deltatune")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1, runs
    run = runs[0]
    history = {name: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, name)]
               for name in run.data.metrics}
    return {"metrics": history, "params": run.data.params, "status": run.info.status, "name": run.info.run_name}


def main():
    readers = {"tensorboard": tensorboard, "prometheus": prometheus, "mlflow": mlflow}
    try:
        print(json.dumps({name: readers[name](sys.argv[1]) for name in sys.argv[2:]}))
    except ImportError as problem:
        print(problem)
        sys.exit(77)


if __name__ == "__main__":
    main()
