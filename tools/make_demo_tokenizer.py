#!/usr/bin/env python3
"""Makes the tokenizer of the demo model from the demo conversations. Run by hand; needs `pip install tokenizers`.

    python3 tools/make_demo_tokenizer.py [--check]

Reads   examples/demo/train.jsonl (the evaluation file is left out on purpose).
Writes  examples/demo/model/tokenizer.json and tokenizer_config.json; with --check compares and writes nothing.

The layout is that of the Qwen3.5 family: NFC, a split by pattern, GPT-2's byte alphabet (bytes are ids 0..255),
byte-level BPE, control tokens after the last learned entry. As their ids move with the conversations, the ids in
config.json and generation_config.json are compared too (exit status 1 when they are stale). Training has no random
part: the same conversations give the same bytes. It makes no model weights and no chat template.
"""

import argparse
import json
import pathlib
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

DEMO = pathlib.Path(__file__).resolve().parent.parent / "examples" / "demo"

# At most this many learned entries, bytes included; pairs seen only once are not merged, so fewer come out. With the
# control tokens the count must stay below vocab_size in config.json.
BASE_ENTRIES = 1500

# The alternatives in order: contractions; a word with at most one leading character; one digit; punctuation with
# the line breaks after it; line breaks; trailing blanks; other blanks. Marks count as letters (new in Qwen3.5).
PATTERN = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
NOT_SPECIAL = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


def training_texts(path):
    """Yields what the chat template puts between control tokens: the role line and the text of each message."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            for message in json.loads(line)["messages"]:
                yield message["role"] + "\n"
                yield message["content"].strip()


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_ENTRIES,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(DEMO / "train.jsonl"), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in NOT_SPECIAL])
    return tokenizer


def config_of(tokenizer):
    added = {
        str(tokenizer.token_to_id(t)): {
            "content": t,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": t in SPECIAL,
        }
        for t in SPECIAL + NOT_SPECIAL
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def stale_ids(tokenizer):
    """Names the keys of the model's config files that do not fit the tokenizer; they are corrected by hand."""
    ids = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    config = json.loads((DEMO / "model" / "config.json").read_text(encoding="utf-8"))
    generation = json.loads((DEMO / "model" / "generation_config.json").read_text(encoding="utf-8"))
    wrong = []
    if config["vocab_size"] < tokenizer.get_vocab_size():
        wrong.append(f"config.json vocab_size, at least {tokenizer.get_vocab_size()}")
    if [config["eos_token_id"], config["pad_token_id"]] != ids:
        wrong.append(f"config.json eos_token_id {ids[0]}, pad_token_id {ids[1]}")
    if generation["eos_token_id"] != ids or generation["pad_token_id"] != ids[1]:
        wrong.append(f"generation_config.json eos_token_id {ids}, pad_token_id {ids[1]}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files, write nothing")
    check = parser.parse_args().check
    tokenizer = make_tokenizer()
    files = {
        "tokenizer.json": tokenizer.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config_of(tokenizer), indent=2, ensure_ascii=False) + "\n",
    }
    different = []
    for name, text in files.items():
        path = DEMO / "model" / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            different.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} entries, tokenizers {tokenizers.__version__}, "
          f"{'different' if check else 'written'}: {', '.join(different) or 'none'}")
    wrong = stale_ids(tokenizer)
    for key in wrong:
        print(f"to correct by hand: {key}")
    return 1 if wrong or (check and different) else 0


if __name__ == "__main__":
    sys.exit(main())
