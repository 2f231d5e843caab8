# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Distils a masked diffusion language model on its own right answers: the whole way in one script.

    python examples/distill.py --config examples/configs/llada-8b.yaml
    python examples/distill.py --config examples/configs/dream-7b.yaml
    torchrun --nproc_per_node 8 examples/distill.py --config examples/configs/llada-8b.yaml \
        --gradient_accumulation_steps 8
    python examples/distill.py --model demo --dataset demo --max_new_tokens 64 --max_length 128 --use_peft \
        --learning_rate 1e-3 --num_train_epochs 1 --output_dir runs/demo

The last one is a try of a minute: `demo` is a tiny model that comes with the package, and 64 of its word problems.

All arguments of `CertaintyForcingConfig` (and so of `TrainingArguments`) and of TRL's `ModelConfig` are flags, which
override the file. `--model` and `--dataset` point elsewhere. Without a file: LLaDA-8B, all weights.
"""

from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import AutoModelForMaskedLM, AutoTokenizer
from trl import ModelConfig, TrlParser, get_peft_config

from hf_dparallel import (
    CertaintyForcingConfig,
    CertaintyForcingTrainer,
    DiffusionGenerationConfig,
    filter_trajectories,
    generate_trajectories,
    numeric_answer_reward,
)
from hf_dparallel.demo import path_of, word_problem_dataset


@dataclass
class ModelArguments(ModelConfig):
    model_name_or_path: str = field(
        default="GSAI-ML/LLaDA-8B-Instruct",
        metadata={"help": "On the Hub, a folder, demo.", "aliases": ["--model"]},
    )
    lora_task_type: str | None = field(default=None, metadata={"help": "PEFT has none for masked language models."})


@dataclass
class ExampleArguments:
    dataset: list[str] = field(
        default_factory=lambda: ["openai/gsm8k", "main"],
        metadata={"help": "What `load_dataset` takes: name and configuration. It has columns question and answer."},
    )
    split: str = field(default="train", metadata={"help": "Such as 'train', or 'train[:1000]' for a first try."})
    max_new_tokens: int = field(default=256, metadata={"help": "The most tokens of an answer."})
    teacher_batch_size: int = field(default=16, metadata={"help": "Questions that the teacher answers together."})
    entropy_threshold: float = field(default=0.5, metadata={"help": "For the student's decoding, in nats."})


def load_prompts(example: ExampleArguments) -> Dataset:
    """Loads questions as chats."""
    if example.dataset == ["demo"]:
        return word_problem_dataset(64, seed=0)
    questions = load_dataset(*example.dataset, split=example.split)
    return questions.map(lambda row: {"prompt": [{"role": "user", "content": row["question"]}]})


def collect_trajectories(model, tokenizer, prompts: Dataset, example: ExampleArguments, output_dir: str) -> Dataset:
    """Decodes the teacher's answers, one token per pass. A killed run goes on from the shards in the folder."""
    recipe = DiffusionGenerationConfig(max_new_tokens=example.max_new_tokens, block_length=32)
    return generate_trajectories(
        model, tokenizer, prompts, recipe, example.teacher_batch_size, output_dir=Path(output_dir, "trajectories")
    )


def main(example: ExampleArguments, args: CertaintyForcingConfig, model_args: ModelArguments) -> None:
    name = path_of(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    model = AutoModelForMaskedLM.from_pretrained(name, dtype=model_args.dtype).to(args.device)
    prompts = load_prompts(example)

    # 1. The teacher answers.
    trajectories = collect_trajectories(model, tokenizer, prompts, example, args.output_dir)
    passes_before = trajectories[0]["nfe"]

    # 2. Right answers are kept.
    trajectories = filter_trajectories(trajectories, tokenizer, numeric_answer_reward)

    # 3. The same model, with an adapter, learns to be certain of them early.
    trainer = CertaintyForcingTrainer(
        model, args, train_dataset=trajectories, processing_class=tokenizer, peft_config=get_peft_config(model_args)
    )
    # On the command line, `true` is the last checkpoint of `output_dir`.
    trainer.train(resume_from_checkpoint={"true": True}.get(args.resume_from_checkpoint, args.resume_from_checkpoint))
    trainer.save_model()

    # 4. Now an entropy threshold commits many tokens in each pass.
    inputs = tokenizer.apply_chat_template(
        prompts[0]["prompt"], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    ).to(args.device)
    settings = {"max_new_tokens": example.max_new_tokens, "entropy_threshold": example.entropy_threshold}
    student = trainer.model.eval()
    out = student.generate(**inputs, **settings, block_length=32, return_dict_in_generate=True)
    print(tokenizer.decode(out.sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    print(f"The first question took {passes_before} forward passes; now it takes {out.nfe[0]}.")
    trainer.accelerator.end_training()


if __name__ == "__main__":
    parser = TrlParser((ExampleArguments, CertaintyForcingConfig, ModelArguments))
    # A configuration file may hold arguments of `hf-dparallel train` that are not used here.
    main(*parser.parse_args_and_config(fail_with_unknown_args=False))
