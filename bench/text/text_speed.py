#!/usr/bin/env python3
"""Tokenising beside the PyPI package `tokenizers`, pass by pass in one run, and our chats per second.

usage: text_speed.py BENCH_TEXT TOKENIZER_DIR TEMPLATE CHAT_FILE... [--threads 1,2] [--passes 7] [--json]
The texts are the rows of the chat files, rendered by TEMPLATE with jinja2. The package runs encode_batch_fast where
it has it (no offsets), else encode_batch, with as many threads as ours; texts are in memory on both sides and ids stay
where the library puts them. Each thread count is a process of its own; a pass of one is followed by a pass of the
other. Prints the medians, their ratio, and whether all ids are equal; for the wall clock and for the CPU time of all
threads, which hardly depends on who else uses the machine.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def render_all(template, files):
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = lambda message: (_ for _ in ()).throw(jinja2.TemplateError(message))
    compiled = env.from_string(open(template, encoding="utf-8").read())
    texts = []
    for name in files:
        for line in open(name, encoding="utf-8"):
            row = json.loads(line)
            for message in row["messages"]:
                for call in message.get("tool_calls") or []:
                    function = call.get("function", call)
                    if isinstance(function.get("arguments"), str):
                        function["arguments"] = json.loads(function["arguments"])
            try:
                texts.append(compiled.render(messages=row["messages"], tools=row.get("tools"), add_generation_prompt=False))
            except jinja2.TemplateError as error:
                print("left out:", error, file=sys.stderr)
    return texts


def child(options):
    """One thread count: alternating passes of the two."""
    from tokenizers import Tokenizer
    theirs = Tokenizer.from_file(os.path.join(options.tokenizer, "tokenizer.json"))
    batch = getattr(theirs, "encode_batch_fast", theirs.encode_batch)
    texts = json.load(open(options.texts, encoding="utf-8"))
    ours = subprocess.Popen([options.bench_text, "encode", options.tokenizer, options.texts, str(options.child)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(line):
        ours.stdin.write(line + "\n")
        ours.stdin.flush()
        return json.loads(ours.stdout.readline())

    theirs_all, ours_all = [], []
    for _ in range(options.passes):
        start, cpu_start = time.perf_counter(), time.process_time()
        encodings = batch(texts, add_special_tokens=False)
        theirs_all.append((time.perf_counter() - start, time.process_time() - cpu_start))
        answer = ask("pass")
        ours_all.append((answer["seconds"], answer["cpu_seconds"]))
    equal = [e.ids for e in encodings] == ask("ids")
    ours.stdin.close()
    ours.wait()
    tokens = sum(len(e.ids) for e in encodings)

    def both(which):
        theirs_s, ours_s = (statistics.median(t[which] for t in times) for times in (theirs_all, ours_all))
        return {"tokenizers_s": round(theirs_s, 5), "ours_s": round(ours_s, 5), "ratio": round(theirs_s / ours_s, 2),
                "first_pass_s": [round(theirs_all[0][which], 5), round(ours_all[0][which], 5)],
                "ours_tokens_per_s": round(tokens / ours_s)}

    print(json.dumps({
        "threads": options.child, "texts": len(texts), "bytes": sum(len(t.encode()) for t in texts), "tokens": tokens,
        "ids_equal": equal, "wall": both(0), "cpu": both(1)}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench_text")
    parser.add_argument("tokenizer")
    parser.add_argument("template")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--texts", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)
    with tempfile.TemporaryDirectory() as folder:
        texts = os.path.join(folder, "texts.json")
        json.dump(render_all(options.template, options.files), open(texts, "w", encoding="utf-8"), ensure_ascii=False)
        for threads in options.threads.split(","):
            command = [sys.executable, os.path.abspath(__file__), options.bench_text, options.tokenizer,
                       options.template, "--passes", str(options.passes), "--texts", texts, "--child", threads]
            environment = dict(os.environ, RAYON_NUM_THREADS=threads,
                               TOKENIZERS_PARALLELISM="false" if threads == "1" else "true")
            subprocess.run(command, env=environment, check=True)
            out = subprocess.run([options.bench_text, "chats", options.tokenizer, options.template, threads,
                                  str(options.passes)] + options.files, check=True, capture_output=True, text=True).stdout
            passes = [json.loads(line) for line in out.splitlines()]
            first = passes[0]
            rates = {key: statistics.median(p["tokens"] / p[name] for p in passes)
                     for key, name in (("wall", "seconds"), ("cpu", "cpu_seconds"))}
            print(json.dumps({"threads": int(threads), "render_tokenise_mask": {
                "conversations": first["conversations"], "tokens": first["tokens"], "targets": first["targets"],
                "tokens_per_s": round(rates["wall"]), "tokens_per_cpu_s": round(rates["cpu"]),
                "conversations_of_1240_tokens_per_cpu_s": round(rates["cpu"] / 1240)}}), flush=True)


if __name__ == "__main__":
    main()
