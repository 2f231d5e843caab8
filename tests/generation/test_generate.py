# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`generate` against a naive loop, itself row by row, and by hand."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_dparallel import enable_diffusion_generation
from hf_dparallel.generation.sampling import exponential_noise, sample_tokens

from ..helpers import (
    EOS,
    MASK,
    RemoteCodeConfig,
    RemoteCodeModel,
    left_padded,
    make_a2d,
    make_block_a2d,
    make_dream,
    make_fast_dllm,
    make_llada,
    make_llada2,
    make_llada_moe,
    make_nemotron,
    make_rnd1,
    make_sdar,
    make_word_tokenizer,
)
from .naive import naive_generate, predict_whole


BY_BLOCK = [make_sdar, make_llada2, make_block_a2d, make_fast_dllm, make_nemotron]
MIXTURES = [make_llada2, make_llada_moe, make_rnd1]
pytestmark = pytest.mark.usefixtures("klass")


def rules(num_blocks, num_new, with_schedule):
    thresholds = [
        st.floats(0.0, 4.0).map(lambda value: {"entropy_threshold": value}),
        st.tuples(st.floats(0.01, 1.0), st.integers(1, 2)).map(
            lambda values: {"confidence_threshold": values[0], "min_commits": values[1]}
        ),
        # At 0 the last bit of an entropy decides.
        st.floats(0.01, 8.0).map(lambda value: {"entropy_bound": value}),
        st.floats(0.01, 8.0).map(lambda value: {"entropy_budget": value}),
        st.floats(0.1, 6.0).map(lambda value: {"confidence_factor": value}),
        st.integers(1, 2).map(lambda length: {"kl_threshold": 3.0, "kl_confidence": 0.1, "kl_history_length": length}),
    ]
    if not with_schedule:
        return st.one_of(*thresholds)
    order = st.sampled_from(["confidence", "left_to_right"])
    steps = st.fixed_dictionaries({"denoising_steps": st.integers(num_blocks, num_new), "commit_order": order})
    return st.one_of(st.just({}), steps, *thresholds)


class Case(NamedTuple):
    """A decode: a model and its layers, prompts, settings that go together, slots, and an end."""

    make: Callable
    layers: int
    prompts: list[list[int]]
    kwargs: dict
    batch_size: int
    # Whether an answer ends, of a sequence and the length of its prompt, and what `generate` is told for it.
    ends: Callable = lambda sequence, answer_start: False
    told: dict = {}


def stops(draw):
    """An end of answers, as the naive loop and as `generate` are told."""
    kind, number = draw(st.sampled_from(["none", "none", "strings", "criteria"])), draw(st.integers(2, 9))
    if kind == "strings":
        strings = [f"w{number}", f"w{7 * number - 1} w"]
        settings = {"stop_strings": strings, "tokenizer": make_word_tokenizer()}
        return lambda ids, start: any(text in " ".join(f"w{i}" for i in ids[start:]) for text in strings), settings
    if kind == "criteria":
        criteria = [lambda ids, scores, **kwargs: ids[:, -3:].sum(dim=1) % number == 0]
        return lambda ids, start: sum(ids[-3:]) % number == 0, {"stopping_criteria": criteria}
    return Case._field_defaults["ends"], {}


@st.composite
def decode_cases(draw):
    """Settings of any kind that go together; rows end at different times."""
    full = [make_llada, make_dream, make_a2d, make_llada_moe, make_rnd1]
    make = draw(st.sampled_from(full) | st.sampled_from(BY_BLOCK))
    is_infilling, layers = False, 2
    block_length, num_new = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.integers(1, 20))
    num_blocks = -(-num_new // block_length)
    revision = draw(
        st.sampled_from([{}, {}, {"revocation_threshold": 0.9}, {"revocation_threshold": 0.3}])
        | st.builds(
            lambda threshold, steps: {"editing_threshold": threshold, "max_post_steps": steps},
            st.sampled_from([0.0, 0.3, 0.6]),
            st.sampled_from([0, 1, 5]),
        )
        | st.sampled_from([0.0, 0.2, 0.5, 0.95]).map(lambda threshold: {"soft_threshold": threshold})
    )
    kwargs = {"block_length": block_length, "max_new_tokens": num_new, "pad_token_id": 0}
    if make in BY_BLOCK:
        kwargs["use_cache"] = draw(st.sampled_from([None, False]))
        kwargs["block_origin"] = draw(st.sampled_from([None, "sequence", "answer", "answer"]))
    else:
        is_infilling = draw(st.sampled_from([False, False, True]))
        kwargs["cache_implementation"] = draw(st.sampled_from([None, "prefix", "dual"]))
        kwargs["suffix_length"] = draw(st.sampled_from([None, None, 0, 3]))
        if kwargs["cache_implementation"] is not None:
            kwargs["cache_refresh_interval"] = draw(st.sampled_from([None, 1, 2]))
            layers = draw(st.integers(1, 2))
    if "revocation_threshold" in revision and (make in BY_BLOCK or kwargs["cache_implementation"]):
        revision = {}
    if "soft_threshold" not in revision:
        several = draw(st.booleans())
        kwargs |= draw(rules(num_blocks, num_new, not (revision or several or is_infilling)))
    if "denoising_steps" not in kwargs and ("soft_threshold" in revision or several):
        kwargs["max_active_blocks"] = draw(st.integers(1, 1 if make is make_nemotron else 3))
        kwargs["block_add_threshold"] = draw(st.sampled_from([0.1, 0.25, 0.5, 1.0]))
    # Most tokens can be the end or the padding token of a case.
    token, end = st.integers(0, 62), (Case._field_defaults["ends"], {})
    if is_infilling:
        kwargs["max_new_tokens"] = 0
    else:
        kwargs |= {"eos_token_id": draw(token | st.lists(token, min_size=2, max_size=4)), "pad_token_id": draw(token)}
        kwargs["stop_at_eos"] = draw(st.sampled_from([True, True, False]))
        end = stops(draw)
    kwargs |= draw(st.sampled_from([{}, {}, {}, {"repetition_penalty": 1.3}, {"temperature": 0.8}]))
    token = st.integers(2, 62) | (st.just(MASK) if is_infilling else st.nothing())
    prompts = draw(st.lists(st.lists(token, min_size=1, max_size=12), min_size=1, max_size=4))
    if is_infilling:
        # Without any other token all masks would be predicted alike, and ties be turned by rounding.
        prompts = [[2, *prompt, MASK][:: draw(st.sampled_from([1, -1]))] for prompt in prompts]
    return Case(make, layers, prompts, kwargs | revision, draw(st.integers(1, 3)), *end)


def make_model(case):
    sizes = {"block_length": case.kwargs["block_length"]} if case.make in BY_BLOCK else {}
    layers_name = "n_layers" if case.make is make_llada else "num_hidden_layers"
    model = case.make(**sizes, **{layers_name: case.layers}).double()
    if case.make in MIXTURES:
        # The grouped products of experts know no float64.
        model.set_experts_implementation("eager")
    return model


def check_case(case):
    case = Case(*case)
    model, prompts, kwargs, batch_size = make_model(case), case.prompts, case.kwargs, case.batch_size
    ids, attention_mask = left_padded(prompts, kwargs["pad_token_id"])
    told = kwargs | case.told | {"return_dict_in_generate": True, "output_certainty": True}
    batch = model.generate(ids, attention_mask=attention_mask, generator=generators(len(prompts)), **told)
    draws = {"generator_for": lambda n: generators(n + 1)[n]}
    slots = list(model.generate_many(prompts, batch_size=batch_size, **draws, **kwargs, **case.told))
    for row, (prompt, of_slots) in enumerate(zip(prompts, slots, strict=True)):
        assert of_slots.index == row
        alone = model.generate(torch.tensor([prompt]), generator=generators(row + 1)[row:], **told)
        steps, passes = alone.commit_step[0], int(alone.nfe)
        tokens = alone.sequences[0, -len(steps) :]
        found = batch.sequences[row, -len(steps) :], batch.commit_step[row, -len(steps) :]
        for found_tokens, found_steps in (found, (of_slots.tokens, of_slots.commit_step)):
            assert torch.equal(found_tokens, tokens) and torch.equal(found_steps, steps)
        counts = (passes, int(alone.num_revisions), float(alone.tokens_per_forward))
        for name, count in zip(("nfe", "num_revisions", "tokens_per_forward"), counts, strict=True):
            assert getattr(batch, name)[row] == count and getattr(of_slots, name) == pytest.approx(count)
        entropies = batch.entropies[row, :passes, -len(steps) :]
        # Routers compute in float32.
        near = dict.fromkeys(("rtol", "atol"), 1e-5 if case.make in MIXTURES else 1e-8)
        torch.testing.assert_close(entropies, alone.entropies[0].to(entropies), **near, equal_nan=True)
        check_with_naive_loop(model, case, row, alone)


def check_with_naive_loop(model, case, row, alone):
    kwargs, prompt = case.kwargs, case.prompts[row]
    predict = naive_prediction(model, case.layers, kwargs)
    if predict is None:
        return
    naive = naive_generate(model, prompt, predict=predict, ends=case.ends, **kwargs)
    steps, passes, length = alone.commit_step[0], int(alone.nfe), len(naive.tokens)
    tokens = alone.sequences[0, -len(steps) :]
    assert_equal_entropies(alone.entropies[0, :, -len(steps) :], naive.entropies)
    assert (tokens[:length].tolist(), steps[:length].tolist()) == (naive.tokens, naive.steps)
    assert (tokens[length:] == kwargs["pad_token_id"]).all() and (steps[length:] == -1).all()
    assert (passes, int(alone.num_revisions)) == (naive.nfe, naive.revisions)
    eos = torch.tensor(kwargs.get("eos_token_id", []))
    lengths_to_eos = [n for n, token in enumerate(naive.tokens, 1) if (eos == token).any()]
    num_tokens = min([length, *lengths_to_eos]) if kwargs["max_new_tokens"] else prompt.count(MASK)
    assert alone.tokens_per_forward.item() == pytest.approx(num_tokens / passes if passes else 0)


def naive_prediction(model, layers, kwargs):
    """How the naive loop predicts with these settings, if it can."""
    # What is fed back makes every rounding of the penalty larger.
    if "temperature" in kwargs or {"repetition_penalty", "soft_threshold"} <= kwargs.keys():
        return None
    # A cache changes nothing where all is computed in each pass, and in a model of one layer.
    if layers == 1 or kwargs.get("cache_implementation") is None or kwargs.get("cache_refresh_interval") == 1:
        return partial(predict_whole, model)
    return None


def assert_equal_entropies(found, of_passes):
    """The naive loop tells the entropies of the open masks only."""
    expected = torch.full_like(found, torch.nan)
    for step, entropies in enumerate(of_passes):
        for place, entropy in entropies.items():
            if place < found.shape[1]:
                expected[step, place] = entropy
    seen = ~expected.isnan()
    torch.testing.assert_close(found[seen], expected[seen], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [make_llada, make_dream])
@pytest.mark.parametrize(
    "change",
    [
        {"revocation_threshold": 0.9, "entropy_bound": 2.0},
        {"revocation_threshold": 0.9, "confidence_threshold": 0.5},
        *({"confidence_threshold": 0.3, "editing_threshold": 0.4, "max_post_steps": steps} for steps in (0, 16)),
        *({"soft_threshold": threshold} for threshold in (0.0, 0.95)),
        {"kl_threshold": 0.5, "kl_confidence": 0.1, "kl_history_length": 2},
        # The first block has a pass more than the others.
        {"denoising_steps": 13},
        *({"confidence_threshold": 0.5, "suffix_length": length} for length in (0, 3)),
    ],
    ids=str,
)
def test_each_way_to_decode_equals_the_naive_loop(make, change):
    """Settings with which tokens are revised in most rows."""
    lengths = {"block_length": 6 if "soft_threshold" in change else 8, "max_new_tokens": 24, "pad_token_id": 0}
    check_case((make, 2, [[2, 3], [4, 5, 6, 7, 8], [9]], lengths | {"eos_token_id": 62} | change, 2))


ENDS = {"eos_token_id": 62, "pad_token_id": 0}


@pytest.mark.parametrize(
    "revision",
    [{"soft_threshold": 0.3}, {"confidence_threshold": 0.3, "editing_threshold": 0.1, "max_post_steps": 16}],
)
def test_a_last_block_of_one_token_that_was_decided_in_the_block_before(revision):
    """Once its block is the first open one, it is not revised, and no pass has anything left to predict."""
    settings = {
        "block_length": 4,
        "block_origin": "answer",
        "max_new_tokens": 9,
        "stop_at_eos": False,
        "pad_token_id": 0,
    }
    settings |= {"max_active_blocks": 2, "block_add_threshold": 0.5}
    check_case((make_fast_dllm, 2, [[2, 3, 4, 5, 6], [7], [8, 9], [10, 11, 12]], settings | revision, 2))


SEVERAL = ENDS | {"block_length": 4, "max_active_blocks": 3, "block_add_threshold": 0.25, "max_new_tokens": 24}
SEVERAL |= {"cache_implementation": "dual", "cache_refresh_interval": None}
FROM_ANSWER = {"block_origin": "answer"}
BLOCKS = ENDS | {"block_length": 4, "max_new_tokens": 16, "entropy_threshold": 1.0}


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("make", [make_llada, make_dream])
def test_a_cache_changes_nothing_in_a_model_of_one_layer(make, cache):
    kwargs = BLOCKS | {"cache_implementation": cache, "cache_refresh_interval": None}
    check_case((make, 1, [[2, 3], [4, 5, 6, 7, 8], [9]], kwargs, 2))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(decode_cases())
# Windows of different sizes: keys and values of one column too many would be told by the entropies only.
@example(
    (make_llada, 2, [[29], [38, 2, 15, 31, 54, 33, 54, 19], [4, 35, 33]], SEVERAL | {"entropy_threshold": 0.3}, 2)
)
# Masks after the open blocks, which fill up a row to the columns of another one, are not predicted.
@example((make_llada, 2, [[30], [57], [37], [56]], SEVERAL | {"block_length": 8, "entropy_threshold": 1.0}, 4))
# A pass over the last block alone needs no mask, and one over rows in blocks of their own, none padded, does.
@example((make_sdar, 2, [[2 + (7 * row + k) % 60 for k in range(4)] for row in range(8)], BLOCKS, 3))
# A block of the prompt and the one of the answer are no longer than a block together, and no last one.
@example(
    (make_block_a2d, 2, [[2, 3, 4]], BLOCKS | {"block_length": 8, "max_new_tokens": 4, "block_origin": "answer"}, 1)
)
# The column before the block does not see it.
@example((make_nemotron, 2, [[2 + (7 * row + k) % 60 for k in range(4)] for row in range(8)], BLOCKS, 3))
@example((make_fast_dllm, 2, [[2 + (7 * row + k) % 60 for k in range(4)] for row in range(8)], BLOCKS, 3))
def test_a_row_in_a_batch_equals_the_row_alone_and_the_naive_loop(case):
    check_case(case)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(decode_cases())
def test_rows_are_independent_in_many_cases(case):
    check_case(case)


@pytest.mark.parametrize("make", [make_llada, make_dream])
def test_always_ends_when_the_model_prefers_the_mask_token(make):
    model = make()
    model.lm_head = ConstantHead(preferred=MASK)
    for rule in ({"entropy_threshold": 3.0}, {"confidence_threshold": 0.9}, {"denoising_steps": 4}):
        (row,) = model.generate_many([[2, 3]], max_new_tokens=8, block_length=8, stop_at_eos=False, **rule)
        assert row.nfe == rule.get("denoising_steps", 8) and not (row.tokens == MASK).any()


class ConstantHead(torch.nn.Module):
    """Scores the same token highest at every position, and the end of text second."""

    def __init__(self, preferred):
        super().__init__()
        self.scores = torch.zeros(64)
        self.scores[preferred] = 9.0
        self.scores[7] = 5.0

    def forward(self, hidden_states):
        return self.scores.expand(*hidden_states.shape[:-1], 64)


def test_counts_of_a_decode_done_by_hand():
    """Every position predicts EOS with certainty: one pass decides the block, and the answer is one token long."""
    model = make_llada()
    model.lm_head = ConstantHead(preferred=EOS)
    settings = {"max_new_tokens": 16, "block_length": 8, "entropy_threshold": 1.0, "return_dict_in_generate": True}
    out = model.generate(torch.tensor([[2, 3, 4]]), **settings)
    assert out.nfe.tolist() == [1] and out.tokens_per_forward.tolist() == [1.0]
    assert out.commit_step.tolist() == [[0] + [-1] * 15]
    assert out.sequences.tolist() == [[2, 3, 4] + [EOS] * 16]
    out = model.generate(torch.tensor([[2, 3, 4]]), stop_at_eos=False, **settings)
    assert out.nfe.tolist() == [2] and out.tokens_per_forward.tolist() == [0.5]
    assert out.commit_step.tolist() == [[0] * 8 + [1] * 8]


def test_default_is_one_token_per_pass(tiny_llada):
    (row,) = tiny_llada.generate_many([[2, 3]], max_new_tokens=64, stop_at_eos=False)
    assert row.nfe == 64 and sorted(row.commit_step.tolist()) == list(range(64))


class TestSampling:
    settings = {"max_new_tokens": 16, "block_length": 8, "temperature": 1.0, "stop_at_eos": False}

    def test_seeded_by_the_global_state(self, tiny_llada):
        def draw(seed):
            torch.manual_seed(seed)
            return tiny_llada.generate(torch.tensor([[2, 3]]), **self.settings)

        assert torch.equal(draw(0), draw(0)) and not torch.equal(draw(0), draw(1))

    def test_top_k_of_one_is_the_argmax(self, tiny_llada):
        prompt = torch.tensor([[2, 3]])
        greedy = tiny_llada.generate(prompt, **(self.settings | {"temperature": 0.0}))
        changes = ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-40})
        for change, seed in itertools.product(changes, range(3)):
            torch.manual_seed(seed)
            assert torch.equal(tiny_llada.generate(prompt, **self.settings | change), greedy)

    def test_do_sample(self, tiny_llada):
        prompt = torch.tensor([[2, 3]])
        plain = {"max_new_tokens": 16, "block_length": 8}
        greedy = tiny_llada.generate(prompt, **plain)
        assert torch.equal(tiny_llada.generate(prompt, do_sample=False, temperature=0.7, **plain), greedy)
        torch.manual_seed(0)
        assert not torch.equal(tiny_llada.generate(prompt, do_sample=True, **plain), greedy)

    def test_draws_follow_the_distribution(self):
        logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 8.0])
        torch.manual_seed(0)
        logits = logits.expand(1, 20000, 5)
        draws = sample_tokens(
            logits, exponential_noise(logits, [], []), 4, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0
        )
        frequencies = draws[0].bincount(minlength=5) / 20000
        expected = torch.cat([(logits[0, 0, :4] / 2).softmax(-1), torch.zeros(1)])
        torch.testing.assert_close(frequencies, expected, atol=0.015, rtol=0)


def generators(count):
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def test_an_end_token_in_the_prompt_ends_nothing(tiny_llada):
    ids = torch.tensor([[2, 1, MASK, 1, MASK, 4]])
    out = tiny_llada.generate(ids, max_new_tokens=0, block_length=8)
    assert not (out == MASK).any() and torch.equal(out[ids != MASK], ids[ids != MASK])


def test_shorter_prompts_have_no_steps_in_their_padding(tiny_llada):
    ids, attention_mask = left_padded([[2, 3, MASK, 4, MASK], [MASK, 5]])
    out = tiny_llada.generate(ids, attention_mask=attention_mask, max_new_tokens=0, return_dict_in_generate=True)
    assert sorted(out.commit_step[0].tolist()) == [-1, -1, -1, 0, 1]
    assert out.commit_step[1].tolist() == [-1, -1, -1, 0, -1]


@pytest.mark.parametrize("settings", [{"suffix_length": 3}, {"revocation_threshold": 0.9}])
def test_models_of_other_classes(settings):
    foreign = enable_diffusion_generation(RemoteCodeModel(RemoteCodeConfig()), MASK, shift_logits=True)
    ids, attention_mask = left_padded([[2, 3], [4, 5, 6, 7, 8], [9]])
    settings |= {"max_new_tokens": 16, "block_length": 4, "entropy_bound": 2.0, "eos_token_id": 1, "pad_token_id": 0}
    expected = make_dream().generate(ids, attention_mask=attention_mask, **settings)
    assert torch.equal(foreign.generate(ids, attention_mask=attention_mask, **settings), expected)
