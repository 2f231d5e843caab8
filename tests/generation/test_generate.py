# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`generate` against a naive loop, itself row by row, and by hand."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_dparallel import enable_diffusion_generation
from hf_dparallel.generation.prediction import predict_tokens

from ..helpers import (
    EOS,
    MASK,
    RemoteCodeConfig,
    RemoteCodeModel,
    exact_model,
    left_padded,
    make_dream,
    make_llada,
    make_llada2,
    make_sdar,
)
from .naive import FrozenCache, naive_generate, predict_whole


def rules(block_length, num_blocks, with_schedule):
    thresholds = [
        st.floats(0.0, 4.0).map(lambda value: {"entropy_threshold": value}),
        st.tuples(st.floats(0.01, 1.0), st.integers(1, 2)).map(
            lambda values: {"confidence_threshold": values[0], "min_commits": values[1]}
        ),
        # At 0 the last bit of an entropy decides.
        st.floats(0.01, 8.0).map(lambda value: {"entropy_bound": value}),
        st.floats(0.1, 6.0).map(lambda value: {"confidence_factor": value}),
        st.integers(1, 2).map(lambda length: {"kl_threshold": 3.0, "kl_confidence": 0.1, "kl_history_length": length}),
    ]
    if not with_schedule:
        return st.one_of(*thresholds)
    steps = st.integers(1, block_length).map(lambda steps: {"denoising_steps": steps * num_blocks})
    return st.one_of(st.just({}), steps, *thresholds)


@st.composite
def decode_cases(draw):
    """A model, prompts, and settings of any kind that go together; rows end at different times."""
    make, is_infilling = (
        draw(st.sampled_from([make_llada, make_dream, make_llada, make_dream, make_sdar, make_llada2])),
        False,
    )
    block_length, num_blocks = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.integers(1, 3))
    revision = draw(
        st.sampled_from([{}, {}, {"revocation_threshold": 0.9}, {"revocation_threshold": 0.3}])
        | st.builds(
            lambda threshold, steps: {"editing_threshold": threshold, "max_post_steps": steps},
            st.sampled_from([0.0, 0.3, 0.6]),
            st.sampled_from([0, 1, 5]),
        )
        | st.sampled_from([0.0, 0.2, 0.5, 0.95]).map(lambda threshold: {"soft_threshold": threshold})
    )
    kwargs = {"block_length": block_length, "max_new_tokens": block_length * num_blocks, "pad_token_id": 0}
    layers = 2
    if make in (make_sdar, make_llada2):
        revision = {} if "revocation_threshold" in revision else revision
        kwargs["use_cache"] = draw(st.sampled_from([None, False]))
    else:
        is_infilling = draw(st.sampled_from([False, False, True]))
        kwargs["cache_implementation"] = draw(st.sampled_from([None, "prefix", "dual"]))
        kwargs["suffix_length"] = draw(st.sampled_from([None, None, 0, 3]))
        if kwargs["cache_implementation"] is not None:
            kwargs["cache_refresh_interval"] = draw(st.sampled_from([None, 1, 2]))
            layers = draw(st.integers(1, 2))
    if "soft_threshold" not in revision:
        several = draw(st.booleans())
        can_be_scheduled = not (revision or several or is_infilling or "use_cache" in kwargs)
        kwargs |= draw(rules(block_length, num_blocks, can_be_scheduled))
    if "denoising_steps" not in kwargs and ("soft_threshold" in revision or several):
        kwargs["max_active_blocks"] = draw(st.integers(1, 3))
        kwargs["block_add_threshold"] = draw(st.sampled_from([0.1, 0.25, 0.5, 1.0]))
    # Most tokens can be the end or the padding token of a case.
    if is_infilling:
        kwargs["max_new_tokens"] = 0
    else:
        kwargs |= {"eos_token_id": draw(st.integers(0, 62)), "pad_token_id": draw(st.integers(0, 62))}
    kwargs |= draw(st.sampled_from([{}, {}, {}, {"repetition_penalty": 1.3}, {"temperature": 0.8}]))
    token = st.integers(2, 62) | (st.just(MASK) if is_infilling else st.nothing())
    prompts = draw(st.lists(st.lists(token, min_size=1, max_size=12), min_size=1, max_size=4))
    if is_infilling:
        prompts = [[*prompt, MASK][:: draw(st.sampled_from([1, -1]))] for prompt in prompts]
    return make, layers, prompts, kwargs | revision, draw(st.integers(1, 3))


def check_case(case):
    make, layers, prompts, kwargs, batch_size = case
    sizes = {make_sdar: {"block_size": kwargs["block_length"]}, make_llada2: {"block_length": kwargs["block_length"]}}
    layers_name = "n_layers" if make is make_llada else "num_hidden_layers"
    model = make(**sizes.get(make, {}), **{layers_name: layers}).double()
    if make is make_llada2:
        # The grouped products of experts know no float64.
        model.set_experts_implementation("eager")
    ids, attention_mask = left_padded(prompts, kwargs["pad_token_id"])
    told = kwargs | {"return_dict_in_generate": True, "output_certainty": True}
    batch = model.generate(ids, attention_mask=attention_mask, generator=generators(len(prompts)), **told)
    slots = model.generate_many(prompts, batch_size=batch_size, generator_for=lambda n: generators(n + 1)[n], **kwargs)
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
        torch.testing.assert_close(entropies, alone.entropies[0], rtol=1e-8, atol=1e-8, equal_nan=True)
        predict = naive_prediction(model, layers, kwargs)
        if predict is None:
            continue
        naive = naive_generate(model, prompt, predict=predict, **kwargs)
        length = len(naive.tokens)
        assert_equal_entropies(alone.entropies[0, :, -len(steps) :], naive.entropies)
        assert (tokens[:length].tolist(), steps[:length].tolist()) == (naive.tokens, naive.steps)
        assert (tokens[length:] == kwargs["pad_token_id"]).all() and (steps[length:] == -1).all()
        assert (passes, int(alone.num_revisions)) == (naive.nfe, naive.revisions)
        num_tokens = length if kwargs["max_new_tokens"] else prompt.count(MASK)
        assert alone.tokens_per_forward.item() == pytest.approx(num_tokens / passes)


def naive_prediction(model, layers, kwargs):
    """How the naive loop predicts with these settings, if it can."""
    if "temperature" in kwargs or "repetition_penalty" in kwargs:
        return None
    cache, refresh_interval = kwargs.get("cache_implementation"), kwargs.get("cache_refresh_interval")
    # A cache changes nothing where all is computed in each pass, and in a model of one layer.
    if layers == 1 or cache is None or refresh_interval == 1:
        return partial(predict_whole, model)
    # The frozen one knows blocks one after the other, whose tokens stay.
    others = {"revocation_threshold", "editing_threshold", "soft_threshold", "max_active_blocks"}
    if model.shift_logits or kwargs.get("suffix_length") is not None or kwargs.keys() & others:
        return None
    return FrozenCache(model, cache, refresh_interval)


def assert_equal_entropies(found, of_passes):
    """The naive loop tells the entropies of the open masks only."""
    expected = torch.full_like(found, torch.nan)
    for step, entropies in enumerate(of_passes):
        for place, entropy in entropies.items():
            if place < found.shape[1]:
                expected[step, place] = entropy
    seen = ~expected.isnan()
    torch.testing.assert_close(found[seen], expected[seen], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", [make_llada, make_dream])
@pytest.mark.parametrize(
    "change",
    [
        *({"revocation_threshold": 0.9, **rule} for rule in ({"entropy_threshold": 1.5}, {"entropy_bound": 2.0})),
        *(
            {"revocation_threshold": 0.9, **rule}
            for rule in ({"confidence_threshold": 0.5}, {"confidence_factor": 2.0})
        ),
        *({"confidence_threshold": 0.3, "editing_threshold": 0.4, "max_post_steps": steps} for steps in (0, 1, 16)),
        *({"soft_threshold": threshold} for threshold in (0.0, 0.3, 0.95)),
        {"kl_threshold": 0.5, "kl_confidence": 0.1, "kl_history_length": 2},
        *({"confidence_threshold": 0.5, "suffix_length": length} for length in (0, 3, 16)),
        *(
            {"entropy_threshold": 1.0, "cache_implementation": cache, "cache_refresh_interval": interval}
            for cache, interval in (("prefix", None), ("prefix", 2), ("dual", None), ("dual", 3))
        ),
    ],
    ids=str,
)
def test_each_way_to_decode_equals_the_naive_loop(make, change):
    """Settings with which tokens are revised in most rows."""
    lengths = {"block_length": 6 if "soft_threshold" in change else 8, "max_new_tokens": 24, "pad_token_id": 0}
    check_case((make, 2, [[2, 3], [4, 5, 6, 7, 8], [9]], lengths | {"eos_token_id": 62} | change, 2))


SEVERAL = {"block_length": 4, "max_active_blocks": 3, "block_add_threshold": 0.25, "cache_implementation": "dual"}
SEVERAL |= {"max_new_tokens": 24, "eos_token_id": 62, "pad_token_id": 0, "cache_refresh_interval": None}
BLOCKS = {"block_length": 4, "max_new_tokens": 16, "entropy_threshold": 1.0, "eos_token_id": 62, "pad_token_id": 0}


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("make", [make_llada, make_dream])
def test_a_cache_changes_nothing_in_a_model_of_one_layer(make, cache):
    kwargs = {"block_length": 8, "max_new_tokens": 24, "eos_token_id": 62, "pad_token_id": 0, "entropy_threshold": 1.0}
    kwargs |= {"cache_implementation": cache, "cache_refresh_interval": None}
    check_case((make, 1, [[2, 3], [4, 5, 6, 7, 8], [9]], kwargs, 2))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(decode_cases())
# Windows of different sizes: keys and values of one column too many would be told by the entropies only.
@example(
    (
        make_llada,
        2,
        [[29], [38, 2, 15, 31, 54, 33, 54, 19], [4, 35, 33]],
        SEVERAL | {"entropy_threshold": 0.3},
        2,
    )
)
# Masks behind the open blocks, which fill up a row to the columns of another one, are not predicted.
@example((make_llada, 2, [[30], [57], [37], [56]], SEVERAL | {"block_length": 8, "entropy_threshold": 1.0}, 4))
# A pass over the last block alone needs no mask, and one over rows in blocks of their own, none padded, does.
@example((make_sdar, 2, [[2 + (7 * row + k) % 60 for k in range(4)] for row in range(8)], BLOCKS, 3))
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
    with torch.no_grad():
        model.lm_head.weight[MASK] = 0
        model.lm_head.weight[MASK] += 3 * model.model.norm.weight * model.lm_head.weight[5]
    for rule in ({"entropy_threshold": 0.5}, {"confidence_threshold": 0.9}, {"denoising_steps": 8}):
        out = model.generate(
            torch.tensor([[2, 3]]),
            max_new_tokens=16,
            block_length=8,
            stop_at_eos=False,
            return_dict_in_generate=True,
            **rule,
        )
        assert not (out.sequences == MASK).any()
        assert 0 < out.nfe.item() <= 16


def test_mask_token_preferred_everywhere_still_commits_one_token_a_pass():
    model = make_llada()
    model.lm_head = ConstantHead(preferred=MASK)
    out = model.generate(
        torch.tensor([[2, 3]]), max_new_tokens=8, block_length=8, entropy_threshold=3.0, return_dict_in_generate=True
    )
    assert out.nfe.item() == 8 and not (out.sequences == MASK).any()


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
    out = model.generate(
        torch.tensor([[2, 3, 4]]),
        max_new_tokens=16,
        block_length=8,
        entropy_threshold=1.0,
        return_dict_in_generate=True,
    )
    assert out.nfe.tolist() == [1] and out.tokens_per_forward.tolist() == [1.0]
    assert out.commit_step.tolist() == [[0] + [-1] * 15]
    assert out.sequences.tolist() == [[2, 3, 4] + [EOS] * 16]
    out = model.generate(
        torch.tensor([[2, 3, 4]]),
        max_new_tokens=16,
        block_length=8,
        entropy_threshold=1.0,
        stop_at_eos=False,
        return_dict_in_generate=True,
    )
    assert out.nfe.tolist() == [2] and out.tokens_per_forward.tolist() == [0.5]
    assert out.commit_step.tolist() == [[0] * 8 + [1] * 8]


def test_default_is_one_token_per_pass(tiny_llada):
    out = tiny_llada.generate(
        torch.tensor([[2, 3]]), max_new_tokens=64, stop_at_eos=False, return_dict_in_generate=True
    )
    assert out.nfe.item() == 64
    assert sorted(out.commit_step[0].tolist()) == list(range(64))


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
        for change, seed in itertools.product(({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-40}), range(10)):
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
        draws = predict_tokens(
            logits.expand(1, 20000, 5), mask_token_id=4, temperature=2.0, generators=[torch.Generator().manual_seed(0)]
        ).tokens
        frequencies = draws[0].bincount(minlength=5) / 20000
        expected = torch.cat([(logits[:4] / 2).softmax(-1), torch.zeros(1)])
        torch.testing.assert_close(frequencies, expected, atol=0.015, rtol=0)


def generators(count):
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def test_the_head_runs_on_open_masks_only(tiny_llada):
    scored = []
    tiny_llada.lm_head.register_forward_hook(lambda module, args, output: scored.append(output.shape[1]))
    tiny_llada.generate(torch.tensor([[2, 3]]), max_new_tokens=16, block_length=8, stop_at_eos=False)
    assert scored == [8, 7, 6, 5, 4, 3, 2, 1] * 2


def test_a_dual_cache_pass_computes_the_block_only(tiny_llada):
    widths = []
    tiny_llada.model.layers[0].register_forward_hook(lambda module, args, output: widths.append(output.shape[1]))
    settings = {"max_new_tokens": 64, "block_length": 8, "entropy_threshold": 0.0, "stop_at_eos": False}
    tiny_llada.generate(torch.tensor([[2, 3, 4]]), cache_implementation="dual", **settings)
    assert widths == ([67] + [8] * 7) * 8


def test_all_is_computed_when_a_block_opens_beside_another_one(tiny_llada):
    lengths = []
    tiny_llada.model.layers[0].register_forward_hook(lambda module, args, output: lengths.append(output.shape[1]))
    settings = {"max_new_tokens": 8, "block_length": 4, "entropy_threshold": 0.0, "stop_at_eos": False}
    settings |= {"max_active_blocks": 2, "block_add_threshold": 0.25, "cache_implementation": "dual"}
    tiny_llada.generate(torch.tensor([[2, 3]]), **settings)
    assert lengths[:3] == [10, 10, 8]


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


@pytest.mark.parametrize("make", [make_llada, make_dream])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_refresh_at_every_pass_is_the_exact_path_in_eager_attention(make, cache):
    model = exact_model(make)
    model.set_attn_implementation("eager")
    ids, attention_mask = left_padded([[2, 3], [4, 5, 6, 7], [8]])
    kwargs = {"block_length": 8, "max_new_tokens": 64, "entropy_threshold": 1.0, "return_dict_in_generate": True}
    kwargs |= {"attention_mask": attention_mask, "stop_at_eos": False}
    exact = model.generate(ids, **kwargs)
    cached = model.generate(ids, cache_implementation=cache, cache_refresh_interval=1, **kwargs)
    assert torch.equal(cached.sequences, exact.sequences) and torch.equal(cached.nfe, exact.nfe)
