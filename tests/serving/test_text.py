# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Text from tokens that come in groups of any size, and their log-probabilities."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dparallel.serving.engine import TokenLogprobs
from hf_dparallel.serving.text import IncrementalText, logprobs_to_json


EOS = 256  # of `byte_tokenizer`


def feed(answer: IncrementalText, tokens: list[int], cuts: list[int]) -> list[str]:
    """Adds tokens in groups, as a server does, until the answer has ended."""
    edges = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    parts, length = [], 0
    for start, end in zip(edges, edges[1:], strict=False):
        answer.add(tokens[start:end], is_last=end == edges[-1] and start == edges[-2])
        parts.append(answer.text[length:])
        length = len(answer.text)
        if answer.is_stopped:
            break
    return parts


@settings(deadline=None)
@given(st.text(alphabet="ab é漢😀\n", max_size=20), st.lists(st.integers(0, 99), max_size=6))
def test_parts_make_up_the_text(byte_tokenizer, text, cuts):
    answer = IncrementalText(byte_tokenizer)
    parts = feed(answer, [*byte_tokenizer(text)["input_ids"], EOS], cuts)
    assert "".join(parts) == answer.text == text
    assert len(answer.tokens) == len(text.encode()) + 1 and not answer.is_stopped
    assert all("\ufffd" not in part for part in parts)


@settings(deadline=None)
@given(
    st.text(alphabet="ab", max_size=12),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 99), max_size=6),
)
def test_stop_strings_cut_the_text_wherever_the_groups_end(byte_tokenizer, text, stop, cuts):
    answer = IncrementalText(byte_tokenizer, stop)
    parts = feed(answer, byte_tokenizer(text)["input_ids"], cuts)
    # The naive way: one character after the other.
    length = next((n for n in range(len(text) + 1) if any(text[:n].endswith(string) for string in stop)), None)
    if length is None:
        expected, num_tokens = text, len(text)
    else:
        start = min(text[:length].find(string) for string in stop if string in text[:length])
        expected, num_tokens = text[:start], length
    assert "".join(parts) == answer.text == expected
    assert (len(answer.tokens), answer.is_stopped) == (num_tokens, length is not None)


def test_half_a_character_at_the_very_end_is_shown(byte_tokenizer):
    answer = IncrementalText(byte_tokenizer)
    answer.add(byte_tokenizer("aé")["input_ids"][:2])
    assert answer.text == "a"
    answer.add([], is_last=True)
    assert answer.text == "a\ufffd"


def test_log_probabilities_of_tokens(served, byte_tokenizer):
    """The tokens joined are the text; special tokens are not part of it, and parts of a character have no bytes."""
    for tokenizer, text in ((byte_tokenizer, "a é\n<eos>"), (served.tokenizer, "Mia has 14 pens . <|eot_id|>")):
        tokens = tokenizer(text)["input_ids"]
        measured = [(token, TokenLogprobs(-0.5, [(tokens[0], -float("inf"))])) for token in tokens]
        entries = logprobs_to_json(tokenizer, [], measured[:2]) + logprobs_to_json(
            tokenizer, tokens[1:2], measured[2:]
        )
        special = text[text.index("<") :]
        plain = tokenizer.decode(tokens, skip_special_tokens=True)
        assert "".join(entry["token"] for entry in entries).replace("\ufffd\ufffd", "é") == plain + special
        parts = {"\ufffd": None, special: []}
        for entry in entries:
            expected = parts.get(entry["token"], list(entry["token"].encode()))
            assert (entry["bytes"], entry["logprob"]) == (expected, -0.5)
            assert [each["logprob"] for each in entry["top_logprobs"]] == [-9999.0]
