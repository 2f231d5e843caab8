# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The hooks around the loop: streamers, logits processors and stopping criteria."""

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    SuppressTokensLogitsProcessor,
    TextDiffusionStreamer,
    TextIteratorStreamer,
)

from ..helpers import Recorder, exact_model, left_padded, make_dream, make_llada, make_sdar, make_word_tokenizer


PROMPT = torch.tensor([[2, 3, 4]])
SMALL = {"max_new_tokens": 16, "block_length": 8, "entropy_threshold": 1.0, "stop_at_eos": False}


@pytest.fixture
def word_tokenizer():
    return make_word_tokenizer()


VERIFIED = {"max_new_tokens": 20, "block_length": 8, "entropy_bound": 2.0, "revocation_threshold": 0.9}


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (make_llada, SMALL),
        (make_dream, VERIFIED),
        (make_llada, {"max_new_tokens": 16, "block_length": 6, "soft_threshold": 0.3}),
        (make_sdar, {"max_new_tokens": 10, "block_length": 4, "entropy_threshold": 0.5}),
    ],
)
def test_streamer_gets_the_tokens_in_order_and_drafts_of_the_rest(make, settings):
    """A token that was streamed never changes, even where tokens are revised."""
    streamer, settings = Recorder(), {"stop_at_eos": False, "return_dict_in_generate": True, **settings}
    out = exact_model(make).generate(PROMPT, streamer=streamer, **settings)
    assert streamer.tokens == out.sequences[0].tolist() and streamer.events[-1] == "end"
    assert streamer.prompt == PROMPT[0].tolist()
    assert "revocation_threshold" not in settings or out.num_revisions > 0
    # No draft goes beyond the block or the answer.
    ends = [3 + end for end in range(settings["block_length"], settings["max_new_tokens"], settings["block_length"])]
    assert all(63 not in draft and len(draft) <= out.sequences.shape[1] for draft in streamer.drafts)
    assert make is make_sdar or {len(draft) for draft in streamer.drafts} <= {*ends, out.sequences.shape[1]}
    # None where a block is decided as a whole.
    assert len(streamer.drafts) >= out.nfe.item() - len(ends) - 1 - (make is make_sdar)


def test_streamer_stops_at_the_end_of_the_answer(tiny_llada):
    eos = tiny_llada.generate(PROMPT, **SMALL)[0, 10].item()
    streamer = Recorder()
    out = tiny_llada.generate(PROMPT, streamer=streamer, eos_token_id=eos, **(SMALL | {"stop_at_eos": True}))
    new = out[0, 3:].tolist()
    assert streamer.tokens[3:] == new[: new.index(eos) + 1]
    # Nothing follows the end, so no draft of it is shown.
    assert streamer.events[-2:] == ["put", "end"]


def test_streamers_of_transformers(tiny_llada, word_tokenizer, capsys):
    expected = word_tokenizer.decode(tiny_llada.generate(PROMPT, **SMALL)[0, 3:])
    streamer = TextDiffusionStreamer(word_tokenizer, skip_prompt=True)
    tiny_llada.generate(PROMPT, streamer=streamer, **SMALL)
    printed = capsys.readouterr().out
    assert "\033[33m" in printed  # a draft, in yellow
    confirmed = "".join(part.split("\0337")[0] for part in printed.split("\0338\033[J"))
    assert confirmed.split() == expected.split()

    iterator = TextIteratorStreamer(word_tokenizer, skip_prompt=True)
    tiny_llada.generate(PROMPT, streamer=iterator, **SMALL)
    assert "".join(iterator).split() == expected.split()


def test_logits_processors_of_transformers(tiny_llada):
    plain = tiny_llada.generate(PROMPT, **SMALL)
    banned = plain[0, 3:].unique().tolist()
    processors = LogitsProcessorList([SuppressTokensLogitsProcessor(banned), RepetitionPenaltyLogitsProcessor(1.3)])
    out = tiny_llada.generate(PROMPT, logits_processor=processors, **SMALL)
    assert not torch.isin(out[0, 3:], torch.tensor(banned)).any()
    # A processor that looks at the length of the row sees the whole canvas.
    processors = LogitsProcessorList([MinLengthLogitsProcessor(19, eos_token_id=banned)])
    assert torch.equal(tiny_llada.generate(PROMPT, logits_processor=processors, **SMALL), plain)


class AfterToken(StoppingCriteria):
    def __init__(self, token):
        self.token = token
        self.lengths = []

    def __call__(self, input_ids, scores, **kwargs):
        self.lengths.append(input_ids.shape[1])
        self.answer_start = kwargs["answer_start"]
        return input_ids[:, -1] == self.token


def test_stopping_criteria_mean_what_they_mean_left_to_right(tiny_llada):
    plain = tiny_llada.generate(PROMPT, **SMALL)[0, 3:].tolist()
    criterion = AfterToken(plain[5])
    length = plain.index(plain[5]) + 1
    out = tiny_llada.generate(
        PROMPT,
        stopping_criteria=StoppingCriteriaList([criterion]),
        return_dict_in_generate=True,
        pad_token_id=0,
        **SMALL,
    )
    assert out.sequences[0, 3:].tolist() == plain[:length] + [0] * (16 - length)
    assert out.tokens_per_forward.item() == pytest.approx(length / out.nfe.item())
    assert criterion.answer_start == 3
    # Every decided length once, in order, however many tokens a pass has committed.
    assert criterion.lengths == list(range(4, 4 + len(criterion.lengths))) and len(criterion.lengths) >= length


def test_nothing_behind_the_end_token_stops_an_answer(word_tokenizer):
    """One pass decides the end token and, after it, the stop string."""
    model = make_llada()

    def score(inputs, where, *args, **kwargs):
        # Behind a prompt of three tokens, and later masks have a smaller probability.
        return 30.0 * (torch.arange(64) == where[..., None])

    model.score = score
    settings = SMALL | {"stop_at_eos": True, "return_dict_in_generate": True, "pad_token_id": 0}
    out = model.generate(PROMPT, eos_token_id=5, stop_strings=["w7"], tokenizer=word_tokenizer, **settings)
    assert out.sequences[0].tolist() == [2, 3, 4, 3, 4, 5] + [0] * 13
    assert (out.nfe.item(), out.tokens_per_forward.item()) == (1, 3)


def test_an_empty_stop_string_ends_nothing(tiny_llada, word_tokenizer):
    out = tiny_llada.generate(PROMPT, stop_strings=[""], tokenizer=word_tokenizer, **SMALL)
    assert torch.equal(out, tiny_llada.generate(PROMPT, **SMALL))


def test_processors_see_no_padding():
    """The padding token is a likely one, which a penalty on it would change."""
    model, prompts = exact_model(make_llada), [[2, 3, 4, 5, 6, 7], [8]]
    settings = {"max_new_tokens": 16, "block_length": 16, "denoising_steps": 16, "stop_at_eos": False}
    settings["logits_processor"] = [RepetitionPenaltyLogitsProcessor(1.5)]
    alone = [model.generate(torch.tensor([prompt]), **settings)[0, -16:] for prompt in prompts]
    pad = alone[1][0].item()
    ids, attention_mask = left_padded(prompts, pad)
    out = model.generate(ids, attention_mask=attention_mask, pad_token_id=pad, **settings)
    assert torch.equal(out[:, -16:], torch.stack(alone))


def test_processors_get_float32(tiny_llada):
    dtypes = set()
    model = tiny_llada.bfloat16()
    model.generate(PROMPT, logits_processor=[lambda ids, scores: dtypes.add(scores.dtype) or scores], **SMALL)
    assert dtypes == {torch.float32}
