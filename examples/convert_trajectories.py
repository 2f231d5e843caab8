# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Writes the published distillation data of dParallel in the columns that `hf-dparallel train` takes.

    python examples/convert_trajectories.py --dataset Zigeng/dParallel_LLaDA_Distill_Data --output llada.parquet
    python examples/convert_trajectories.py --dataset Zigeng/dParallel_Dream_Distill_Data --output dream.parquet \
        --tokenizer Dream-org/Dream-v0-Instruct-7B

The data have the columns `question` and `llm_response`. As in the authors' scripts, an end-of-text token is put behind
each answer. In the data for LLaDA a question already is a prompt with its chat template; in those for Dream it is not,
and the template of the tokenizer is put around it. Rows are not shortened: the training leaves out the long ones.
"""

import argparse
from typing import Any

from datasets import Dataset, load_dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import hf_dparallel  # noqa: F401 (registers the tokenizer of Dream)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="on the Hub, or a folder")
    parser.add_argument("--split", default="train")
    parser.add_argument("--tokenizer", default="GSAI-ML/LLaDA-8B-Instruct", help="of the model to train")
    parser.add_argument("--output", required=True, help="a .parquet file")
    return parser.parse_args()


def convert_row(row: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    prompt = row["question"]
    # Only a template writes tokens such as <|start_header_id|>.
    if not any(token in prompt for token in tokenizer.get_added_vocab()):
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    completion_ids = tokenizer(row["llm_response"], add_special_tokens=False)["input_ids"]
    return {
        "prompt_ids": tokenizer(prompt, add_special_tokens=False)["input_ids"],
        "completion_ids": [*completion_ids, tokenizer.eos_token_id],
    }


def convert(dataset: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    # An answer of nothing but white space is no answer.
    answered = dataset.filter(lambda row: bool(row["llm_response"] and row["llm_response"].strip()))
    return answered.map(convert_row, fn_kwargs={"tokenizer": tokenizer})


def main() -> None:
    args = parse_args()
    dataset = load_dataset(args.dataset, split=args.split)
    rows = convert(dataset, AutoTokenizer.from_pretrained(args.tokenizer))
    rows.to_parquet(args.output)
    lengths = [len(row["prompt_ids"]) + len(row["completion_ids"]) for row in rows]
    print(f"{len(rows)} of {len(dataset)} rows, of up to {max(lengths, default=0)} tokens, in {args.output}.")


if __name__ == "__main__":
    main()
