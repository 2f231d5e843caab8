# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Makes a tiny block-causal teacher (SDAR) for the word problems of the demo, out of the bundled LLaDA.

    python scripts/train_block_teacher.py --output_dir block_teacher

As SDAR is made from a model of another attention by further training, so is this one. Rows are [noisy; clean], as
`CertaintyForcingTrainer` makes them: every block of an answer is learned in each step, with the clean blocks before
it. A draw of masks therefore is one of a block, and not of a row. Of the 17 rows of a batch, in every block,

- 6 are masked uniformly;
- 8 as left-to-right decoding leaves them: masked from some token on, three times out of four a result, of which the
  next eight are scored;
- 3 are bare sums, whose results are masked.
"""

import functools
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, pad
from train_demo_teacher import (
    TeacherTraining,
    make_parser,
    mask_at_random,
    mask_from_cut,
    mask_results,
)
from transformers import PreTrainedTokenizerFast

from hf_dparallel import DiffusionGenerationConfig, SDARConfig, SDARForMaskedDiffusion
from hf_dparallel.attention_masks import make_attention_mask, noisy_and_clean
from hf_dparallel.demo import TEACHER
from hf_dparallel.demo.pipeline import BLOCK_LENGTH, MAX_NEW_TOKENS, load_teacher
from hf_dparallel.demo.word_problems import WordProblem


# Uniform, left-to-right, drills.
ROWS_BY_KIND = [6, 8, 3]


def build_model(tokenizer: PreTrainedTokenizerFast, init_from: str | Path) -> SDARForMaskedDiffusion:
    """Builds an SDAR of 1.3 million parameters with the weights of a LLaDA, which attends to all."""
    teacher, _ = load_teacher(torch.float32, init_from)
    shape = {name: getattr(teacher.config, name) for name in ("hidden_size", "intermediate_size", "rope_theta")}
    config = SDARConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=teacher.config.num_hidden_layers,
        num_attention_heads=teacher.config.num_attention_heads,
        num_key_value_heads=teacher.config.num_attention_heads,
        head_dim=teacher.config.hidden_size // teacher.config.num_attention_heads,
        max_position_embeddings=256,
        block_length=BLOCK_LENGTH,
        mask_token_id=tokenizer.mask_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shape,
    )
    model = SDARForMaskedDiffusion(config)
    # Only the norms of queries and keys are new.
    model.load_state_dict(teacher.state_dict(), strict=False)
    model.generation_config = DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS, block_length=BLOCK_LENGTH)
    return model


def encode(
    problems: list[WordProblem], tokenizer: PreTrainedTokenizerFast
) -> tuple[torch.LongTensor, torch.BoolTensor]:
    """Returns token ids, right-padded with EOS to whole blocks, and which are learned: both `(rows, length)`.

    An answer is learned up to the end of the block that its EOS is in.
    """
    prompts = tokenizer.apply_chat_template(
        [[{"role": "user", "content": problem.question}] for problem in problems], add_generation_prompt=True
    )["input_ids"]
    answers = tokenizer([problem.solution for problem in problems])["input_ids"]
    ends = [
        -(-(len(prompt) + len(answer) + 1) // BLOCK_LENGTH) * BLOCK_LENGTH
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    ids = torch.full((len(problems), max(ends)), tokenizer.eos_token_id)
    is_learned = torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, answer, end) in enumerate(zip(prompts, answers, ends, strict=True)):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        is_learned[row, len(prompt) : end] = True
    return ids, is_learned


def draw_masked(
    ids: torch.LongTensor, is_learned: torch.BoolTensor, equals_id: int, generator: torch.Generator
) -> tuple[torch.BoolTensor, torch.BoolTensor]:
    """Draws for each block which tokens are masked and which of those are scored, both `(rows, length)`."""
    uniform, left_to_right, drills = (part.reshape(-1, BLOCK_LENGTH) for part in ids.split(ROWS_BY_KIND))
    pairs = [
        mask_at_random(uniform, generator),
        mask_from_cut(left_to_right, equals_id, generator),
        mask_results(drills, equals_id),
    ]
    masked, scored = (torch.cat(parts).view_as(ids) & is_learned for parts in zip(*pairs, strict=True))
    return masked, scored


def training_loss(
    model: SDARForMaskedDiffusion,
    tokenizer: PreTrainedTokenizerFast,
    problems: list[WordProblem],
    generator: torch.Generator,
) -> torch.Tensor:
    """Averages cross-entropy over scored tokens."""
    ids, is_learned = encode(problems, tokenizer)
    masked, scored = draw_masked(ids, is_learned, tokenizer.convert_tokens_to_ids("="), generator)
    length = ids.shape[1]
    # Nothing that is learned sees the clean copy of the last block.
    context = length - BLOCK_LENGTH
    positions = torch.cat([torch.arange(length), torch.arange(context)])
    attention_mask = make_attention_mask(
        model.config,
        noisy_and_clean(positions[None] // BLOCK_LENGTH, length),
        (1, length + context, length + context),
        dtype=model.dtype,
        device=model.device,
    )
    logits = model(
        input_ids=torch.cat([ids.masked_fill(masked, model.config.mask_token_id), ids[:, :context]], dim=1),
        attention_mask=attention_mask,
        position_ids=positions.expand(len(ids), -1),
        logits_to_keep=pad(scored, (0, context), value=False),
    ).logits
    return cross_entropy(logits, ids[scored])


if __name__ == "__main__":
    parser = make_parser(__doc__.splitlines()[0], num_steps=800)
    parser.add_argument("--init_from", default=TEACHER, help="Folder of the LLaDA, by default the bundled one.")
    arguments = parser.parse_args()
    build = functools.partial(build_model, init_from=arguments.init_from)
    tokenizer = load_teacher(torch.float32, arguments.init_from)[1]
    TeacherTraining(arguments, build, ROWS_BY_KIND, training_loss, tokenizer).run()
