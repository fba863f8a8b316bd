#!/usr/bin/env python3
"""Writes token ids from the PyPI package `tokenizers` for tokenizer_hf_test.cpp to compare with.

Usage: hf_tokenizer_check.py OUTPUT_FOLDER COUNT BLOCK_COUNT [FOLDER_OF_A_REAL_TOKENIZER [FOLDER_OF_CHATS]]
Makes one folder per tokenizer with tokenizer.json and cases.jsonl, whose lines are {"text": ..., "ids": [...]}: COUNT
random texts each; BLOCK_COUNT texts over all Unicode blocks for those with a pattern of Qwen; and for the real
tokenizer, with its own pattern and with that of Qwen3.5, all files of chats, whole and message by message.
Exit code 77: the package is not installed.
"""
import json
import os
import random
import sys

try:
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
except ImportError:
    print("the Python package tokenizers is not installed")
    sys.exit(77)

QWEN3_5 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
WORDS = ("the a model learns tokens it's I'LL WE'VE don'T they're naive cafe 3.14 2024 x=1; foo_bar(baz) http://a.b/c?d=e "
         "Hello, world! <|im_start|> <|im_end|> <think> </think> <tool_call> <|im_ end|> <|IM_END|> <|endoftext|> "
         "\u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4 "
         "\u0928\u092e\u0938\u094d\u0924\u0947 \u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627 "
         "\u041f\u0440\u0438\u0432\u0435\u0442 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 "
         "'\u017f \u212a \u0130'S <n\u00e9> <ne\u0301> <raw>").split()
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\r", "\u00a0", "\u3000", "\u2028", "\x85", "\u180e",
          "\u200b", "\x0b", "\x0c", "\ufeff", "          ", ""]
# Code points on which Unicode versions differ, combining marks, Hangul parts, emoji parts, exclusions.
RANGES = [(0x00, 0x7F), (0x80, 0x24F), (0x250, 0x36F), (0x370, 0x5FF), (0x600, 0x8FF), (0x900, 0xDFF), (0xE00, 0x10FF),
          (0x1100, 0x11FF), (0x1680, 0x1AFF), (0x1AB0, 0x1AFF), (0x1C80, 0x1C8F), (0x1DC0, 0x1EFF), (0x2000, 0x20FF),
          (0x2100, 0x2BFF), (0x2CEF, 0x2E5F), (0x3000, 0x30FF), (0x3400, 0x9FFF), (0xA640, 0xA7FF), (0xA800, 0xABFF),
          (0xAC00, 0xD7FF), (0xE000, 0xF8FF), (0xF900, 0xFAFF), (0xFB00, 0xFFFF), (0x10000, 0x103FF), (0x10500, 0x105FF),
          (0x10780, 0x107BF), (0x10A00, 0x10FFF), (0x11000, 0x11FFF), (0x12000, 0x143FF), (0x14400, 0x16FFF),
          (0x16100, 0x1613F), (0x16D40, 0x16D7F), (0x17000, 0x18DFF), (0x1AFF0, 0x1B2FF), (0x1BC00, 0x1CFFF),
          (0x1D000, 0x1D7FF), (0x1DF00, 0x1E4FF), (0x1E5D0, 0x1E5FF), (0x1E800, 0x1EFFF), (0x1F000, 0x1FBFF),
          (0x20000, 0x33FFF), (0xE0000, 0xE01FF), (0xF0000, 0x10FFFF)]
# Assigned by Unicode 15.0, 15.1, 16.0 and 17.0 (DerivedAge.txt), which libraries of older versions do not know.
NEWER = [(0xCF3, 0xCF3), (0xECE, 0xECE), (0x10EFD, 0x10EFF), (0x1123F, 0x11241), (0x11B00, 0x11B09), (0x11F00, 0x11F59),
         (0x1342F, 0x1342F), (0x13439, 0x13455), (0x1B132, 0x1B132), (0x1B155, 0x1B155), (0x1D2C0, 0x1D2D3), (0x1DF25, 0x1DF2A),
         (0x1E030, 0x1E08F), (0x1E4D0, 0x1E4F9), (0x1F774, 0x1F77F), (0x1FA75, 0x1FAF8), (0x31350, 0x323AF), (0x2FFC, 0x2FFF),
         (0x31EF, 0x31EF), (0x2EBF0, 0x2EE5D), (0x897, 0x897), (0x1C89, 0x1C8A), (0xA7CB, 0xA7DC), (0x105C0, 0x105F3),
         (0x10D40, 0x10D8F), (0x10EC2, 0x10EFC), (0x11380, 0x113E2), (0x11BC0, 0x11BF9), (0x11F5A, 0x11F5A),
         (0x13460, 0x143FA), (0x16100, 0x16139), (0x16D40, 0x16D79), (0x18CFF, 0x18CFF), (0x1CC00, 0x1CEBF),
         (0x1E5D0, 0x1E5FF), (0x1F8B2, 0x1F8D8), (0x1FBCB, 0x1FBFA), (0x88F, 0x88F), (0xC5C, 0xC5C), (0xCDC, 0xCDC),
         (0x1ACF, 0x1AEB), (0x20C1, 0x20C1), (0xA7CE, 0xA7F1), (0xFBC3, 0xFBD2), (0xFD90, 0xFD91), (0xFDC8, 0xFDCE),
         (0x10940, 0x10959), (0x10ED0, 0x10EFB), (0x11B60, 0x11B67), (0x11DB0, 0x11DE9), (0x16EA0, 0x16ED3), (0x16FF2, 0x16FF6),
         (0x187F8, 0x187FF), (0x18D09, 0x18DF2), (0x1CCFA, 0x1CCFC), (0x1E6C0, 0x1E6FF), (0x1F6D8, 0x1F6DC),
         (0x2B73A, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x323B0, 0x33479)]
MARKS = ["\u0301", "\u0308", "\u0323", "\u0327", "\u0334", "\u0345", "\u094d", "\u3099", "\u0338", "\u20d0", "\u200d",
         "\ufe0f", "\u1161", "\u11a8", "\u09be", "\u09d7", "\U000110ba", "\u1df6", "\U0001e4ec"]


def code_point(rng):
    while True:
        c = rng.randint(*rng.choice(RANGES))
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_text(rng):
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(WORDS))
        elif kind < 0.6:
            parts.append(rng.choice(SPACES))
        elif kind < 0.8:
            parts.append("".join(code_point(rng) for _ in range(rng.randint(1, 4))))
        elif kind < 0.95:
            parts.append((code_point(rng) if rng.random() < 0.5 else rng.choice("aeoAEO 1'"))
                         + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 3))))
        else:
            parts.append(rng.choice(["ab", " ", "1", "!", "\n", "\u4e2d", "\u0301"]) * rng.randint(10, 200))
    return "".join(parts)


def every_code_point():
    """Each code point between letters and digits, so that its class decides the cut."""
    points = [c for low, high in RANGES if low < 0xE000 or low > 0xF8FF for c in range(low, min(high, 0x20000) + 1)]
    points = [c for c in sorted(set(points)) if not 0xD800 <= c < 0xE000]
    for start in range(0, len(points), 64):
        block = points[start:start + 64]
        yield "".join("a%s %s1" % (chr(c), chr(c)) for c in block)
        yield "".join("e\u0345%s\u0301" % chr(c) for c in block)
        yield "".join("x'%s 'r%s '%sl" % (chr(c), chr(c), chr(c)) for c in block)


def block_text(rng, start):
    """Characters of the 128 code points from `start`, of newer Unicode versions, and what the classes cut at."""
    parts = []
    for _ in range(rng.randint(2, 10)):
        kind = rng.random()
        if kind < 0.5:
            c = start + rng.randrange(128)
        elif kind < 0.75:
            c = rng.randint(*rng.choice(NEWER))
        else:
            parts.append(rng.choice(["a", "Z", "1", " ", "  ", "\n", "\r\n", "'", "'s", "!", "_", "\t", "\u00e9", "\u4e2d"] + MARKS))
            continue
        parts.append("?" if 0xD800 <= c < 0xE000 else chr(c))
    return "".join(parts)


def block_texts(count):
    """Every block of 128 code points of the planes with characters, as often as `count` allows."""
    rng = random.Random(7)
    starts = [c for c in range(0, 0x34000, 128) if not 0xD800 <= c < 0xE000] + \
        [c for plane in (0xE0000, 0xF0000, 0x100000) for c in (plane, plane + 0x100, plane + 0xFF80)]
    return [block_text(rng, starts[i % len(starts)]) for i in range(count)]


def chat_texts(folder):
    """Each file as one text, and all strings in it."""
    def strings(value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, dict)):
            for item in value.values() if isinstance(value, dict) else value:
                yield from strings(item)
    out = []
    for name in sorted(os.listdir(folder)) if folder else []:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            out.append(file.read())
        if name.endswith(".jsonl"):
            for line in out[-1].split("\n"):
                out += strings(json.loads(line)) if line else []
    return out


def texts(count, seed, whole_tables):
    rng = random.Random(seed)
    out = ["", " ", "\0", "a\0b", " " * 10000, " " * 9999 + "x", "\n" * 5000 + " x", "x" * 20000, "ab" * 40000]
    out += list(every_code_point()) if whole_tables else []
    out += [random_text(rng) for _ in range(count)]
    return out


def byte_level(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=options.get("prefix", False), use_regex=options.get("regex", False))


def trained(pre_tokenizer, normalizer, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(1)
    corpus = [random_text(rng) for _ in range(400)]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False),
                          AddedToken("<|im_", normalized=False), AddedToken("<n\u00e9>", normalized=True),
                          AddedToken("<raw>", normalized=True)])
    return tokenizer


def small_tokenizers():
    split = lambda pattern, how="isolated", invert=False: pre_tokenizers.Split(Regex(pattern), how, invert)
    sequence = lambda *steps: pre_tokenizers.Sequence(list(steps))
    nfc = normalizers.NFC()
    yield "qwen3_5_small", trained(sequence(split(QWEN3_5), byte_level()), nfc)
    yield "llama3_ignore_merges", trained(sequence(split(LLAMA3), byte_level()), None, ignore_merges=True)
    yield "gpt2", trained(byte_level(regex=True), None)
    yield "gpt2_prefix_space", trained(byte_level(regex=True, prefix=True), nfc)
    yield "removed_inverted", trained(sequence(split(QWEN3_5, "removed", True), byte_level()), nfc)
    yield "digits_then_words", trained(sequence(split(r"\p{N}{1,3}"), split(r"[\u4e00-\u9fa5\u3040-\u30ff]+"),
                                                pre_tokenizers.Split(" ", "isolated"), split(r"(?=\p{M})|\p{L}?+\s"),
                                                byte_level(prefix=True)), nfc)


def real_tokenizers(folder):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        content = json.load(file)
    yield "real", Tokenizer.from_str(json.dumps(content))
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN3_5
    yield "real_qwen3_5_pattern", Tokenizer.from_str(json.dumps(content))


def main():
    out, count, block_count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    folder = sys.argv[4] if len(sys.argv) > 4 else ""
    chats = chat_texts(sys.argv[5] if len(sys.argv) > 5 else "")
    makers = list(small_tokenizers()) + (list(real_tokenizers(folder)) if folder else [])
    for seed, (name, tokenizer) in enumerate(makers):
        os.makedirs(os.path.join(out, name), exist_ok=True)
        tokenizer.save(os.path.join(out, name, "tokenizer.json"))
        real = name.startswith("real")
        strings = texts(count, seed, name in ("qwen3_5_small", "real_qwen3_5_pattern"))
        strings += block_texts(block_count) if real or name == "qwen3_5_small" else []
        strings += chats if real else []
        with open(os.path.join(out, name, "cases.jsonl"), "w", encoding="ascii") as file:
            for text, encoding in zip(strings, tokenizer.encode_batch(strings, add_special_tokens=False)):
                # Lossy like Rust's from_utf8_lossy, special tokens kept.
                decoded = tokenizer.decode(encoding.ids, skip_special_tokens=False)
                file.write(json.dumps({"text": text, "ids": encoding.ids, "decoded": decoded}) + "\n")
    print("tokenizers", tokenizers.__version__, "with", len(chats), "texts of chat files")


if __name__ == "__main__":
    main()
