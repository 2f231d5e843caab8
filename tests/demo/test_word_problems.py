# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import re
from itertools import islice

import pytest
from teacher.tokenizer import build_tokenizer
from transformers import AutoTokenizer

from hf_dparallel.demo import TEACHER
from hf_dparallel.demo.word_problems import LARGEST_NUMBER, generate_word_problems


PROBLEMS = list(islice(generate_word_problems(seed=0), 2000))


def test_answers_follow_from_the_questions():
    """Recomputed from the words of the question, which the generator does not look at."""
    changes = re.compile(r"(finds|buys|loses|sells) (\d+)")
    for question, answer in PROBLEMS:
        first, *sentences = question.split(" . ")
        total = int(re.search(r"\d+", first)[0])
        assert len(sentences) - 1 in (2, 3)
        for sentence in sentences[:-1]:
            verb, number = changes.search(sentence).groups()
            total += int(number) if verb in ("finds", "buys") else -int(number)
            assert 0 <= total <= LARGEST_NUMBER
        assert total == answer, question


def test_seeds_give_the_problems_of_the_recorded_runs():
    changes = "Later Kim loses 1 of them . Then Kim finds 8 more . Kim buys 4 plums ."
    question = f"There are 16 plums in the bag of Kim . {changes} How many plums are left ?"
    assert PROBLEMS[1] == (question, 27)


def test_every_word_is_a_token():
    tokenizer = build_tokenizer()
    for question, _ in PROBLEMS[:500]:
        assert tokenizer.unk_token_id not in tokenizer(question)["input_ids"]


def test_text_is_read_with_and_without_a_space_before_marks():
    """By the bundled tokenizer, which was made for the conversations."""
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    assert tokenizer.backend_tokenizer.to_str() == build_tokenizer().backend_tokenizer.to_str()
    spaced = "Gia has 14 stamps . Then Gia finds 6 more . How many are left ?"
    assert tokenizer(spaced.replace(" .", ".").replace(" ?", "?"))["input_ids"] == tokenizer(spaced)["input_ids"]


def test_same_seed_same_problems_and_no_question_in_both_splits():
    assert list(islice(generate_word_problems(seed=0), 10)) == PROBLEMS[:10]
    assert list(islice(generate_word_problems(seed=1), 10)) != PROBLEMS[:10]
    test = {question for question, _ in islice(generate_word_problems(seed=0, split="test"), 300)}
    assert not test & {question for question, _ in PROBLEMS}
    with pytest.raises(ValueError, match='`split` must be "train" or "test", got \'valid\''):
        next(generate_word_problems(0, "valid"))
