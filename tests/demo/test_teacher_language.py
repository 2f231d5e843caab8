# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The language of the long testbed, its tokenizer and the training of its teacher."""

import argparse
import random
import re
import runpy
from itertools import islice
from pathlib import Path

import pytest
import torch
from teacher.conversations import MAX_STEPS, REFUSAL, Conversation, generate_conversations
from teacher.testbed import conversation_dataset, reply_reward
from teacher.tokenizer import build_conversation_tokenizer, build_tokenizer
from teacher.wording import UNKNOWN

from hf_dparallel.demo.word_problems import LARGEST_NUMBER

from ..helpers import make_llada
from .test_word_problems import extract_answer


KINDS = {"problem": 0.5, "follow-up": 0.2, "later": 0.1, "sum": 0.05, "small talk": 0.05, "other": 0.1}
CONVERSATIONS = list(islice(generate_conversations(seed=0, kinds=KINDS), 1500))
TOKENIZER = build_conversation_tokenizer()
TRAINING = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "train_counting_teacher.py"))

LOSING = {
    "lose", "loses", "lost", "sell", "sells", "sold", "use", "uses", "used", "eat", "eats", "ate", "break", "breaks",
    "broke", "drop", "drops", "dropped", "away", "steals", "takes",
}  # fmt: skip


def change(clause: str) -> int:
    """By its words: `-6` for "he loses 6 of them", 0 for a clause without a number."""
    numbers = re.findall(r"\d+", clause)
    return int(numbers[0]) * (-1 if LOSING & set(clause.lower().split()) else 1) if numbers else 0


def of_kind(kind: str) -> list[Conversation]:
    return [conversation for conversation in CONVERSATIONS if conversation.kind == kind]


def test_answers_follow_from_the_questions():
    """Recomputed from the words of the question, which the generator does not look at."""
    for problem in of_kind("problem"):
        first, *clauses = re.split(r" [.,] | and ", problem.messages[-1]["content"])
        assert change(first) + sum(map(change, clauses)) == problem.answer == extract_answer(problem.reply), problem


def test_follow_ups_go_on_from_the_last_answer():
    for chat in of_kind("follow-up"):
        answers = [extract_answer(message["content"]) for message in chat.messages if message["role"] == "assistant"]
        last = [answer for answer in answers if answer is not None][-1]
        assert last + change(chat.messages[-1]["content"]) == chat.answer == extract_answer(chat.reply), chat
        roles = [message["role"] for message in chat.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_every_equation_is_right():
    for conversation in CONVERSATIONS:
        for a, sign, b, c in re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", conversation.reply):
            assert int(a) + (int(b) if sign == "+" else -int(b)) == int(c)
            assert 0 <= int(c) <= LARGEST_NUMBER


def test_problems_have_as_many_steps_as_asked_for():
    for problem in islice(generate_conversations(seed=1, steps=[MAX_STEPS]), 20):
        assert problem.reply.count("=") == MAX_STEPS


def test_what_is_unknown_is_refused_only_where_it_matters():
    """An unknown person or thing does no harm; everything that is refused is no problem, or lacks what it needs."""
    assert any(UNKNOWN in problem.messages[-1]["content"] for problem in of_kind("problem"))
    for other in of_kind("other"):
        assert (other.reply, other.answer) == (REFUSAL, None)
        question = other.messages[-1]["content"].lower()
        assert UNKNOWN in question or len(re.findall(r"\d+", question)) < 2, question


def test_every_reply_is_spelled_in_known_tokens_and_fits_the_canvas():
    for conversation in CONVERSATIONS[:300]:
        ids = TOKENIZER(conversation.reply)["input_ids"]
        assert TOKENIZER.unk_token_id not in ids
        assert len(ids) < 160
        assert TOKENIZER(TOKENIZER.decode(ids))["input_ids"] == ids


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("Gia has 14 stamps. Then, Gia finds 6?", "Gia has 14 stamps . Then , Gia finds 6 ?"),
        ("mia has 9 pens;and then 3", "mia has 9 pens ; and then 3"),
        ("Zoë has 41 café 日本 🙂", "<|unk|> has <|unk|> <|unk|> <|unk|> <|unk|>"),
        ("", ""),
    ],
)
def test_tokenizer_takes_any_text(typed, read):
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER(typed)["input_ids"]) == read.split()


def test_replies_read_as_people_write():
    ids = TOKENIZER("Now we give 6 away : this makes 14 - 6 = 8 now . Then , in all ; yes ?")["input_ids"]
    assert TOKENIZER.decode(ids) == "Now we give 6 away: this makes 14 - 6 = 8 now. Then, in all; yes?"


def test_same_seed_same_conversations_and_no_question_in_both_splits():
    assert list(islice(generate_conversations(seed=0, kinds=KINDS), 10)) == CONVERSATIONS[:10]
    chats = islice(generate_conversations(0, "test", KINDS), 100)
    held_out = [chat.messages for chat in chats if chat.kind != "small talk"]
    drawn = [chat.messages for chat in CONVERSATIONS]
    assert held_out and not any(messages in drawn for messages in held_out)
    with pytest.raises(ValueError, match='`split` must be "train" or "test", got \'valid\''):
        next(generate_conversations(0, "valid"))


def test_rewards_of_numbers_and_of_whole_replies():
    completions = ["so 1 + 2 = 3. The answer is 3.", "The answer is 4.", REFUSAL, "I"]
    answers = ["3", "3", REFUSAL, REFUSAL]
    assert reply_reward(completions, answers) == [1.0, 0.0, 1.0, 0.0]
    messages = [[{"role": "assistant", "content": completion}] for completion in completions]
    assert reply_reward(messages, answers) == [1.0, 0.0, 1.0, 0.0]
    assert set(conversation_dataset(3, 0, kind="other")["answer"]) == {REFUSAL}


def test_a_masked_result_does_not_stand_in_the_next_sum():
    """Where decoding has it, or another way to read it off, the model would not learn to add."""
    rng = random.Random(0)
    mask = TOKENIZER.mask_token_id
    for problem in islice(generate_conversations(seed=2, steps=[3]), 60):
        row = TRAINING["make_row"](problem, TOKENIZER, rng)
        text = "".join(f" {token}" for token in TOKENIZER.convert_ids_to_tokens(row.ids[row.ids != 0]))
        assert problem.reply.split()[:3] == text.split("assistant <|end_header_id|> ")[1].split()[:3]
        assert (row.noisy_ids[row.scored] == mask).all()
        results = (row.ids == TOKENIZER.convert_tokens_to_ids("=")).nonzero()[:, 0] + 1
        operands = torch.isin(row.ids, torch.tensor(TOKENIZER.convert_tokens_to_ids(["+", "-"]))).nonzero()[1:, 0] - 1
        for result, operand in zip(results, operands, strict=False):
            assert row.noisy_ids[result] != mask or row.noisy_ids[operand] == mask


def test_a_training_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    Training = TRAINING["Training"]
    tiny = {"CONVERSATIONS": 3, "DRILLS": 1, "build_model": lambda tokenizer: make_llada(vocab_size=len(tokenizer))}
    for name, value in tiny.items():
        monkeypatch.setitem(Training.__init__.__globals__, name, value)
    args = argparse.Namespace(output_dir=tmp_path, init_from=None, num_steps=4, decay_steps=2, seed=0)
    whole, first, second = Training(args), Training(args), Training(args)
    for training in (whole, whole, whole, first, first):
        training.train_step()
    first.save()
    second.load()
    second.train_step()
    assert second.step == whole.step == 3
    assert (tmp_path / "before_decay.pt").exists()
    for name, parameter in whole.average.state_dict().items():
        torch.testing.assert_close(second.average.state_dict()[name], parameter, rtol=0, atol=0)


def test_a_training_starts_from_the_words_that_a_teacher_knows(tmp_path):
    tokenizer = build_tokenizer()
    teacher = TRAINING["build_llada"](tokenizer)
    for part in (teacher, tokenizer):
        part.save_pretrained(tmp_path)
    model = TRAINING["build_model"](TOKENIZER)
    before = model.model.embed_tokens.weight.clone()
    TRAINING["copy_weights"](model, TOKENIZER, tmp_path)
    torch.testing.assert_close(model.model.layers[3].mlp.up_proj.weight, teacher.model.layers[3].mlp.up_proj.weight)
    for known in ("Then", "17"):
        new, old = TOKENIZER.convert_tokens_to_ids(known), tokenizer.convert_tokens_to_ids(known)
        torch.testing.assert_close(model.lm_head.weight[new], teacher.lm_head.weight[old])
    hello = TOKENIZER.convert_tokens_to_ids("Hello")
    torch.testing.assert_close(model.model.embed_tokens.weight[hello], before[hello])
