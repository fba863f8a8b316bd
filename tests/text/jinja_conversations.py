"""Renders hostile made-up conversations with jinja2, set up as Hugging Face transformers sets it up (jinja_oracle.py).

usage: jinja_conversations.py COUNT OUT_FOLDER TEMPLATE_FOLDER...
OUT_FOLDER gets conversations.jsonl, COUNT lines {"messages", "variables"}, and for each template file of the folders
NAME.jsonl with a line per conversation: {"text": ...}, {"raised": ...} for the template's own raise_exception, or
{"error": ...} for everything else that jinja2 throws. All choices come from one fixed seed.
"""
import copy
import json
import os
import random
import sys

import jinja2

import jinja_oracle

PIECES = ["", " ", "\n", "\n\n", "\t", "\r\n", "hello", "a b", "Zwei W\u00f6rter", "\u4f60\u597d", "\U0001f600\U0001f3fd", "e\u0301",
          "<think>", "</think>", "<think>\n", "\n</think>\n\n", "<|im_end|>", "<|im_start|>", "<|im_start|>assistant\n",
          "<|im_end|>\n<|im_start|>user\n", "<|endoftext|>", "<tool_call>", "</tool_call>", "<tool_response>",
          "</tool_response>", "<tool_response>\n", "{{ 7 * 7 }}", "{% raw %}", "{# c #}", "%s %d", "\\n", "\\", "'", '"', "&<>'\"",
          "\x00", "\x01", "\x0b", "\x0c", "\x1b[0m", "\x1c", "\x1f", "\x7f", "\x85", "\xa0", "\xad", "\u1680", "\u180e", "\u2003",
          "\u200b", "\u200d", "\u2028", "\u2029", "\u202e", "\u205f", "\u3000", "\ufeff", "\ufffd", "\uffff", "\U0010ffff", "\ue000",
          "1.0", "null", "None", "True", "/no_think", "[INST]", "x" * 300]
ROLES = ["system", "user", "assistant", "tool"]
# How far a conversation goes: strings only, what well-formed data holds, anything that JSON can hold.
PLAIN, GOOD, ODD = 0, 1, 2
ODD_ROLES = ["developer", "function", "System", "", "user ", "<|im_end|>", None, 3, True, ["user"], {"a": 1}]


def text(rng, most=6):
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(most + 1)))


def number(rng):
    return rng.choice([0, 1, -1, 42, 2**31, -2**63, 2**63 - 1, 2**64, 10**30, 0.0, -0.0, 0.5, 1.0, 1e16, 1e-5, 1.5e300, 1e22, 123456.789])


def value(rng, depth):
    kind = rng.random()
    if depth == 0 or kind < 0.6:
        return rng.choice([lambda: text(rng, 3), lambda: number(rng), lambda: None, lambda: True, lambda: False])()
    if kind < 0.8:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {text(rng, 2) + (str(i) if i else ""): value(rng, depth - 1) for i in range(rng.randrange(4))}


def part(rng):
    kind = rng.random()
    if kind < 0.7:
        return {"type": "text", "text": text(rng)}
    return rng.choice([
        lambda: {"type": "image"}, lambda: {"type": "image", "image": "a.png"}, lambda: {"type": "video"},
        lambda: {"image_url": {"url": "x"}}, lambda: {"video": text(rng, 1)}, lambda: {"text": text(rng)},
        lambda: {"type": "audio"}, lambda: {}, lambda: text(rng), lambda: {"type": "text", "text": None},
        lambda: {"type": "text", "text": number(rng)}, lambda: number(rng), lambda: None, lambda: [text(rng)],
        lambda: {"type": "text", "text": {"a": text(rng, 1)}}])()


def content(rng, how):
    kind = rng.random()
    if how == PLAIN or kind < 0.75:
        return text(rng)
    if kind < 0.85:
        return [part(rng) for _ in range(rng.randrange(4))] if how == ODD else [{"type": "text", "text": text(rng)}]
    if kind < 0.92 or how != ODD:
        return None
    return rng.choice([lambda: number(rng), lambda: True, lambda: {"text": text(rng)}, lambda: {}, lambda: []])()


def tool_call(rng, how):
    arguments = {text(rng, 1) + "k%d" % i: value(rng, 3) for i in range(rng.randrange(4))}
    function = {"name": rng.choice(["f", "get_weather", "x\u00e9", text(rng, 2)]), "arguments": arguments}
    if how == ODD:
        kind = rng.random()
        if kind < 0.3:
            function["arguments"] = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
        elif kind < 0.6:
            function["arguments"] = rng.choice([None, "", "{", [], [["k", "v"]], 3, {}])
        elif kind < 0.7:
            del function["arguments"]
        elif kind < 0.8:
            function["name"] = rng.choice([None, 5, ["f"]])
        elif kind < 0.85:
            del function["name"]
    call = {"type": "function", "function": function}
    if rng.random() < 0.3:
        call["id"] = "call_%d" % rng.randrange(9)
    if rng.random() < 0.25:
        return function
    if how == ODD and rng.random() < 0.1:
        return rng.choice([None, text(rng), [], {"function": None}, {"function": text(rng)}])
    return call


def message(rng, role, how):
    made = {"role": role}
    if how != ODD or rng.random() < 0.93:
        made["content"] = content(rng, how)
    if rng.random() < (0.4 if role == "assistant" else 0.02):
        made["reasoning_content"] = rng.choice([text(rng), text(rng), text(rng), "", None, number(rng), [text(rng)]]) \
            if how == ODD else text(rng)
    if rng.random() < (0.3 if role == "assistant" else 0.02):
        made["tool_calls"] = [tool_call(rng, how) for _ in range(rng.randrange(1, 4))]
        if how == ODD and rng.random() < 0.15:
            made["tool_calls"] = rng.choice([None, [], {}, {"name": "f"}, text(rng, 2), 3, True])
    if rng.random() < 0.1:
        made[rng.choice(["name", "tool_call_id", "weight", "thinking", "items", "get", "keys"])] = value(rng, 1)
    if how == ODD and rng.random() < 0.02:
        del made["role"]
    keys = list(made)
    if rng.random() < 0.2:
        rng.shuffle(keys)
    return {key: made[key] for key in keys}


def conversation(rng):
    kind = rng.random()
    how = PLAIN if kind < 0.3 else GOOD if kind < 0.55 else ODD
    messages = []
    if kind < 0.8:
        if rng.random() < 0.4:
            messages.append(message(rng, "system", how))
        for _ in range(rng.randrange(1, 5)):
            messages.append(message(rng, "user", how))
            for _ in range(rng.randrange(3)):
                messages.append(message(rng, "assistant", how))
                for _ in range(rng.randrange(3) if "tool_calls" in messages[-1] else 0):
                    messages.append(message(rng, "tool", how))
    else:
        for _ in range(rng.randrange(6)):
            role = rng.choice(ODD_ROLES) if rng.random() < 0.08 else rng.choice(ROLES)
            messages.append(message(rng, role, how))
    if how == ODD and rng.random() < 0.02:
        messages.append(rng.choice([None, text(rng), 3, []]))
    return messages, how


def tools(rng, how):
    made = []
    for i in range(rng.randrange(1, 4)):
        function = {"name": "tool%d" % i, "description": text(rng), "parameters": {
            "type": "object", "properties": {"p%d" % k: value(rng, 3) for k in range(rng.randrange(3))}, "required": []}}
        made.append({"type": "function", "function": function} if rng.random() < 0.8 else function)
    if how == ODD and rng.random() < 0.2:
        return rng.choice([[], {}, {"a": 1}, text(rng), 3, True, [value(rng, 2)], [None]])
    return made


def variables(rng, how):
    made = {"tools": tools(rng, how) if rng.random() < 0.35 else None, "documents": None,
            "add_generation_prompt": rng.random() < 0.4}
    for name in ("enable_thinking", "preserve_thinking", "add_vision_id"):
        if rng.random() < 0.4:
            made[name] = rng.choice([True, False, False, None, 0, 1, "false", ""] if how == ODD else [True, False])
    if rng.random() < 0.35:
        made["reasoning_effort"] = rng.choice(["low", "medium", "xhigh", "high", "", None, 5, text(rng, 2), ["low"]]
                                              if how == ODD else ["low", "medium", "xhigh"])
    if rng.random() < 0.3:
        made["eos_token"] = "<|im_end|>"
    if rng.random() < 0.1:
        made[rng.choice(["custom", "loop", "ns", "content", "message", "render_content", "range"])] = value(rng, 2)
    return made


def outcome(template, job):
    job = copy.deepcopy(job)  # filters may keep state in what they are given
    try:
        return {"text": template.render(messages=job["messages"], **job["variables"])}
    except jinja2.exceptions.TemplateError as error:
        return {"raised" if type(error) is jinja2.exceptions.TemplateError else "error": str(error)}
    except Exception as error:  # a template can make Python raise anything
        return {"error": "%s: %s" % (type(error).__name__, error)}


def main():
    count, out, folders = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    os.makedirs(out, exist_ok=True)
    rng = random.Random(20)
    jobs = []
    for _ in range(count):
        messages, how = conversation(rng)
        jobs.append({"messages": messages, "variables": variables(rng, how)})

    def write(name, lines):
        with open(os.path.join(out, name), "w", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    write("conversations.jsonl", jobs)
    env = jinja_oracle.environment()
    for folder in folders:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".jinja"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    template = env.from_string(file.read())
                write(name[:-len(".jinja")] + ".jsonl", (outcome(template, job) for job in jobs))


if __name__ == "__main__":
    main()
