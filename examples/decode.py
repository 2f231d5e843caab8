# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers a question twice, one token per pass and with an entropy threshold, and compares the costs.

    python examples/decode.py
    python examples/decode.py --model Dream-org/Dream-v0-Instruct-7B
    python examples/decode.py --adapter runs/llada-8b-dparallel   # the student that examples/distill.py trained
    python examples/decode.py --model demo --adapter demo-student --max_new_tokens 64 \
        --prompt "Mia has 14 pens. Then Mia finds 6 more. Later Mia sells 5 pens. How many pens are left?"

`demo` is a tiny model that comes with the package, and `demo-student` an adapter of it.

The adapter makes the difference: without it, the model is certain of few tokens at a time.
"""

import argparse

from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_dparallel.demo import path_of


QUESTION = "Natalia sold 48 clips in April, and half as many in May. How many clips did she sell altogether?"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="GSAI-ML/LLaDA-8B-Instruct", help="on the Hub, a folder, or demo")
    parser.add_argument("--adapter", help="on the Hub, a folder, or demo-student")
    parser.add_argument("--prompt", default=QUESTION)
    parser.add_argument("--max_new_tokens", type=int, default=256, help="the most tokens of an answer")
    parser.add_argument("--entropy_threshold", type=float, default=0.5, help="in nats; the paper has 0.45 or 0.5")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    name = path_of(args.model)
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    model = AutoModelForMaskedLM.from_pretrained(name, dtype="auto", device_map="auto")
    if args.adapter:
        model.load_adapter(path_of(args.adapter))
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": args.prompt}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    ).to(model.device)
    for rule in ({"denoising_steps": args.max_new_tokens}, {"entropy_threshold": args.entropy_threshold}):
        out = model.generate(
            **inputs, max_new_tokens=args.max_new_tokens, block_length=32, return_dict_in_generate=True, **rule
        )
        print(tokenizer.decode(out.sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
        print(f"{rule}: {out.nfe[0]} forward passes, {out.tokens_per_forward[0]:.2f} tokens per forward pass\n")


if __name__ == "__main__":
    main()
