#!/usr/bin/env python3
"""Writes synthetic conversations of UltraChat-200k-like lengths as JSONL, and as Parquet with its columns.

usage: make_conversations.py OUT --text CHAT.jsonl... [--count 207865] [--tokens 1240] [--seed 1] [--no-parquet]

Lengths are lognormal (mean --tokens, sigma 0.325, clipped to 60..8192), turns are 1 to 7 pairs. The text is
sentences drawn from the messages of the given chat files, so that words repeat as they do in language while no
two conversations are equal. A token is taken to be 4.6 bytes; `deltatune data stats` says what came out.
OUT/conversations.jsonl and OUT/data/train_sft-0000N-of-00003.parquet hold the same rows (columns prompt,
prompt_id, messages: list<struct<content, role>>; snappy). Parquet needs pyarrow.
"""
import argparse
import json
import math
import os
import random
import re

PAIRS = {1: .18, 2: .22, 3: .20, 4: .20, 5: .10, 6: .06, 7: .04}
BYTES_PER_TOKEN = 4.6
SHARDS = 3


def sentences_of(paths):
    out = set()
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                for message in json.loads(line)["messages"]:
                    text = message.get("content") or ""
                    out.update(s.strip() for s in re.split(r"(?<=[.!?])\s+|\n+", text) if 3 < len(s.strip()) < 2000)
    return sorted(out)


def conversation(rng, pool, mean):
    tokens = rng.lognormvariate(math.log(mean) - 0.325 ** 2 / 2, 0.325)
    tokens = min(max(int(tokens), 60), 8192)
    pairs = rng.choices(list(PAIRS), list(PAIRS.values()))[0]
    room = max(40, (tokens - 14 * pairs) * BYTES_PER_TOKEN)
    messages = []
    for _ in range(pairs):
        for role, share in (("user", 0.2), ("assistant", 0.8)):
            wanted, parts = room / pairs * share, []
            while wanted > 0:
                parts.append(pool[int(rng.random() * len(pool))])
                wanted -= len(parts[-1]) + 1
            # Blank lines between some sentences, as in prose.
            messages.append({"content": ("\n\n" if rng.random() < 0.2 else " ").join(parts), "role": role})
    return messages


def parquet_writer(folder, shard):
    import pyarrow as pa
    import pyarrow.parquet as pq
    schema = pa.schema([("prompt", pa.string()), ("prompt_id", pa.string()),
                        ("messages", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())])))])
    path = os.path.join(folder, f"train_sft-{shard:05d}-of-{SHARDS:05d}.parquet")
    writer = pq.ParquetWriter(path, schema, compression="snappy")
    return lambda rows: writer.write_table(pa.Table.from_pylist(rows, schema)), writer.close


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--count", type=int, default=207865)
    parser.add_argument("--tokens", type=float, default=1240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-parquet", action="store_true")
    args = parser.parse_args()
    rng, pool = random.Random(args.seed), sentences_of(args.text)
    data = os.path.join(args.out, "data")
    os.makedirs(data if not args.no_parquet else args.out, exist_ok=True)
    per_shard = (args.count + SHARDS - 1) // SHARDS
    write = close = None
    block = []
    with open(os.path.join(args.out, "conversations.jsonl"), "w", encoding="utf-8") as lines:
        for i in range(args.count):
            if i % per_shard == 0 and not args.no_parquet:
                if close:
                    write(block)
                    close()
                    block = []
                write, close = parquet_writer(data, i // per_shard)
            messages = conversation(rng, pool, args.tokens)
            row = {"prompt": messages[0]["content"], "prompt_id": f"{i:064x}", "messages": messages}
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
            if write:
                block.append(row)
                if len(block) == 4096:
                    write(block)
                    block = []
    if close:
        write(block)
        close()


if __name__ == "__main__":
    main()
