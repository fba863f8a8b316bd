"""Renders templates with jinja2, set up as Hugging Face transformers sets it up for chat templates.

usage: jinja_oracle.py cases.json out.json [folder of chat templates]
cases.json: {"messages", "variables", "cases": [{"template", ...}]}. out.json: a list of {"template", "messages",
"variables", and "text" or "error"}: the cases, random expressions, and random conversations on each template of the
folder. Random choices come from fixed seeds.
"""
import copy
import functools
import json
import os
import random
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        names = dict(*args, **kwargs)
        if any(str(name).startswith("_") for name in names):
            raise jinja2.exceptions.SecurityError("underscore")
        jinja2.utils.Namespace.__init__(self, names)

    def __setitem__(self, name, value):
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError("underscore")
        jinja2.utils.Namespace.__setitem__(self, name, value)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["namespace"] = Namespace
    return env


ATOMS = ["1", "2", "0", "-3", "1.5", "2.0", "true", "false", "none", "missing", "'a'", "'abc'", "''", "' x y '",
         "[1, 2]", "[]", "(1, 2)", "{'a': 1}", "{}", "user", "user.name", "user.tags", "text", "messages", "range(3)",
         "name", "'A,b'", "floats", "nested"]
NAMES = ["user", "user.tags", "text", "messages", "name", "floats", "nested"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = ["lower", "trim", "length", "string", "list", "first", "last", "join", "tojson", "default(9)", "abs", "round",
           "reverse | list", "unique | list", "sum", "map('string') | list", "select | list", "e", "replace('a', 'b')",
           "batch(2) | list", "indent(2)", "upper", "int", "float", "sort", "min", "max", "items | list"]
TESTS = ["defined", "none", "string", "mapping", "number", "integer", "float", "sequence", "iterable", "true", "odd",
         "even", "eq 1", "in [1]", "boolean", "callable", "divisibleby 2"]
INDICES = ["0", "-1", "1:", "::-1", "'a'", ":2", "::2"]


def expression(rng, depth):
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        return rng.choice(ATOMS)
    sub = lambda: expression(rng, depth - 1)
    if kind < 0.5:
        return f"{sub()} {rng.choice(OPERATORS)} {sub()}"
    if kind < 0.65:
        return f"({sub()})"
    if kind < 0.8:
        return f"{rng.choice(ATOMS)} | {rng.choice(FILTERS)}"
    if kind < 0.86:
        return f"{rng.choice(ATOMS)} is {rng.choice(TESTS)}"
    if kind < 0.92:
        return f"{sub()} if {sub()} else {sub()}"
    if kind < 0.96:
        return f"{rng.choice(NAMES)}[{rng.choice(INDICES)}]"
    return f"not {sub()}"


WORDS = ["hello", "a<b>&'c'", "\n", "\n\n", " ", "<|im_end|>", "<|im_start|>assistant\n", "<think>", "</think>", "é😀",
         "\t", "\r\n", "<tool_response>", "</tool_response>", "{{ x }}", "{% if %}", "1.50", "\u3000", "\u200d", '"q"']


def text(rng, most=6):
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(most)))


def arguments(rng, depth=2):
    kinds = [lambda: rng.randrange(-5, 10**6), lambda: rng.choice([0.5, 1.0, 1e-7, 1e20]), lambda: text(rng), lambda: None,
             lambda: rng.random() < 0.5]
    if depth:
        kinds += [lambda: [arguments(rng, depth - 1) for _ in range(rng.randrange(3))],
                  lambda: {text(rng, 3) + str(i): arguments(rng, depth - 1) for i in range(rng.randrange(3))}]
    return rng.choice(kinds)()


def conversation(rng):
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": text(rng)})
    for _ in range(rng.randrange(1, 5)):
        messages.append({"role": "user", "content": "ask " + text(rng)})
        for _ in range(rng.randrange(3)):
            message = {"role": "assistant", "content": text(rng)}
            if rng.random() < 0.4:
                message["reasoning_content"] = text(rng)
            messages.append(message)
            if rng.random() < 0.3:
                message["tool_calls"] = [
                    {"type": "function", "function": {"name": "f" + str(i), "arguments": {
                        "k" + str(n): arguments(rng) for n in range(rng.randrange(3))}}}
                    for i in range(rng.randrange(1, 3))]
                for _ in message["tool_calls"]:
                    messages.append({"role": "tool", "content": text(rng)})
    return messages


def options(rng):
    variables = {"tools": None, "add_generation_prompt": rng.random() < 0.3}
    for name in ("enable_thinking", "preserve_thinking"):
        if rng.random() < 0.3:
            variables[name] = rng.random() < 0.5
    if rng.random() < 0.2:
        variables["reasoning_effort"] = rng.choice(["low", "medium", "xhigh"])
    if rng.random() < 0.3:
        variables["tools"] = [{"type": "function", "function": {"name": "f0", "description": text(rng),
                                                                "parameters": {"x": arguments(rng)}}}]
    return variables


def main():
    root = json.load(open(sys.argv[1], encoding="utf-8"))
    jobs = [(c["template"], root["messages"], root["variables"]) for c in root["cases"]]
    rng = random.Random(1)
    for _ in range(2000):
        source = "{{ %s }}|{{ %s }}" % (expression(rng, 2), expression(rng, 1))
        jobs.append((source, root["messages"], root["variables"]))
    if len(sys.argv) > 3:
        for name in sorted(os.listdir(sys.argv[3])):
            if name.endswith(".jinja"):
                source = open(os.path.join(sys.argv[3], name), encoding="utf-8").read()
                rng = random.Random(2)
                jobs += [(source, conversation(rng), options(rng)) for _ in range(80)]
    env = environment()
    compiled = functools.lru_cache(None)(env.from_string)
    results = []
    for source, messages, variables in jobs:
        result = {"template": source, "messages": messages, "variables": variables}
        try:
            result["text"] = compiled(source).render(
                messages=copy.deepcopy(messages), **copy.deepcopy(variables))  # the indent filter can append to a list
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        results.append(result)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        json.dump(results, out, ensure_ascii=False)


if __name__ == "__main__":
    main()
