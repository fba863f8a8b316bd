"""What transformers makes of checkpoint folders: keys it misses or does not expect, and its f32 loss.

    python tests/e2e/hf_load_check.py FOLDER ROWS.jsonl [FOLDER ROWS.jsonl ...]

ROWS.jsonl has one {"input_ids": [...], "labels": [...]} a line (labels not shifted, -100: no target). Each row is
run alone. Prints a JSON list of {"class", "missing", "unexpected", "loss", "targets"}; loss is the mean over all
targets. Keys that the model class itself ignores on load (mtp.*) are not unexpected; vision tensors are loaded
by the composite class.
"""
import json
import sys
from pathlib import Path

import torch
import transformers


def check(folder, rows):
    config = json.loads((Path(folder) / "config.json").read_text())
    composite = config["model_type"] == "qwen3_5"
    cls = transformers.Qwen3_5ForConditionalGeneration if composite else transformers.Qwen3_5ForCausalLM
    model, info = cls.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    model.eval()
    total, targets = 0.0, 0
    with torch.no_grad():
        for line in Path(rows).read_text().splitlines():
            row = json.loads(line)
            ids = torch.tensor([row["input_ids"]])
            labels = torch.tensor(row["labels"])
            logits = model(input_ids=ids, use_cache=False).logits[0].double()
            kept = labels[1:] != -100
            if kept.any():
                total += torch.nn.functional.cross_entropy(
                    logits[:-1][kept], labels[1:][kept], reduction="sum"
                ).item()
                targets += int(kept.sum())
    return {
        "class": cls.__name__,
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
        "loss": total / max(targets, 1),
        "targets": targets,
    }


def main():
    torch.manual_seed(0)
    arguments = sys.argv[1:]
    print(json.dumps([check(f, r) for f, r in zip(arguments[::2], arguments[1::2])]))


if __name__ == "__main__":
    main()
