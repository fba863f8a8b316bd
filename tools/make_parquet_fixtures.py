#!/usr/bin/env python3
"""Writes tests/data/parquet: small Parquet files of every kind that is read, and their rows as JSON Lines.

Usage: make_parquet_fixtures.py [FOLDER]; needs PyPI pyarrow. Run by hand; the files are committed.
Each NAME.parquet has NAME.jsonl beside it, written from the Python rows and not from the Parquet file: the row that
the reader has to give. Members that are None are left out there, as the reader leaves them out. `chat-CODEC` share
chat.jsonl. Seeds for the fuzzer are tiny files in tests/fuzz/corpus/parquet.
"""
import datetime
import decimal
import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

CALL = pa.struct([("type", pa.string()), ("function", pa.struct([
    ("name", pa.string()),
    ("arguments", pa.struct([("city", pa.string()), ("days", pa.int64()), ("metric", pa.bool_())]))]))])
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("reasoning_content", pa.string()),
                     ("tool_calls", pa.list_(CALL))])
CHAT = pa.schema([("id", pa.int32()), ("source", pa.dictionary(pa.int16(), pa.string())),
                  ("messages", pa.list_(MESSAGE))])


def message(role, content, **more):
    return {"role": role, "content": content, "reasoning_content": None, "tool_calls": None, **more}


def call(name, city=None, days=None, metric=None):
    return {"type": "function",
            "function": {"name": name, "arguments": {"city": city, "days": days, "metric": metric}}}


def chat_rows(count):
    rows = []
    for i in range(count):
        turns = [message("user", f"Question {i}: \u00e9\u4e2d\U0001f642 \"quoted\"\n\tend" + " again" * (i % 7))]
        if i % 3 == 0:
            turns += [message("assistant", None, tool_calls=[call("forecast", city="Brest", days=i),
                                                             call("units", metric=i % 2 == 0)]),
                      message("tool", "rain")]
        turns.append(message("assistant", f"Answer {i}", reasoning_content=f"Because {i}" if i % 2 else None))
        rows.append({"id": i, "source": ["web", "book", None][i % 3], "messages": turns})
    return rows


def without_nulls(value):
    """Members that are None are left out; elements of lists stay."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value]
    return value


def write(folder, name, rows, schema, lines=None, **options):
    pq.write_table(pa.Table.from_pylist(rows, schema), os.path.join(folder, name + ".parquet"), **options)
    if lines is None:
        lines = [json.dumps(without_nulls(row), ensure_ascii=False) for row in rows]
    if lines:
        with open(os.path.join(folder, name + ".jsonl"), "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)


def types_rows():
    schema = pa.schema([
        ("i8", pa.int8()), ("u16", pa.uint16()), ("u64", pa.uint64()), ("f32", pa.float32()), ("f64", pa.float64()),
        ("yes", pa.bool_()), ("nothing", pa.null()), ("large", pa.large_string()), ("bytes", pa.binary()),
        ("fixed", pa.binary(3)), ("day", pa.date32()), ("when", pa.timestamp("ms")), ("price", pa.decimal128(9, 2)),
        ("map", pa.map_(pa.string(), pa.int32())), ("numbered", pa.map_(pa.int32(), pa.string())),
        ("grid", pa.list_(pa.list_(pa.int32()))), ("words", pa.large_list(pa.dictionary(pa.int8(), pa.string()))),
        ("pair", pa.list_(pa.float32(), 2)), ("empty", pa.struct([("never", pa.string())]))])
    full = {"i8": -8, "u16": 65535, "u64": 2**64 - 1, "f32": 0.1, "f64": 1e-7, "yes": True, "nothing": None,
            "large": "gro\u00df", "bytes": b"plain", "fixed": b"abc", "day": datetime.date(2026, 2, 28),
            "when": datetime.datetime(2026, 2, 28, 13, 5, 7, 250000), "price": decimal.Decimal("12.50"),
            "map": [("b", 2), ("a", None)], "numbered": [(7, "seven")], "grid": [[1, None], [], None],
            "words": ["x", None, "x"], "pair": [1.5, 2.0], "empty": {"never": None}}
    full_line = ('{"i8": -8, "u16": 65535, "u64": 18446744073709551615, "f32": 0.1, "f64": 1e-07, "yes": true, '
                 '"large": "gro\u00df", "bytes": "plain", "fixed": "abc", "day": "2026-02-28", '
                 '"when": "2026-02-28 13:05:07.250", "price": 12.50, "map": {"b": 2, "a": null}, '
                 '"numbered": {"7": "seven"}, "grid": [[1, null], [], null], "words": ["x", null, "x"], '
                 '"pair": [1.5, 2.0], "empty": {}}')
    bare = {name: None for name in schema.names}
    small = dict(bare, i8=127, u16=0, u64=5, f32=float("nan"), f64=3.0, yes=False, map=[], grid=[], words=[])
    small_line = ('{"i8": 127, "u16": 0, "u64": 5, "f64": 3.0, "yes": false, "map": {}, "grid": [], "words": []}')
    return schema, [full, bare, small], [full_line, "{}", small_line]


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests/data/parquet")
    os.makedirs(folder, exist_ok=True)
    rows = chat_rows(41)
    for codec in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
        write(folder, "chat-" + codec, rows, CHAT, lines=[], compression=codec, row_group_size=16,
              data_page_size=512, data_page_version="2.0" if codec in ("gzip", "zstd") else "1.0")
    with open(os.path.join(folder, "chat.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(without_nulls(row), ensure_ascii=False) + "\n" for row in rows)
    schema, typed, lines = types_rows()
    write(folder, "types", typed, schema, lines=lines)
    for version in ("1.0", "2.0"):
        write(folder, "checksum-v" + version[0], [{"text": "a needle"}], pa.schema([("text", pa.string())]), lines=[],
              compression="none", use_dictionary=False, write_statistics=False, write_page_checksum=True,
              data_page_version=version)
    write(folder, "no-rows", [], CHAT, lines=[])
    write(folder, "bad-utf8", [{"messages": [{"role": b"user", "content": b"a"}]},
                               {"messages": [{"role": b"user", "content": b"a\xff"}]}],
          pa.schema([("messages", pa.list_(pa.struct([("role", pa.binary()), ("content", pa.binary())])))]),
          lines=[])
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, os.path.join(folder, "same-name-twice.parquet"))
    twice = pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32()))
    pq.write_table(pa.Table.from_arrays([twice], names=["map"]), os.path.join(folder, "same-key-twice.parquet"))

    seeds = os.path.join(ROOT, "tests/fuzz/corpus/parquet")
    os.makedirs(seeds, exist_ok=True)
    # Others in the folder are what the fuzzer has found.
    codecs = ("none", "snappy", "gzip", "zstd", "lz4")
    made = {name + ".parquet" for name in ["chat-" + codec for codec in codecs] + ["types", "delta"]}
    for codec in codecs:
        write(seeds, "chat-" + codec, chat_rows(4), CHAT, lines=[], compression=codec, row_group_size=2,
              data_page_size=128, store_schema=codec == "none", write_statistics=codec == "snappy")
    write(seeds, "types", typed, schema, lines=[], compression="none")
    write(seeds, "delta", [{"n": i, "s": f"prefix{i}"} for i in range(20)],
          pa.schema([("n", pa.int64()), ("s", pa.string())]), lines=[], compression="none", use_dictionary=False,
          column_encoding={"n": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY"}, data_page_version="2.0")
    for name in made:  # tests/fuzz/parquet_fuzz.cpp takes the first byte as the size of blocks
        with open(os.path.join(seeds, name), "rb") as file:
            whole = file.read()
        with open(os.path.join(seeds, name), "wb") as file:
            file.write(b"\3" + whole)


if __name__ == "__main__":
    main()
