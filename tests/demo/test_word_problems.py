# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import re
from itertools import islice

import pytest
from teacher.tokenizer import build_conversation_tokenizer, build_tokenizer
from transformers import AutoTokenizer

from hf_dparallel.demo import TEACHER
from hf_dparallel.demo.word_problems import LARGEST_NUMBER, generate_word_problems


PROBLEMS = list(islice(generate_word_problems(seed=0), 2000))


def test_answers_follow_from_the_questions():
    """Recomputed from the words of the question, which the generator does not look at."""
    changes = re.compile(r"(finds|buys|loses|sells) (\d+)")
    for problem in PROBLEMS:
        first, *sentences = problem.question.split(" . ")
        total = int(re.search(r"\d+", first)[0])
        for sentence in sentences[:-1]:
            verb, number = changes.search(sentence).groups()
            total += int(number) if verb in ("finds", "buys") else -int(number)
        assert total == problem.answer and problem.solution.endswith(f"The answer is {total} ."), problem


def test_every_equation_of_a_solution_is_right():
    for problem in PROBLEMS:
        equations = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", problem.solution)
        assert len(equations) in (2, 3)
        for a, sign, b, c in equations:
            assert int(a) + (int(b) if sign == "+" else -int(b)) == int(c)
            assert 0 <= int(c) <= LARGEST_NUMBER


def test_every_word_is_a_token_and_every_solution_fits_the_canvas():
    tokenizer = build_tokenizer()
    for problem in PROBLEMS[:500]:
        for text in (problem.question, problem.solution):
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == text
        assert len(tokenizer(problem.solution)["input_ids"]) < 64


def test_text_is_read_with_and_without_a_space_before_marks():
    """By the bundled tokenizer, which was made for the conversations."""
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    assert tokenizer.backend_tokenizer.to_str() == build_conversation_tokenizer().backend_tokenizer.to_str()
    spaced = "Gia has 14 stamps . Then Gia finds 6 more . How many are left ?"
    assert tokenizer(spaced.replace(" .", ".").replace(" ?", "?"))["input_ids"] == tokenizer(spaced)["input_ids"]


def test_same_seed_same_problems_and_no_question_in_both_splits():
    assert list(islice(generate_word_problems(seed=0), 10)) == PROBLEMS[:10]
    assert list(islice(generate_word_problems(seed=1), 10)) != PROBLEMS[:10]
    test = {problem.question for problem in islice(generate_word_problems(seed=0, split="test"), 300)}
    assert not test & {problem.question for problem in PROBLEMS}
    with pytest.raises(ValueError, match='`split` must be "train" or "test", got \'valid\''):
        next(generate_word_problems(0, "valid"))
