# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""examples/diffusers: our commit rules in its pipeline give the tokens of our own `generate`, in as many passes."""

import pytest
import torch
from commit_rule_scheduler import CommitRuleScheduler
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from transformers import AutoTokenizer

from hf_dparallel.demo import TEACHER

from .helpers import make_llada, make_llada2, make_sdar, refuses
from .pages import ROOT, run_blocks


BLOCK_LENGTH = 4
RULES = {
    "entropy_threshold": 1.0,
    "confidence_threshold": 0.4,
    "entropy_bound": 1.5,
    "entropy_budget": 2.5,
    "confidence_factor": 1.2,
}


def decode_in_pipeline(model, scheduler, input_ids: torch.Tensor, length: int, **settings):
    """The new tokens of the pipeline, and its number of passes."""
    passes = []
    pipeline = LLaDA2Pipeline(model, scheduler)
    pipeline.set_progress_bar_config(disable=True)
    arguments = {"num_inference_steps": BLOCK_LENGTH, "editing_threshold": None, "output_type": "seq"} | settings
    out = pipeline(
        input_ids=input_ids,
        gen_length=length,
        mask_token_id=model.config.mask_token_id,
        callback_on_step_end=lambda pipeline, step, timestep, state: passes.append(step) or {},
        **arguments,
    )
    return out.sequences, len(passes)


@pytest.mark.parametrize(("rule", "value"), RULES.items())
def test_the_tokens_are_those_of_generate(rule, value):
    model = make_llada2()
    # Together with the prompt, whole blocks.
    input_ids = torch.randint(4, 60, (1, 6), generator=torch.Generator().manual_seed(1))
    given = {"max_new_tokens": 14, "stop_at_eos": False, rule: value}
    out = model.generate(input_ids, **given, return_dict_in_generate=True)
    scheduler = CommitRuleScheduler(rule, value, block_length=BLOCK_LENGTH)
    tokens, nfe = decode_in_pipeline(model, scheduler, input_ids, 14, eos_early_stop=False)
    assert torch.equal(tokens, out.sequences[:, 6:]) and nfe == out.nfe.item()
    assert BLOCK_LENGTH < nfe < 14


def test_a_model_of_full_attention_sees_no_masks_behind_the_block():
    model = make_llada()
    input_ids = torch.randint(4, 60, (1, 8), generator=torch.Generator().manual_seed(1))
    given = {"max_new_tokens": 16, "block_length": BLOCK_LENGTH, "stop_at_eos": False, "suffix_length": 0}
    out = model.generate(input_ids, **given, entropy_threshold=1.0)
    tokens, _ = decode_in_pipeline(
        model, CommitRuleScheduler(value=1.0, block_length=BLOCK_LENGTH), input_ids, 16, eos_early_stop=False
    )
    assert torch.equal(tokens, out[:, 8:])


def test_editing_is_that_of_generate():
    model = make_llada2()
    input_ids = torch.randint(4, 60, (1, 6), generator=torch.Generator().manual_seed(1))
    given = {"max_new_tokens": 14, "stop_at_eos": False, "entropy_threshold": 2.0, "editing_threshold": 0.2}
    out = model.generate(input_ids, **given, max_post_steps=3, return_dict_in_generate=True)
    scheduler = CommitRuleScheduler(value=2.0, block_length=BLOCK_LENGTH)
    # The pipeline counts one pass less.
    settings = {"editing_threshold": 0.2, "max_post_steps": 2, "eos_early_stop": False}
    tokens, nfe = decode_in_pipeline(model, scheduler, input_ids, 14, **settings)
    assert out.num_revisions.item() > 0
    assert torch.equal(tokens, out.sequences[:, 6:]) and nfe == out.nfe.item()


def test_a_batch_of_rows_and_samples_end_with_their_answers():
    model = make_sdar()
    input_ids = torch.randint(4, 60, (3, 8), generator=torch.Generator().manual_seed(1))
    given = {"max_new_tokens": 16, "entropy_threshold": 1.0, "eos_token_id": 5}
    ours = model.generate(input_ids, **given)[:, 8:]
    scheduler = CommitRuleScheduler(value=1.0, block_length=BLOCK_LENGTH)
    tokens, _ = decode_in_pipeline(model, scheduler, input_ids, 16, eos_token_id=5)
    for row, expected in zip(tokens.tolist(), ours.tolist(), strict=True):
        end = expected.index(5) + 1 if 5 in expected else 16
        assert row[:end] == expected[:end]
    samples = [
        decode_in_pipeline(
            model, scheduler, input_ids, 16, temperature=1.0, generator=torch.Generator().manual_seed(seed)
        )[0]
        for seed in (0, 0, 1)
    ]
    assert torch.equal(samples[0], samples[1]) and not torch.equal(samples[0], samples[2])
    assert not (torch.stack(samples) == model.config.mask_token_id).any()


def test_the_scheduler_of_diffusers_takes_a_pass_more_for_a_block():
    model, input_ids = make_llada2(), torch.arange(4, 12)[None]
    ours = CommitRuleScheduler("confidence_threshold", 0.4, block_length=BLOCK_LENGTH)
    theirs = BlockRefinementScheduler(block_length=BLOCK_LENGTH)
    tokens, nfe = decode_in_pipeline(model, ours, input_ids, 16, eos_early_stop=False)
    expected, passes = decode_in_pipeline(model, theirs, input_ids, 16, threshold=0.4, eos_early_stop=False)
    assert torch.equal(tokens, expected) and nfe < passes <= nfe + 16 // BLOCK_LENGTH


def test_the_page_runs(tmp_path, capsys):
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    for part in (make_sdar(vocab_size=len(tokenizer)), tokenizer):
        part.save_pretrained(tmp_path)
    names = run_blocks(ROOT / "docs" / "engines.md", {"JetLM/SDAR-1.7B-Chat": str(tmp_path)})
    assert capsys.readouterr().out == f"{names['out'].texts[0]}\n"


def test_it_is_saved_and_loaded_as_any_scheduler(tmp_path):
    CommitRuleScheduler("entropy_bound", 0.25, block_length=8).save_pretrained(tmp_path)
    loaded = CommitRuleScheduler.from_pretrained(tmp_path)
    assert (loaded.config.rule, loaded.config.value, loaded.config.block_length) == ("entropy_bound", 0.25, 8)


@pytest.mark.parametrize("rule", ["soft_threshold", "denoising_steps", "max_new_tokens", "treshold"])
def test_what_is_no_rule_of_one_pass_is_refused(rule):
    with pytest.raises(ValueError, match=f"`rule='{rule}'` .*entropy_threshold"):
        CommitRuleScheduler(rule, 1)


def test_bad_values_and_noise_without_masks_are_refused():
    with refuses("entropy_threshold"):
        CommitRuleScheduler("entropy_threshold", -1.0)
    with pytest.raises(ValueError, match="`mask_token_id` is not given"):
        CommitRuleScheduler().step(torch.zeros(1, 4, 8), 0, torch.zeros(1, 4, dtype=torch.long))
