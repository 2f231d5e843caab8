# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`generate` against the official samplers, a naive loop, and itself row by row."""

import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForMaskedLM

from hf_dparallel.generation.decoder import Decoder
from hf_dparallel.generation.prediction import predict_tokens

from ..helpers import (
    EOS,
    MASK,
    exact_model,
    left_padded,
    make_dream,
    make_llada,
    make_llada2,
    make_sdar,
    with_equal_settings,
)
from .naive import naive_generate


OFFICIAL_SAMPLERS = ("dparallel.generate", "llada.generate", "dream_semiar.diffusion_generate")


def golden_runs(golden_dir, name):
    """The recorded runs of the exact semi-autoregressive samplers, with our name for each setting."""
    for line in (golden_dir / name / "generation.jsonl").read_text().splitlines():
        run = json.loads(line)
        params = run["params"]
        if run["function"] in OFFICIAL_SAMPLERS and not params.get("cfg_scale"):
            rule = (
                {"denoising_steps": params["steps"]}
                if params.get("threshold") is None
                else {"entropy_threshold": params["threshold"]}
            )
            yield run, {"max_new_tokens": 64, "block_length": params["block_length"], **rule}


@pytest.mark.parametrize(("name", "num_runs"), [("llada", 120), ("llada_gqa", 120), ("dream", 72)])
def test_equals_the_official_sampler(golden_dir, name, num_runs):
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / name / "model").eval()
    runs = list(golden_runs(golden_dir, name))
    assert len(runs) == num_runs
    # The decoding of models with fewer key than query heads is the same: a part is enough.
    for kwargs, group in with_equal_settings(runs)[:: 5 if name == "llada_gqa" else 1]:
        ids, attention_mask = left_padded([run["prompt_ids"] for run in group])
        out = model.generate(
            ids, attention_mask=attention_mask, stop_at_eos=False, return_dict_in_generate=True, **kwargs
        )
        assert out.sequences[:, ids.shape[1] :].tolist() == [run["generated_ids"] for run in group], kwargs
        assert out.nfe.tolist() == [run["nfe_forward_calls"] for run in group], kwargs


@pytest.mark.parametrize("name", ["llada", "llada_gqa", "dream"])
def test_eos_stop_equals_the_official_sampler_up_to_the_first_eos(golden_dir, name):
    """Any token can be the EOS: the one that the official run wrote in the middle makes the stop happen."""
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / name / "model").eval()
    for run, kwargs in list(golden_runs(golden_dir, name))[::5]:
        generated = run["generated_ids"]
        eos = generated[20]
        length = generated.index(eos) + 1
        prompt = torch.tensor([run["prompt_ids"]])
        out = model.generate(prompt, eos_token_id=eos, pad_token_id=0, return_dict_in_generate=True, **kwargs)
        new = out.sequences[0, prompt.shape[1] :]
        assert new[:length].tolist() == generated[:length]
        assert (new[length:] == 0).all() and (out.commit_step[0, length:] == -1).all()
        assert out.nfe.item() <= run["nfe_forward_calls"]


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
    return make, layers, prompts, kwargs | revision


def check_case(case):
    make, layers, prompts, kwargs = case
    sizes = {make_sdar: {"block_size": kwargs["block_length"]}, make_llada2: {"block_length": kwargs["block_length"]}}
    layers_name = "n_layers" if make is make_llada else "num_hidden_layers"
    model = make(**sizes.get(make, {}), **{layers_name: layers}).double()
    if make is make_llada2:
        # The grouped products of experts know no float64.
        model.set_experts_implementation("eager")
    ids, attention_mask = left_padded(prompts, kwargs["pad_token_id"])
    told = kwargs | {"return_dict_in_generate": True, "output_certainty": True}
    batch = model.generate(ids, attention_mask=attention_mask, generator=generators(len(prompts)), **told)
    slots = model.generate_many(prompts, batch_size=2, generator_for=lambda row: generators(row + 1)[row], **kwargs)
    for row, (prompt, of_slots) in enumerate(zip(prompts, slots, strict=True)):
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
        # A cache changes nothing where all is computed in each pass, and in a model of one layer.
        is_exact = layers == 1 or not kwargs.get("cache_implementation") or kwargs["cache_refresh_interval"] == 1
        if "temperature" in kwargs or "repetition_penalty" in kwargs or not is_exact:
            continue
        naive = naive_generate(model, prompt, **kwargs)
        length = len(naive.tokens)
        assert (tokens[:length].tolist(), steps[:length].tolist()) == (naive.tokens, naive.steps)
        assert (tokens[length:] == kwargs["pad_token_id"]).all() and (steps[length:] == -1).all()
        assert (passes, int(alone.num_revisions)) == (naive.nfe, naive.revisions)
        num_tokens = length if kwargs["max_new_tokens"] else prompt.count(MASK)
        assert alone.tokens_per_forward.item() == pytest.approx(num_tokens / passes)


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
    ],
    ids=str,
)
def test_each_way_to_decode_equals_the_naive_loop(make, change):
    """Settings with which tokens are revised in most rows."""
    lengths = {"block_length": 6 if "soft_threshold" in change else 8, "max_new_tokens": 24, "pad_token_id": 0}
    check_case((make, 2, [[2, 3], [4, 5, 6, 7, 8], [9]], lengths | {"eos_token_id": 62} | change))


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("make", [make_llada, make_dream])
def test_a_cache_changes_nothing_in_a_model_of_one_layer(make, cache):
    kwargs = {"block_length": 8, "max_new_tokens": 24, "eos_token_id": 62, "pad_token_id": 0, "entropy_threshold": 1.0}
    kwargs |= {"cache_implementation": cache, "cache_refresh_interval": None}
    check_case((make, 1, [[2, 3], [4, 5, 6, 7, 8], [9]], kwargs))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(decode_cases())
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


def test_returns_a_plain_tensor_by_default(tiny_llada):
    assert isinstance(tiny_llada.generate(torch.tensor([[2, 3]]), max_new_tokens=8, block_length=4), torch.Tensor)


def test_certainty_history(tiny_llada):
    prompts, attention_mask = left_padded([[2, 3], [4, 5, 6]])
    kwargs = {"max_new_tokens": 16, "block_length": 8, "entropy_threshold": 1.0, "return_dict_in_generate": True}
    plain = tiny_llada.generate(prompts, attention_mask=attention_mask, **kwargs)
    out = tiny_llada.generate(prompts, attention_mask=attention_mask, output_certainty=True, **kwargs)
    assert torch.equal(out.sequences, plain.sequences) and torch.equal(out.nfe, plain.nfe)
    assert out.entropies.shape == out.confidences.shape == (2, int(out.nfe.max()), 16)
    for row in range(2):
        for step in range(out.entropies.shape[1]):
            # Masked before a pass: what is committed in it or later, or never.
            masked = (out.commit_step[row] >= step) | (out.commit_step[row] == -1)
            taking_part = step < out.nfe[row]
            seen = ~out.entropies[row, step].isnan()
            if taking_part:
                decided = (out.commit_step[row] >= 0) & (out.commit_step[row] < step)
                assert not (seen & decided).any() and (seen | ~masked | (out.commit_step[row] == -1)).all()
            else:
                assert not seen.any()
    # What was committed by threshold was that certain, unless it was the best of its row and pass.
    entropies = out.entropies
    with torch.no_grad():
        canvas = torch.cat([prompts, torch.full((2, 16), MASK)], dim=1)
        mask = torch.cat([attention_mask, torch.ones(2, 16, dtype=torch.long)], dim=1)
        logits = tiny_llada(canvas, attention_mask=mask).logits[:, 3:]
    p = logits.double().softmax(-1)
    torch.testing.assert_close(entropies[:, 0].double(), -(p * p.log()).sum(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(out.confidences[:, 0].double(), p.amax(-1), atol=1e-4, rtol=1e-4)
    for row in range(2):
        for column in range(16):
            likeliest = sorted((token for token in range(64) if token != MASK), key=lambda t: -p[row, column, t])[:5]
            assert out.candidates[row, 0, column].tolist() == likeliest
            expected = p[row, column, likeliest].float()
            torch.testing.assert_close(out.candidate_probabilities[row, 0, column], expected, atol=1e-4, rtol=1e-4)
    decided = entropies.isnan()
    assert (out.candidates[decided] == -1).all() and out.candidate_probabilities[decided].isnan().all()
    # What is committed is the first candidate of its pass.
    for row in range(2):
        for column, step in enumerate(out.commit_step[row].tolist()):
            if step >= 0:
                assert out.candidates[row, step, column, 0] == out.sequences[row, 3 + column]


class TestSampling:
    settings = {"max_new_tokens": 16, "block_length": 8, "temperature": 1.0, "stop_at_eos": False}

    def test_seeded_by_the_global_state(self, tiny_llada):
        def draw(seed):
            torch.manual_seed(seed)
            return tiny_llada.generate(torch.tensor([[2, 3]]), **self.settings)

        assert torch.equal(draw(0), draw(0)) and not torch.equal(draw(0), draw(1))

    def test_generators_make_rows_independent_of_the_batch(self):
        model = exact_model(make_llada)
        prompts = [[2, 3], [4, 5, 6], [9]]
        ids, attention_mask = left_padded(prompts)
        batch = model.generate(ids, attention_mask=attention_mask, generator=generators(3), **self.settings)
        for row, prompt in enumerate(prompts):
            alone = model.generate(torch.tensor([prompt]), generator=generators(3)[row : row + 1], **self.settings)
            assert torch.equal(batch[row, 3:], alone[0, len(prompt) :])

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


def test_one_transfer_from_the_device_in_each_pass(tiny_llada, monkeypatch):
    """On a GPU each of these waits for everything that was queued, and the host falls behind."""
    counts = {"steps": 0, "transfers": 0}

    class Counter(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func.overloadpacket._qualified_op_name
            assert name not in {"aten::nonzero", "aten::_local_scalar_dense", "aten::masked_select", "aten::equal"}
            return func(*args, **(kwargs or {}))

    tolist, step = torch.Tensor.tolist, Decoder.step

    def counting_tolist(tensor):
        counts["transfers"] += 1
        return tolist(tensor)

    def counting_step(decoder):
        counts["steps"] += 1
        before = counts["transfers"]
        with Counter():
            rows = step(decoder)
        assert counts["transfers"] == before + 1
        return rows

    monkeypatch.setattr(torch.Tensor, "tolist", counting_tolist)
    monkeypatch.setattr(Decoder, "step", counting_step)
    ids, attention_mask = left_padded([[2, 3], [4, 5, 6], [7]])
    for cache in (None, "prefix", "dual"):
        counts["steps"] = 0
        out = tiny_llada.generate(
            ids,
            attention_mask=attention_mask,
            max_new_tokens=16,
            block_length=8,
            entropy_threshold=1.0,
            cache_implementation=cache,
            return_dict_in_generate=True,
        )
        assert counts["steps"] == out.nfe.max()


def test_the_head_runs_on_open_masks_only(tiny_llada):
    scored = []
    tiny_llada.lm_head.register_forward_hook(lambda module, args, output: scored.append(output.shape[1]))
    tiny_llada.generate(torch.tensor([[2, 3]]), max_new_tokens=16, block_length=8, stop_at_eos=False)
    assert scored == [8, 7, 6, 5, 4, 3, 2, 1] * 2
