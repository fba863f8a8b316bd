"""Writes tests/train/schedules.json: learning rates of transformers' get_scheduler.

    python tools/make_schedule_cases.py > tests/train/schedules.json

Needs torch and transformers. Each case holds the rate that every optimizer step used, as LambdaLR sets it.
"""
import json
from types import SimpleNamespace

import torch
import transformers
from transformers import TrainingArguments, get_scheduler

cases = []
for name in ("constant", "constant_with_warmup", "linear", "cosine"):
    for warmup, total in ((0, 1), (0, 7), (3, 10), (10, 10), (12, 10), (1, 23)):
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=3e-4)
        scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total)
        rates = []
        for _ in range(total):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        cases.append({"type": name, "peak": 3e-4, "warmup_steps": warmup, "total_steps": total, "rates": rates})

warmups = []
for steps, ratio, total in ((0, 0.03, 375), (0, 0.03, 100), (0, 0.1, 7), (0, 0.0, 10), (5, 0.5, 100), (0, 0.29, 100)):
    # transformers reads a value below 1 as a ratio. The method needs no more of the arguments than this.
    arguments = SimpleNamespace(warmup_steps=steps or ratio, warmup_ratio=None)
    warmups.append({"steps": steps, "ratio": ratio, "total_steps": total,
                    "warmup_steps": TrainingArguments.get_warmup_steps(arguments, total)})

print(json.dumps({"transformers": transformers.__version__, "cases": cases, "warmups": warmups}, indent=1))
