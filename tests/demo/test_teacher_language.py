# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The language of the long testbed, its tokenizer and the training of its teacher."""

import random
import re
import runpy
from itertools import islice
from pathlib import Path

import pytest
from teacher import wording
from teacher.conversations import SMALL_TALK, Conversation, generate_conversations, last_words
from teacher.solutions import LARGEST_GIVEN, LARGEST_RESULT, is_whole
from teacher.testbed import reply_reward
from teacher.tokenizer import build_conversation_tokenizer
from teacher.wording import VERBS, in_words

from .helpers import extract_answer


KINDS = {"problem": 0.5, "follow-up": 0.2, "later": 0.1, "sum": 0.05, "small talk": 0.05, "other": 0.1}
CONVERSATIONS = list(islice(generate_conversations(seed=0, kinds=KINDS), 1500))
TOKENIZER = build_conversation_tokenizer()
TRAINING = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "train_counting_teacher.py"))

# Of one word, and of one sign: "take" and "give" are of both.
SIGNS = {form: sign for sign in "+-" for verb in VERBS[sign] for form in verb if " " not in form}
SIGNS = {form: sign for form, sign in SIGNS.items() if not form.startswith(("t", "g"))}
NUMBERS = {in_words(number).replace(" - ", hyphen): number for number in range(100) for hyphen in (" - ", " ")}
NUMBERS["a dozen"] = 12


def numbers(text: str) -> list[int]:
    """All numbers of a text, also those in words."""
    words = "|".join(sorted(NUMBERS, key=len, reverse=True))
    found = re.findall(rf"\b(?:\d+|{words})\b", text.lower())
    return [NUMBERS[word] if word in NUMBERS else int(word) for word in found]


def equations(reply: str) -> list[tuple[int, str, int, int]]:
    found = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", reply)
    return [(int(a), sign, int(b), int(c)) for a, sign, b, c in found]


def of_kind(kind: str) -> list[Conversation]:
    return [conversation for conversation in CONVERSATIONS if conversation.kind == kind]


def test_answers_follow_from_the_questions(monkeypatch):
    """By the numbers of the question, and where its verbs tell the signs, by these."""
    monkeypatch.setattr(wording, "WRITTEN_SHARE", 0)
    num_signs = 0
    for problem in islice(generate_conversations(seed=0), 700):
        question = problem.messages[-1]["content"].lower()
        start, *changes = map(int, re.findall(r"(?:with|have|add|get|count|take|lose) (\d+)", problem.reply))
        assert sorted([start, *changes]) == sorted(numbers(question)), problem
        assert problem.answer == extract_answer(problem.reply)
        if re.search("differ|more do|fewer|than|missing|need", question):
            continue
        clauses = re.split(r" [.,?] | and ", question)[1:]
        signs = [[SIGNS[word] for word in clause.lower().split() if word in SIGNS] for clause in clauses]
        steps = equations(problem.reply)
        for clause, sign in zip(clauses, signs, strict=True):
            told = [step for step in steps if numbers(clause) == [step[2]]]
            if len(sign) == 1 and len(told) == 1 and numbers(clause) != [start]:
                assert told[0][1] == sign[0], problem
                num_signs += 1
    assert num_signs > 500


def test_every_equation_is_right_and_every_reply_whole():
    for conversation in CONVERSATIONS:
        for a, sign, b, c in equations(conversation.reply):
            assert (a + b if sign == "+" else a - b) == c
            assert 0 <= c <= LARGEST_RESULT and b <= LARGEST_GIVEN
        assert is_whole(conversation.reply, SMALL_TALK)
        assert reply_reward([conversation.reply], [last_words(conversation)]) == [1.0]


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("Gia HAS 14 Stamps. Then, Gia finds 6?", "gia has 14 stamps . Then , gia finds 6 ?"),
        ("198 and 199 and 2500", "198 and 19 ##9 and 25 ##0 ##0"),
        ("mia has 9pens;and then 3", "mia has 9 pens ; and then 3"),
        ("Zoë has 41 кафе 日本 🙂", "<|unk|> has 41 <|unk|> <|unk|> <|unk|>"),
        ("", ""),
    ],
)
def test_tokenizer_takes_any_text(typed, read):
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER(typed)["input_ids"]) == read.split()


def test_same_seed_same_conversations_and_no_question_in_both_splits():
    assert list(islice(generate_conversations(seed=0, kinds=KINDS), 10)) == CONVERSATIONS[:10]
    chats = islice(generate_conversations(0, "test", KINDS), 100)
    held_out = [chat.messages for chat in chats if chat.kind != "small talk"]
    drawn = [chat.messages for chat in CONVERSATIONS]
    assert held_out and not any(messages in drawn for messages in held_out)
    with pytest.raises(ValueError, match='`split` must be "train" or "test", got \'valid\''):
        next(generate_conversations(0, "valid"))


def test_a_masked_result_does_not_stand_in_the_next_sum():
    """Where decoding has it, or another way to read it off, the model would not learn to add."""
    rng = random.Random(0)
    mask = TOKENIZER.mask_token_id
    for problem in islice(generate_conversations(seed=2, steps=[3]), 60):
        row = TRAINING["make_row"](problem, TOKENIZER, rng)
        assert (row.noisy_ids[row.scored] == mask).all()
        begin = (row.ids == TOKENIZER.convert_tokens_to_ids("assistant")).nonzero()[-1, 0] + 2
        numbers = TRAINING["find_numbers"](row.ids[begin:], TOKENIZER)
        hidden = (row.noisy_ids[begin:][numbers] == mask).tolist()
        told = TOKENIZER.convert_ids_to_tokens(row.ids[begin:][numbers])
        assert told == re.findall(r"\d+", problem.reply)[: len(told)]
        for result in range(4, len(numbers) - 4, 4):
            assert told[result] == told[result + 2]
            assert hidden[result + 2] or not hidden[result]
