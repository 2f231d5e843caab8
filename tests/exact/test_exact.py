# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Exact decoding: whatever the masks propose, the answer is the autoregressive model's, token by token."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear, LoraLayer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.utils import logging

from hf_dparallel.exact.gate import gate_adapters
from hf_dparallel.exact.gated_pass import acting_at
from hf_dparallel.generation.configuration import resolve
from hf_dparallel.generation.hooks.base import DecodingHook
from hf_dparallel.generation.hooks.standard import make_hooks
from hf_dparallel.models.a2d.modeling_a2d import (
    A2DLlamaForMaskedDiffusion,
)
from hf_dparallel.training.block_collator import default_collator
from hf_dparallel.training.config import CertaintyForcingConfig
from hf_dparallel.training.student import prepare_student

from ..helpers import assert_same_row, left_padded, make_llada, make_nemotron, make_tokenizer, refuses
from .helpers import (
    EOS,
    EVERYTHING,
    FAMILIES,
    LORA,
    MASK,
    VOCABULARY,
    add_adapter,
    causal_logits,
    decode,
    make_model,
    make_ragged,
    one_at_a_time,
    trained_adapter,
)


@pytest.mark.parametrize(
    ("of", "settings"),
    [
        *((of, {"confidence_threshold": EVERYTHING}) for of in FAMILIES),
        *(
            (A2DLlamaForMaskedDiffusion, settings)
            for settings in (
                {"confidence_threshold": 0.5},
                {"entropy_budget": 2.0},
                {"confidence_threshold": 1.0, "min_commits": 3},
                {"confidence_threshold": 0.3, "block_length": 1},
                {"confidence_threshold": 0.3, "block_length": 17},
                {"confidence_threshold": EVERYTHING, "cache_implementation": "none"},
                {"confidence_threshold": EVERYTHING, "stop_at_eos": False},
            )
        ),
    ],
)
def test_answers_are_those_of_the_autoregressive_model(of, settings):
    model, prompts = make_model(of), make_ragged(6)
    settings = {"confidence_threshold": None} | settings
    out, answers = decode(model, prompts, **settings)
    assert answers == [one_at_a_time(model, prompt, 30) for prompt in prompts]
    assert (out.nfe <= torch.tensor([len(answer) for answer in answers])).all() or not settings.get(
        "stop_at_eos", True
    )


def test_proposals_save_passes_and_one_token_a_pass_saves_none():
    model, prompts = make_model(), make_ragged(8)
    out, answers = decode(model, prompts)
    assert out.nfe.sum() < 0.8 * sum(map(len, answers))
    plain, same = decode(model, prompts, confidence_threshold=None)
    assert same == answers and plain.nfe.tolist() == [len(answer) for answer in answers]


def as_llama(model):
    ours = ("mask_token_id", "block_length", "causal_past", "shift_logits", "model_type")
    config = {name: value for name, value in model.config.to_dict().items() if name not in ours}
    causal = LlamaForCausalLM(LlamaConfig(**config)).to(model.dtype).eval()
    causal.load_state_dict(model.state_dict())
    return causal


def test_transformers_gives_the_same():
    model, prompts = make_model().float(), make_ragged(5)
    causal = as_llama(make_model(adapter=False).float())
    ids, attention_mask = left_padded(prompts)
    plain = {"max_new_tokens": 30, "do_sample": False, "suppress_tokens": [MASK], "pad_token_id": 0}
    expected = causal.generate(ids, attention_mask=attention_mask, eos_token_id=EOS, **plain)
    out, _ = decode(model, prompts)
    assert torch.equal(out.sequences[:, : expected.shape[1]], expected)


def test_a_row_is_the_same_alone_in_a_batch_and_in_slots():
    model, prompts = make_model(), make_ragged(9, seed=1)
    out, answers = decode(model, prompts, confidence_threshold=0.4)
    for prompt, answer, nfe in zip(prompts, answers, out.nfe.tolist(), strict=True):
        alone, of_alone = decode(model, [prompt], confidence_threshold=0.4)
        assert (of_alone[0], alone.nfe.item()) == (answer, nfe)
    rows = list(model.generate_many(prompts, batch_size=3, max_new_tokens=30, confidence_threshold=0.4))
    assert [row.tokens[: row.num_tokens].tolist() for row in rows] == answers
    assert [row.nfe for row in rows] == out.nfe.tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.5, "top_p": 0.8},
        {"temperature": 1.5, "min_p": 0.1},
    ],
)
def test_samples_are_those_of_one_token_at_a_time(sampling):
    model, prompts = make_model(), make_ragged(6, seed=2)
    warpers = [TemperatureLogitsWarper(sampling["temperature"])]
    warpers += [TopKLogitsWarper(sampling["top_k"])] if "top_k" in sampling else []
    warpers += [TopPLogitsWarper(sampling["top_p"])] if "top_p" in sampling else []
    warpers += [MinPLogitsWarper(sampling["min_p"])] if "min_p" in sampling else []

    def generators():
        return [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]

    expected = [
        one_at_a_time(model, prompt, 30, warpers, generator)
        for prompt, generator in zip(prompts, generators(), strict=True)
    ]
    out, answers = decode(model, prompts, generator=generators(), **sampling)
    assert answers == expected
    assert out.nfe.sum() < sum(map(len, answers))


def test_a_generator_goes_on_where_one_token_at_a_time_would_leave_it():
    model, num_saved = make_model(), 0
    ours, theirs = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    for prompt in make_ragged(8, seed=2):
        expected = one_at_a_time(model, prompt, 20, [TemperatureLogitsWarper(1.0)], theirs)
        out, answers = decode(model, [prompt], max_new_tokens=20, temperature=1.0, generator=ours)
        assert answers == [expected]
        num_saved += len(expected) - out.nfe.item()
    assert num_saved > 0


class EvenAfterOdd(LogitsProcessor):
    """Keeps out tokens of the parity of the last one, and fails for a sequence in which it was not asked."""

    def __call__(self, input_ids, scores):
        assert len(input_ids) == 1 and not (input_ids == MASK).any()
        parity = torch.arange(scores.shape[-1]) % 2 == input_ids[0, -1] % 2
        return scores.masked_fill(parity, -torch.inf)


@pytest.mark.parametrize(
    ("settings", "warpers"),
    [
        ({"repetition_penalty": 1.5}, [RepetitionPenaltyLogitsProcessor(1.5)]),
        ({"no_repeat_ngram_size": 2}, [NoRepeatNGramLogitsProcessor(2)]),
        ({"logits_processor": LogitsProcessorList([EvenAfterOdd()])}, [EvenAfterOdd()]),
        (
            {"suppress_tokens": [4, 5, 6]},
            [lambda ids, scores: scores.index_fill(1, torch.tensor([4, 5, 6]), -torch.inf)],
        ),
    ],
)
def test_processors_see_what_they_would_one_token_at_a_time(settings, warpers):
    model, prompts = make_model(), make_ragged(5, seed=3)
    _, answers = decode(model, prompts, **settings)
    assert answers == [one_at_a_time(model, prompt, 30, warpers) for prompt in prompts]


@pytest.mark.parametrize("exact", [True, False])
def test_the_callers_processors_come_after_the_repetition_penalty(exact):
    """As in transformers; with one token a pass the answers are its own, with and without verification."""
    model, prompts = make_model(adapter=False), make_ragged(5, seed=4)
    model.lm_head.weight.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0))

    def bias(input_ids, scores):
        return scores + torch.linspace(-2, 2, VOCABULARY)

    for prompt in prompts:
        kwargs = {"repetition_penalty": 1.8, "logits_processor": LogitsProcessorList([bias]), "exact": exact}
        row = model.generate(torch.tensor([prompt]), max_new_tokens=12, denoising_steps=12, **kwargs)[0]
        answer = one_at_a_time(model, prompt, 12, [RepetitionPenaltyLogitsProcessor(1.8), bias])
        assert row[len(prompt) :][: len(answer)].tolist() == answer


@pytest.mark.parametrize(
    ("settings", "processor"),
    [
        ({"repetition_penalty": 1.8}, RepetitionPenaltyLogitsProcessor(1.2)),
        ({"no_repeat_ngram_size": 2}, NoRepeatNGramLogitsProcessor(3)),
        ({"suppress_tokens": [4, 5, 6]}, SuppressTokensLogitsProcessor([7])),
    ],
)
def test_a_callers_processor_replaces_the_one_of_a_setting(caplog, settings, processor):
    """As in transformers, which is the oracle, and warns."""
    logging.get_logger("hf_dparallel").warning_once.cache_clear()
    model = make_model(adapter=False)
    model.lm_head.weight.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    llama = as_llama(model)

    def without_mask(input_ids, scores):
        return scores.index_fill(1, torch.tensor([MASK]), -torch.inf)

    for prompt in make_ragged(5, seed=4):
        ids = torch.tensor([prompt])
        theirs = LogitsProcessorList([without_mask, processor])
        expected = llama.generate(ids, do_sample=False, logits_processor=theirs, max_new_tokens=16, **settings)
        ours = LogitsProcessorList([processor])
        out = model.generate(ids, logits_processor=ours, max_new_tokens=16, **settings)
        assert out[0, : expected.shape[1]].tolist() == expected[0].tolist()
    assert f"`{next(iter(settings))}=" in caplog.text and type(processor).__name__ in caplog.text


@pytest.mark.parametrize("exact", [True, False])
def test_every_committed_token_has_its_certainty(exact):
    settings = {"confidence_threshold": 0.05, "output_certainty": True, "return_dict_in_generate": True}
    ids, attention_mask = left_padded(make_ragged(4, seed=5))
    out = make_model().generate(ids, attention_mask=attention_mask, max_new_tokens=12, exact=exact, **settings)
    is_committed = out.commit_step >= 0
    entropies = out.entropies.gather(1, out.commit_step.clamp(min=0)[:, None])[:, 0]
    assert not entropies[is_committed].isnan().any()


class OneTokenOn(LogitsProcessor):
    """Keeps tokens out by what it has seen, like a grammar that moves on with each token that it is asked after."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        ids = input_ids[0].tolist()
        assert not self.seen or ids[:-1] == self.seen
        assert ids[-1] != EOS
        self.seen = ids
        return scores.masked_fill((torch.arange(VOCABULARY) + sum(ids)) % 3 == 0, -torch.inf)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_is_asked_once_for_each_token(temperature):
    model, num_saved = make_model(), 0
    for seed, prompt in enumerate(make_ragged(8, seed=11)):
        warpers = [OneTokenOn()]
        sampling = {}
        if temperature:
            warpers.append(TemperatureLogitsWarper(temperature))
            sampling = {"temperature": temperature, "generator": torch.Generator().manual_seed(seed)}
        expected = one_at_a_time(
            model, prompt, 30, warpers, torch.Generator().manual_seed(seed) if temperature else None
        )
        out, answers = decode(model, [prompt], logits_processor=LogitsProcessorList([OneTokenOn()]), **sampling)
        assert answers == [expected]
        num_saved += len(expected) - out.nfe.item()
    assert num_saved > 0


def test_a_processor_has_the_last_word():
    class Forced(LogitsProcessor):
        def __call__(self, input_ids, scores):
            token = EOS if input_ids.shape[1] == 4 else 4
            return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([token]), 0.0)

    settings = {"logits_processor": LogitsProcessorList([Forced()]), "suppress_tokens": [4], "min_new_tokens": 9}
    assert decode(make_model(), [[2, 3]], **settings)[1] == [[4, 4, EOS]]
    model = make_llada()
    eos = model.config.eos_token_id
    out = model.generate(torch.tensor([[2, 3]]), max_new_tokens=4, block_length=4, **settings | {"min_new_tokens": 4})
    assert (out[0, 2:] == 4).all() and eos != 4


def test_min_new_tokens_and_stop_strings():
    model, prompts, tokenizer = make_model(), make_ragged(6, seed=4), make_tokenizer()
    _, longer = decode(model, prompts, min_new_tokens=30)
    assert all(EOS not in answer[:-1] for answer in longer)
    text = tokenizer.decode(longer[0][10:12])
    out, _ = decode(model, prompts[:1], min_new_tokens=30, stop_strings=text, tokenizer=tokenizer)
    tokens = out.sequences[0, len(prompts[0]) :].tolist()
    end = next(n for n in range(1, 31) if text in tokenizer.decode(longer[0][:n]))
    assert tokens[:end] == longer[0][:end] and set(tokens[end:]) <= {0, EOS}


def test_probabilities_are_the_causal_ones():
    model, prompts = make_model(), make_ragged(3, seed=5)
    out, answers = decode(model, prompts, output_certainty=True)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        for place, step in enumerate(out.commit_step[row].tolist()[: len(answer)]):
            scores = causal_logits(model, prompt + answer[:place])
            expected = scores.softmax(-1)[answer[place]]
            assert float(out.confidences[row, step, place]) == pytest.approx(float(expected), abs=1e-4)


def test_a_streamer_gets_the_answer_in_order():
    model, prompt = make_model(), make_ragged(1, seed=6)[0]
    sent = []
    streamer = SimpleNamespace(put=lambda value: sent.extend(value.flatten().tolist()), end=lambda: sent.append("end"))
    model.generate(torch.tensor([prompt]), max_new_tokens=30, confidence_threshold=EVERYTHING, streamer=streamer)
    assert sent == prompt + one_at_a_time(model, prompt, 30) + ["end"]


class WritesAfterEach(DecodingHook):
    """Keeps the first token of each pass, and writes two more over what was proposed, as a JSON schema does."""

    def change(self, prediction, change):
        accepted = torch.zeros_like(change.commits)
        accepted[:, 0] = True
        for row, status in enumerate(self.canvas.status):
            self.canvas.write(row, status.num_decided + 1, [2 + int(change.tokens[row, 0]) % 7, 9])
        return change._replace(commits=accepted)


def test_written_tokens_replace_the_keys_of_proposals():
    model, answers = make_model(), {}
    # Answers that depend on all tokens before.
    for name, weight in model.named_parameters():
        if "proj.weight" in name or "base_layer" in name or "lm_head" in name:
            weight.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    for threshold in (None, EVERYTHING):
        config = resolve(model, max_new_tokens=30, min_new_tokens=30, confidence_threshold=threshold)
        decoder = model.make_decoder(config, [*make_hooks(config), WritesAfterEach()])
        decoder.add_prompts({row: torch.tensor(ids) for row, ids in enumerate(make_ragged(8, seed=12))})
        rows = []
        with torch.no_grad():
            while decoder:
                rows += decoder.step()
        answers[threshold] = {row.index: row.tokens.tolist() for row in rows}
    assert answers[None] == answers[EVERYTHING]


def test_a_gate_gives_what_the_offsets_of_peft_give():
    model, ids = make_model(), torch.randint(2, MASK, (2, 6))
    assert gate_adapters(model)
    with acting_at(torch.arange(6).expand(2, -1) > 3):
        gated = model(ids).logits
    layers = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
    assert layers and not any("forward" in vars(layer) for layer in layers)
    for layer in layers:
        layer.register_forward_pre_hook(lambda *args: (args[1], {"alora_offsets": [2, 2]}), with_kwargs=True)
    torch.testing.assert_close(gated, model(ids).logits)
    model.disable_adapters()
    assert not gate_adapters(model)


def test_dropout_of_one_adapter_does_not_reach_another():
    model, ids = make_model().train(), torch.randint(2, MASK, (2, 6))
    gate_adapters(model)
    with acting_at(torch.ones_like(ids, dtype=torch.bool)):
        expected = model(ids).logits
    # It changes nothing itself: half of its weights are 0 at first.
    model.add_adapter(LoraConfig(**LORA, lora_dropout=0.9), "before")
    model.set_adapter(["before", "default"])
    gate_adapters(model)
    with acting_at(torch.ones_like(ids, dtype=torch.bool)):
        torch.testing.assert_close(model(ids).logits, expected)


def test_a_pass_without_masks_runs_the_layers_of_the_base(monkeypatch):
    model, ids = make_model(), torch.randint(2, MASK, (2, 6))
    expected = make_model(adapter=False)(ids).logits
    gate_adapters(model)
    assert torch.equal(copy.deepcopy(model)(ids).logits, model(ids).logits)
    with monkeypatch.context() as patched:
        patched.setattr(Linear, "forward", lambda *given: 1 / 0)
        with acting_at(None):
            assert torch.equal(model(ids).logits, expected)
        with acting_at(ids > 0), pytest.raises(ZeroDivisionError):
            model(ids)

    # An ordinary adapter beside acts on all tokens.
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False), "style")
    model.set_adapter(["style", "default"])
    gate_adapters(model)
    with acting_at(None):
        styled = model(ids).logits
    assert not torch.allclose(styled, expected)
    model.set_adapter("style")
    torch.testing.assert_close(model(ids).logits, styled)


def test_attention_need_not_convert_the_mask_in_every_layer():
    masks = []
    model = make_model().float()
    model.model.register_forward_pre_hook(lambda module, given, kwargs: masks.append(kwargs), with_kwargs=True)
    decode(model, make_ragged(3))
    assert masks and all(kwargs["attention_mask"].dtype == torch.float32 for kwargs in masks)


def test_threads_share_a_model():
    model, prompts = make_model(), make_ragged(6, seed=13)
    expected = [decode(model, [prompt])[0] for prompt in prompts]

    def answer(number):
        prompt = prompts[number % 6]
        if number % 4 == 3:
            # A pass of another thread, without a gate, stays one without.
            return model(torch.tensor([prompt])).logits
        return decode(model, [prompt])[0]

    plain = make_model(adapter=False)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(answer, range(24)))
    finally:
        sys.setswitchinterval(interval)
    for number, out in enumerate(found):
        if number % 4 == 3:
            assert torch.equal(out, plain(torch.tensor([prompts[number % 6]])).logits)
        else:
            same = expected[number % 6]
            assert torch.equal(out.sequences, same.sequences) and torch.equal(out.nfe, same.nfe)
    assert torch.equal(decode(model, prompts[:1])[0].sequences, expected[0].sequences)


def test_free_decoding_commits_what_masks_propose_in_fewer_passes():
    model, prompts = make_model(), make_ragged(6, seed=7)
    exact, _ = decode(model, prompts, min_new_tokens=30)
    free, _ = decode(model, prompts, min_new_tokens=30, exact=False)
    assert free.nfe.sum() < exact.nfe.sum()
    assert free.nfe.tolist() == [6] * 6
    # The first token of each pass is the causal one of what stands before it.
    width = max(map(len, prompts))
    for row, prompt in enumerate(prompts):
        tokens = free.sequences[row, width:].tolist()
        for place in (0, 5, 10):
            scores = causal_logits(model, prompt + tokens[:place])
            scores[[MASK, EOS]] = -torch.inf
            assert int(scores.argmax()) == tokens[place]


def test_nemotron_is_verified_by_its_own_causal_mode():
    model = make_nemotron().double().eval()
    with torch.no_grad():
        model.lm_head.weight.copy_(8 * model.model.embed_tokens.weight.roll(1, dims=0))
    mask, eos = model.config.mask_token_id, model.generation_config.eos_token_id or model.config.eos_token_id
    prompts = [[3, 4, 5], [6], [7, 8, 3, 4, 9, 5]]
    ids, attention_mask = left_padded(prompts)
    settings = {"max_new_tokens": 24, "confidence_threshold": EVERYTHING, "exact": True, "stop_at_eos": False}
    out = model.generate(ids, attention_mask=attention_mask, return_dict_in_generate=True, **settings)
    for row, prompt in enumerate(prompts):
        expected = list(prompt)
        for _ in range(24):
            scores = causal_logits(model, expected)
            scores[mask] = -torch.inf
            expected.append(int(scores.argmax()))
        assert out.sequences[row, -24:].tolist() == expected[len(prompt) :], eos
    assert out.nfe.max() <= 24


class TestAdapter:
    def test_it_acts_on_masks_only(self):
        model = make_model()
        plain = make_model(adapter=False)
        ids = torch.tensor([make_ragged(1)[0]])
        with torch.no_grad():
            assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)
            gate_adapters(model)
            with acting_at(torch.ones_like(ids, dtype=torch.bool)):
                assert not torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)
            assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)

    def test_a_peft_model_and_a_copy_decode_the_same(self):
        prompts = make_ragged(4, seed=8)
        model = make_model()
        expected, _ = decode(model, prompts)
        copied, _ = decode(copy.deepcopy(model), prompts)
        assert torch.equal(copied.sequences, expected.sequences) and torch.equal(copied.nfe, expected.nfe)
        wrapped = get_peft_model(make_model(adapter=False), LoraConfig(**LORA))
        for name, weight in wrapped.get_base_model().named_parameters():
            if "lora" in name:
                weight.data = trained_adapter(A2DLlamaForMaskedDiffusion, 0)[name]
        ids, attention_mask = left_padded(prompts)
        settings = {"max_new_tokens": 30, "confidence_threshold": EVERYTHING, "return_dict_in_generate": True}
        out = wrapped.generate(input_ids=ids, attention_mask=attention_mask, **settings)
        assert torch.equal(out.sequences, expected.sequences) and torch.equal(out.nfe, expected.nfe)

    def test_several_adapters_are_switched(self):
        model, prompts = make_model(), make_ragged(4, seed=9)
        _, answers = decode(model, prompts)
        add_adapter(model, seed=5, name="other")
        for name in ("default", "other"):
            model.set_adapter(name)
            out, same = decode(model, prompts)
            alone = make_model(adapter=False)
            add_adapter(alone, seed=0 if name == "default" else 5)
            assert same == answers and torch.equal(out.nfe, decode(alone, prompts)[0].nfe)

    def test_one_with_a_mask_embedding_is_switched_with_one_without(self):
        model, prompts = make_model(), make_ragged(4, seed=9)
        expected, answers = decode(model, prompts)
        embedding = LoraConfig(**LORA, trainable_token_indices={"embed_tokens": [MASK]}, init_lora_weights=False)
        model.add_adapter(embedding, "embedding")
        for name, nfe in (("embedding", None), ("default", expected.nfe)):
            model.set_adapter(name)
            out, same = decode(model, prompts)
            assert same == answers and (nfe is None or torch.equal(out.nfe, nfe))

    @pytest.mark.parametrize(
        "setting",
        [
            {"bias": "lora_only"},
            {"modules_to_save": ["lm_head"]},
            {"trainable_token_indices": {"embed_tokens": [MASK, 5]}},
            {"target_modules": ["q_proj", "lm_head"]},
            {"target_modules": ["q_proj", "embed_tokens"]},
            {"target_modules": ".*"},
            {"target_parameters": ["model.layers.0.mlp.up_proj.weight"]},
            {"use_dora": True},
            {"layer_replication": [(0, 2), (1, 2)]},
        ],
    )
    def test_what_would_change_the_answers_is_refused_in_training(self, setting):
        with pytest.raises(ValueError, match=f"`{next(iter(setting))}="):
            prepare_student(make_model(adapter=False), peft_config=LoraConfig(**setting))
        kept = LoraConfig(trainable_token_indices={"embed_tokens": [MASK]})
        assert prepare_student(make_model(adapter=False), peft_config=kept)
        # One after the vocabulary has no row.
        model = make_model(adapter=False)
        model.config.mask_token_id = VOCABULARY
        after = LoraConfig(trainable_token_indices={"embed_tokens": [VOCABULARY]})
        with pytest.raises(ValueError, match="`trainable_token_indices="):
            prepare_student(model, peft_config=after)

    def test_several_gpus_in_one_process_are_refused(self):
        args = CertaintyForcingConfig(use_cpu=True)
        args._n_gpu = 2
        with refuses("n_gpu", "accelerate launch"):
            default_collator(args, make_model(), make_tokenizer())

    def test_merging_is_refused_by_name(self):
        with pytest.raises(ValueError, match="acts on masks only"):
            make_model().merge_and_unload()


def test_compiled_passes_give_the_same(graphs):
    """The adapter on masks is part of the graphs."""
    model, num_graphs = make_model(), []
    for prompt in make_ragged(3, seed=10):
        expected, answers = decode(model, [prompt])
        out, same = decode(model, [prompt], compile_config=graphs.config)
        assert same == answers and torch.equal(out.nfe, expected.nfe)
        num_graphs.append((graphs.num_graphs, len(graphs.recordings)))
    assert num_graphs == [(2, 2)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"repetition_penalty": 1.3}])
def test_compiled_rows_that_come_and_go_are_the_same(graphs, settings):
    model, prompts = make_model(), [*make_ragged(7, seed=3), [2 + number % 20 for number in range(70)]]
    settings = {"confidence_threshold": EVERYTHING, "max_new_tokens": 30} | settings
    settings |= {"batch_size": 3, "generator_for": lambda number: torch.Generator().manual_seed(number)}
    rows = model.generate_many(prompts, compile_config=graphs.config, **settings)
    for row, other in zip(rows, model.generate_many(prompts, **settings), strict=True):
        assert_same_row(row, other, row.index)


@pytest.mark.slow
def test_threads_that_share_a_compiled_model(graphs):
    model, prompts = make_model(), make_ragged(6, seed=5)
    expected = [decode(model, [prompt])[1] for prompt in prompts]
    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(lambda prompt: decode(model, [prompt], compile_config=graphs.config)[1], prompts * 3)
    assert list(answers) == expected * 3


@pytest.mark.parametrize(
    ("setting", "settings"),
    [
        ("revocation_threshold", {"revocation_threshold": 0.9}),
        ("editing_threshold", {"editing_threshold": 0.9}),
        ("max_active_blocks", {"max_active_blocks": 2}),
        ("max_new_tokens", {"max_new_tokens": 0}),
        ("denoising_steps", {"denoising_steps": 8, "confidence_threshold": None}),
    ],
)
def test_what_has_no_meaning_is_refused(setting, settings):
    with refuses(setting):
        decode(make_model(), [[2, MASK, 3]] if setting == "max_new_tokens" else [[2, 3]], **settings)


def test_a_model_with_another_attention_is_refused():
    with refuses("exact", match="causal"):
        make_llada().generate(torch.tensor([[2, 3]]), max_new_tokens=8, exact=True)
