#!/usr/bin/env python3
"""Checks that documents name only what exists; exit code 1 if one does not.

Usage: check_docs.py BINARY
In README.md, ARCHITECTURE.md, CONTRIBUTING.md, docs/ and examples/:
- each `deltatune VERB --flag` in code names a verb and a flag that the verb reads;
- each `./dev VERB` names a verb of ./dev;
- the keys of YAML blocks are keys of the options table, or nested below one;
- links to files, and paths in backquotes that start with a folder of the repository, exist.
README.md's conversation has the questions that `./dev demo` asks.
docs/reference/options.md is what `deltatune help --markdown` prints.
It does not run the commands: the demo and the tests do that.
"""
import json
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
FOLDERS = ("src/", "tests/", "tools/", "docs/", "examples/", "cmake/", "apps/", ".ci/")
COMMON = {"help", "version"}


def run(binary, *words):
    done = subprocess.run([binary, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout


class Program:
    def __init__(self, binary):
        self.binary = binary
        self.verbs = {v.strip() for v in re.findall(r"^  deltatune ((?:(?:data|bench) )?[a-z]+)", run(binary)[1], re.M)}
        alias = re.findall(r"\(alias: (\w+)\)", run(binary)[1])
        self.verbs |= set(alias)
        self.flags = {}
        self.markdown = run(binary, "help", "--markdown")[1]
        rows = re.findall(r"^\| `(?:--)?([\w-]+)` \|.*", self.markdown, re.M)
        also = re.findall(r"also ((?:`\w+`(?:, )?)+)", self.markdown)
        self.keys = {row.replace("-", "_") for row in rows}
        self.keys |= {word for group in also for word in re.findall(r"\w+", group)}

    def flags_of(self, verb):
        if verb not in self.flags:
            code, text = run(self.binary, *verb.split(), "--help")
            words = set(re.findall(r"--([a-z][a-z0-9-]*)", text)) if code == 0 else set()
            words |= {w.replace("_", "-") for w in re.findall(r"\b([a-z]+(?:_[a-z0-9]+)+)\b", text)}
            self.flags[verb] = words | COMMON
        return self.flags[verb]


def documents():
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        if os.path.exists(os.path.join(ROOT, name)):
            yield name
    for top in ("bench", "docs", "examples"):
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in sorted(names):
                if name.endswith(".md"):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


def check_command(program, command):
    """`command` starts after the word deltatune; what is wrong with it, or nothing."""
    command = re.sub(r"^[\d.]+: ", "", command)  # a recorded first line: "deltatune 0.1.0: train ..."
    words = command.split("#")[0].split("|")[0].split(">")[0].split()
    if not words or words[0].startswith("-"):
        return None
    verb = " ".join(words[:2]) if words[0] in ("data", "bench") else words[0]
    if verb not in program.verbs:
        return f"no verb `{verb}`"
    if verb == "help":
        return None
    for word in words[1:]:
        flag = re.match(r"--([a-z][\w-]*)", word)
        if flag:
            name = flag[1].replace("_", "-")
            if name not in program.flags_of(verb) and name.removeprefix("no-") not in program.flags_of(verb):
                return f"`deltatune {verb}` has no flag --{name}"
    return None


def check_document(program, dev_verbs, path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    problems = []
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
    outside = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", outside)
    lines = [line.strip().removeprefix("$ ") for _, body in blocks for line in body.splitlines()] + inline
    for line in lines:
        for command in re.findall(r"^(?:build/\w+/|\./)?deltatune (.+)", line):
            wrong = check_command(program, command)
            if wrong:
                problems.append(f"{path}: {wrong}")
        for verb in re.findall(r"^\./dev ([a-z]+)", line):
            if verb not in dev_verbs:
                problems.append(f"{path}: no verb `./dev {verb}`")
    for kind, body in blocks:
        if kind == "yaml":
            for key in re.findall(r"^(\w+):", body, re.M):
                if key not in program.keys:
                    problems.append(f"{path}: no key `{key}`")
    here = os.path.dirname(path)
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", outside):
        if "://" not in link and not os.path.exists(os.path.join(ROOT, here, link)):
            problems.append(f"{path}: link to {link}, which does not exist")
    for word in inline:
        if word.startswith(FOLDERS) and re.fullmatch(r"[\w./-]+", word):
            if not os.path.exists(os.path.join(ROOT, word)):
                problems.append(f"{path}: names {word}, which does not exist")
    return problems


def check_demo_questions(dev):
    """The questions of README.md are those that ./dev takes out of the demo's held-out file."""
    asked = re.search(r"questions\[@\]:(\d+):(\d+)", dev)
    if not asked:
        return ["dev: no questions of the demo are found; mend tools/check_docs.py"]
    with open(os.path.join(ROOT, "examples/demo/eval.jsonl"), encoding="utf-8") as file:
        turns = [turn for line in file for turn in json.loads(line)["messages"]]
    questions = [turn["content"] for turn in turns if turn["role"] == "user"]
    first, count = int(asked[1]), int(asked[2])
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        shown = re.findall(r"^you:  (.*)$", file.read(), re.M)
    if shown == questions[first : first + count]:
        return []
    return ["README.md: the demo's questions are not those that ./dev demo asks: " + " ".join(questions[first : first + count])]


def main():
    program = Program(os.path.abspath(sys.argv[1]))
    problems = []
    with open(os.path.join(ROOT, "dev"), encoding="utf-8") as file:
        dev = file.read()
    dev_verbs = set(re.findall(r"^verb_(\w+)\(\)", dev, re.M))
    problems += check_demo_questions(dev)
    count = 0
    for path in documents():
        problems += check_document(program, dev_verbs, path)
        count += 1
    with open(os.path.join(ROOT, "docs/reference/options.md"), encoding="utf-8") as file:
        if file.read() != program.markdown:
            problems.append("docs/reference/options.md is not what the program prints; run ./dev docs")
    for problem in problems:
        print(problem)
    print(f"check_docs: {count} documents, {len(problems)} problems")
    sys.exit(1 if problems or len(program.verbs) < 5 or len(program.keys) < 20 else 0)


if __name__ == "__main__":
    main()
