# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Text from tokens that come in groups of any size, and their log-probabilities."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dparallel.serving.row_options import TokenLogprobs
from hf_dparallel.serving.text import IncrementalText, logprobs_to_json


EOS = 256  # of `byte_tokenizer`


def feed(answer: IncrementalText, tokens: list[int], cuts: list[int]) -> list[str]:
    """Adds tokens in groups, as a server does, until the answer has ended."""
    edges = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    parts, length = [], 0
    for start, end in zip(edges, edges[1:], strict=False):
        answer.add(tokens[start:end])
        parts.append(answer.text[length:])
        length = len(answer.text)
    answer.end()
    return [*parts, answer.text[length:]]


@settings(deadline=None)
@given(st.text(alphabet="ab é漢😀\n", max_size=20), st.lists(st.integers(0, 99), max_size=6))
def test_parts_make_up_the_text(byte_tokenizer, text, cuts):
    answer = IncrementalText(byte_tokenizer)
    parts = feed(answer, [*byte_tokenizer(text)["input_ids"], EOS], cuts)
    assert "".join(parts) == answer.text == text
    assert len(answer.tokens) == len(text.encode()) + 1 and not answer.is_stopped
    assert all("\ufffd" not in part for part in parts)


@settings(max_examples=300, deadline=None)
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
    answer.end()
    assert answer.text == "a\ufffd"


def test_each_token_is_decoded_with_the_last_ones_only(served):
    """Or a long answer would take quadratic time."""
    ids, lengths = served.tokenizer("Mia has 14 pens . " * 50)["input_ids"], []

    class Counting:
        def decode(self, tokens, **kwargs):
            lengths.append(len(tokens))
            return served.tokenizer.decode(tokens, **kwargs)

    answer = IncrementalText(Counting(), ["never"])
    feed(answer, ids, list(range(0, len(ids), 7)))
    assert answer.text == served.tokenizer.decode(ids) and max(lengths) <= 3 and len(lengths) <= 2 * len(ids) + 1


def said(tokenizer, tokens: list[int], top: list[tuple[int, float]]) -> list[dict]:
    pairs = zip([[], *([token] for token in tokens)], tokens, strict=False)  # in groups of any size
    return [logprobs_to_json(tokenizer, before, [(token, TokenLogprobs(-0.5, top))])[0] for before, token in pairs]


def test_the_bytes_of_all_tokens_are_the_text(served, byte_tokenizer):
    problem = "Mia has 14 pens . <|eot_id|>"
    cases = ((byte_tokenizer, "a é漢\n<eos>", "a é漢\n"), (served.tokenizer, problem, "Mia has 14 pens."))
    for tokenizer, text, expected in cases:
        tokens = tokenizer(text)["input_ids"]
        entries = said(tokenizer, tokens, [])
        assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == expected
        assert entries[-1] == {"token": text[text.index("<") :], "bytes": [], "logprob": -0.5, "top_logprobs": []}


def test_a_byte_that_is_no_character_and_a_token_that_cannot_be(byte_tokenizer):
    first, second = byte_tokenizer("é")["input_ids"]
    entry = said(byte_tokenizer, [first], [(second, -float("inf"))])[0]
    assert (entry["token"], entry["bytes"]) == ("\ufffd", [0xC3])
    assert entry["top_logprobs"] == [{"token": "\ufffd", "bytes": [0xA9], "logprob": -9999.0}]
