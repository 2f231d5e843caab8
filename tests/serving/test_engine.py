# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The engine: answers as if alone, passes shared, slots freed, failures contained."""

import threading

import pytest
import torch

from hf_dparallel.generation.decoder import Decoder
from hf_dparallel.serving.engine import Engine, RequestError

from ..helpers import make_llada, make_sdar
from .helpers import Gate, ask, ask_once, make_prompt, submit, wait_for


@pytest.fixture
def model():
    # Its own, because of the hooks; in float64 for exact arithmetic.
    return make_llada().double()


@pytest.fixture
def make_engine(model):
    engines = []

    def make(num_slots=4, max_waiting=100):
        engines.append(Engine(model, num_slots, max_waiting))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    ("make_model", "cache"), [(make_llada, None), (make_llada, "dual"), (make_sdar, None), (make_sdar, "block")]
)
def test_answers_are_those_of_each_prompt_alone(make_model, cache):
    model, settings = make_model().double(), [{}, {"entropy_threshold": 0.2}, {"temperature": 0.8}]
    prompts = [
        make_prompt(model, [2 + n % 50] * (1 + n % 7), seed=n, cache_implementation=cache, **settings[n % 3])
        for n in range(9)
    ]
    engine = Engine(model, 4, 100)
    for prompt, answer in zip(prompts, ask(engine, prompts), strict=True):
        alone = model.generate(
            prompt.input_ids[None],
            prompt.config,
            generator=torch.Generator().manual_seed(prompt.seed),
            return_dict_in_generate=True,
        )
        new_tokens = alone.sequences[0, len(prompt.input_ids) :].tolist()
        end = new_tokens.index(5) + 1 if 5 in new_tokens else 16
        assert answer.tokens == new_tokens[:end] and answer.nfe == alone.nfe.item()
        assert answer.finish_reason == ("stop" if 5 in new_tokens else "length") and answer.error is None
    assert not engine.active and not engine.waiting
    engine.close()


def test_a_model_that_ignores_padding_answers_one_prompt_at_a_time(model, make_engine):
    model.hides_padding = False
    assert make_engine(num_slots=4).num_slots == 1


def test_logprobs_are_of_the_pass_that_committed_each_token_last(model, make_engine):
    """Oracle: another forward pass over what stood before that one, of each row alone."""
    revising = {"revocation_threshold": 0.9, "entropy_bound": 2.0, "entropy_threshold": None}
    settings = [{}, {"temperature": 0.8}, revising]
    prompts = [make_prompt(model, [2 + n] * (1 + n % 4), seed=n, **settings[n % 3]) for n in range(8)]
    for n, prompt in enumerate(prompts[:6]):
        prompt.num_logprobs = n % 4
    num_revisions = 0
    for prompt, answer in zip(prompts, ask(make_engine(num_slots=8), prompts), strict=True):
        if prompt.num_logprobs is None:
            assert not answer.logprobs
            continue
        prompt.config.output_certainty = True
        generator = torch.Generator().manual_seed(prompt.seed)
        ids, length = prompt.input_ids, len(answer.tokens)
        alone = model.generate(ids[None], prompt.config, generator=generator, return_dict_in_generate=True)
        num_revisions += alone.num_revisions.item()
        standing = alone.standing[0, alone.commit_step[0, :length]]
        canvases = torch.cat([ids.expand(length, -1), standing.masked_fill(standing < 0, 63)], dim=1)
        with torch.no_grad():
            logits = model(canvases).logits[:, len(ids) :]
        log_probs = logits.diagonal().T.log_softmax(-1)
        expected = log_probs.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        assert [each.logprob for each in answer.logprobs] == pytest.approx(expected.tolist(), abs=1e-9)
        log_probs[:, 63] = -torch.inf
        top = log_probs.topk(prompt.num_logprobs)
        told = [list(zip(*each.top, strict=True)) or [(), ()] for each in answer.logprobs]
        assert [list(token_ids) for token_ids, _ in told] == top.indices.tolist()
        assert torch.allclose(torch.tensor([values for _, values in told], dtype=torch.double), top.values)
    assert num_revisions > 0


def test_max_tokens_gives_the_beginning_of_the_answer_and_frees_the_slot(model, make_engine):
    whole, cut = ask(make_engine(), [make_prompt(model, [2, 3]), make_prompt(model, [2, 3], max_tokens=3)])
    assert len(whole.tokens) > 4
    assert cut.tokens == whole.tokens[:3] and cut.finish_reason == "length" and cut.nfe < whole.nfe
    one_by_one = {"denoising_steps": 16, "commit_order": "left_to_right", "entropy_threshold": None}
    (cut,) = ask(make_engine(), [make_prompt(model, [2, 3], max_tokens=3, **one_by_one)])
    assert (len(cut.tokens), cut.nfe) == (3, 3)


def test_requests_with_the_same_settings_share_passes_and_slots_are_refilled(model, make_engine):
    gate, engine = Gate(model), make_engine(num_slots=3)
    prompts = [make_prompt(model, [n, 3], stop_at_eos=False) for n in range(6, 12)]
    submit(engine, prompts[0])
    wait_for(lambda: gate.rows)
    submit(engine, *prompts[1:])
    gate.open.set()
    assert all(prompt.listener.ended.wait(30) for prompt in prompts)
    assert gate.rows[0] == 1 and gate.rows[1] == 3 and max(gate.rows) == 3
    assert sum(gate.rows) == sum(prompt.listener.nfe for prompt in prompts)


def test_groups_with_different_settings_take_turns(model, make_engine):
    gate, engine = Gate(model), make_engine(num_slots=5)
    prompts = [make_prompt(model, [n, 3], entropy_threshold=float(n > 8)) for n in range(6, 11)]
    submit(engine, *prompts)
    gate.open.set()
    assert all(prompt.listener.ended.wait(30) for prompt in prompts)
    assert gate.rows[:4] == [3, 2, 3, 2]


def test_giving_up_frees_slots_and_places_in_the_queue(model, make_engine):
    gate, engine = Gate(model), make_engine(num_slots=2, max_waiting=2)
    prompts = [make_prompt(model, [n, 3]) for n in range(6, 10)]
    submit(engine, *prompts)
    wait_for(lambda: gate.rows)
    assert (len(engine.active), len(engine.waiting)) == (2, 2)
    prompts[0].is_given_up = prompts[2].is_given_up = True
    gate.open.set()
    assert all(prompts[n].listener.ended.wait(30) for n in (1, 3))
    wait_for(lambda: not engine.active and not engine.waiting)
    assert not prompts[0].listener.ended.is_set() and not prompts[2].listener.ended.is_set()
    assert gate.rows[1] == 2  # the fourth has taken the place of the first
    assert ask(engine, [make_prompt(model, [6, 3])])[0].finish_reason


def test_giving_up_a_prompt_before_the_first_pass_of_its_settings(model, make_engine):
    gate, engine = Gate(model), make_engine()
    first, second = make_prompt(model, [6, 3]), make_prompt(model, [7, 3], entropy_threshold=0.5)
    submit(engine, first, second)
    wait_for(lambda: gate.rows)
    second.is_given_up = True
    gate.open.set()
    assert first.listener.ended.wait(30) and first.listener.error is None
    assert engine.is_alive and ask(engine, [make_prompt(model, [7, 3])])[0].finish_reason


def test_overload_is_refused_and_passes(model, make_engine):
    gate, engine = Gate(model), make_engine(num_slots=1, max_waiting=1)
    first = make_prompt(model, [6, 3])
    engine.submit(first)
    wait_for(lambda: gate.rows)
    second = make_prompt(model, [7, 3])
    engine.submit(second)
    with pytest.raises(RequestError, match="1 of at most 1 wait"):
        engine.submit(make_prompt(model, [8, 3]))
    gate.open.set()
    assert first.listener.ended.wait(30) and second.listener.ended.wait(30)
    assert ask(engine, [make_prompt(model, [7, 3]), make_prompt(model, [8, 3])])[1].finish_reason


def test_a_burst_on_an_idle_engine_fills_all_slots(model, make_engine):
    gate, engine = Gate(model), make_engine(num_slots=4, max_waiting=0)
    prompts = [make_prompt(model, [n, 3]) for n in range(6, 10)]
    with engine._changed:  # the thread does not wake between the requests
        for prompt in prompts:
            engine.submit(prompt)
        with pytest.raises(RequestError, match="4 of at most 0 wait"):
            engine.submit(make_prompt(model, [10, 3]))
    gate.open.set()
    assert all(prompt.listener.ended.wait(30) for prompt in prompts)


def test_a_pass_that_fails_ends_its_requests_and_no_others(model, make_engine, caplog):
    def fail(module, args, kwargs):
        if (kwargs["input_ids"] == 9).any():
            raise torch.OutOfMemoryError("no memory")

    hook = model.model.register_forward_pre_hook(fail, with_kwargs=True)
    engine = make_engine()
    good, bad = make_prompt(model, [6, 3]), make_prompt(model, [9, 3], entropy_threshold=0.5)
    ask(engine, [good, bad])
    assert good.listener.finish_reason and isinstance(bad.listener.error, torch.OutOfMemoryError)
    hook.remove()
    assert engine.is_alive and ask(engine, [bad := make_prompt(model, [9, 3])])[0].finish_reason


@pytest.mark.parametrize(("make_model", "cache"), [(make_llada, None), (make_llada, "dual"), (make_sdar, "block")])
def test_a_prompt_that_does_not_fit_into_memory_ends_alone(make_model, cache, caplog):
    """Those that are under way and those that enter with it give the answers that they give alone."""
    model = make_model().double()

    def fail(module, args, kwargs):
        rows.append(len(kwargs["input_ids"]))
        if (kwargs["input_ids"] == 9).any():
            raise torch.OutOfMemoryError("no memory")

    settings, rows = {"cache_implementation": cache, "stop_at_eos": False}, []
    expected = [ask_once(model, [make_prompt(model, [n, 3], **settings)])[0] for n in (6, 7, 8)]
    hook = model.model.register_forward_pre_hook(fail, with_kwargs=True)
    engine = Engine(model, 4, 100)
    first, *others, bad = (make_prompt(model, [n, 3], **settings) for n in (6, 7, 8, 9))
    listener = first.listener
    # A token has come, so the others enter while it is under way.
    first.listener = lambda told: (listener(told), told.nfe == 4 and submit(engine, others[0], bad, others[1]))
    engine.submit(first)
    assert listener.ended.wait(60) and all(each.listener.ended.wait(60) for each in (*others, bad))
    hook.remove()
    engine.close()
    assert isinstance(bad.listener.error, torch.OutOfMemoryError)
    for told, alone in zip((listener, *(each.listener for each in others)), expected, strict=True):
        assert told.error is None and told.finish_reason
        # The other cache is an approximation, which is computed anew after the failure.
        assert cache == "dual" or (told.tokens, told.nfe) == (alone.tokens, alone.nfe)


def test_a_prompt_that_cannot_be_decoded_ends_alone(model, make_engine, monkeypatch, caplog):
    def fail(config, *args):
        if config.entropy_threshold == 0.5:
            raise OverflowError("too large")
        return Decoder(model, config, *args)

    monkeypatch.setattr(model, "make_decoder", fail)
    engine = make_engine()
    bad, good = ask(engine, [make_prompt(model, [9, 3], entropy_threshold=0.5), make_prompt(model, [9, 3])])
    assert isinstance(bad.error, OverflowError) and good.finish_reason and engine.is_alive


def test_a_decoding_thread_that_fails_leaves_nobody_waiting(model, make_engine, monkeypatch, caplog):
    def fail():
        raise OverflowError("unforeseen")

    engine = make_engine(num_slots=1)
    monkeypatch.setattr(engine, "_run_pass", fail)
    answers = ask(engine, [make_prompt(model, [9, 3]), make_prompt(model, [9, 3])])
    assert [answer.error.status for answer in answers] == [503, 503]
    assert not engine.is_alive
    assert "The decoding thread has failed" in caplog.text


def test_nan_ends_its_own_request_only(model, make_engine):
    def spoil(module, args, output):
        output[(seen[-1] == 9).any(dim=1)] = torch.nan
        return output

    seen = []
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    model.lm_head.register_forward_hook(spoil)
    prompts = [make_prompt(model, [6, 3]), make_prompt(model, [9, 3])]
    prompts[1].num_logprobs = 0
    good, bad = ask(make_engine(), prompts)
    assert good.finish_reason and isinstance(bad.error, FloatingPointError)


def test_closing_ends_what_is_under_way(model, make_engine):
    gate, engine = Gate(model), make_engine(num_slots=1)
    prompts = [make_prompt(model, [6, 3]), make_prompt(model, [7, 3])]
    submit(engine, *prompts)
    wait_for(lambda: gate.rows)
    closing = threading.Thread(target=engine.close)
    closing.start()
    gate.open.set()
    closing.join(30)
    assert [prompt.listener.error.status for prompt in prompts] == [503, 503]
    assert not engine.is_alive
    with pytest.raises(RequestError, match="The server is shutting down."):
        engine.submit(make_prompt(model, [6, 3]))
