# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch
from datasets import Dataset

from hf_dparallel.evaluation.decoding import evaluate_decoding

from ..helpers import is_right, make_llada, make_prompts, make_tokenizer, reward_of_the_text
from ..recipes import RECIPE


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_figures_equal_those_of_each_row_alone(batch_size):
    model, tokenizer, prompts = make_llada().double(), make_tokenizer(), make_prompts(10)
    figures = evaluate_decoding(model, tokenizer, prompts, reward_of_the_text, RECIPE, batch_size)
    rights, nfe, tokens_per_forward = [], [], []
    for prompt in prompts["prompt"]:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        out = model.generate(ids, generation_config=RECIPE, return_dict_in_generate=True)
        text = tokenizer.decode(out.sequences[0, ids.shape[1] :], skip_special_tokens=True)
        rights.append(is_right(text))
        nfe.append(out.nfe.item())
        tokens_per_forward.append(out.tokens_per_forward.item())
    assert figures["accuracy"] == sum(rights) / 10 and 0 < sum(rights) < 10
    assert figures["nfe"] == sum(nfe) / 10
    assert figures["tokens_per_forward"] == pytest.approx(sum(tokens_per_forward) / 10)
    assert figures["num_prompts"] == 10 and figures["latency_s"] > 0


def test_rows_are_scored_against_their_own_reference():
    """Batches are sorted by length; the answers must come back in the order of the dataset."""
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(10)
    seen = {}

    def reward(prompts, completions, answer, **kwargs):
        seen.update(zip(prompts, zip(completions, answer, strict=True), strict=True))
        return [None] * len(prompts)

    figures = evaluate_decoding(model, tokenizer, prompts, reward, RECIPE, batch_size=4)
    assert figures["accuracy"] == 0.0
    for row in prompts:
        ids = torch.tensor([tokenizer(row["prompt"])["input_ids"]])
        new_ids = model.generate(ids, generation_config=RECIPE)[0, ids.shape[1] :]
        assert seen[row["prompt"]] == (tokenizer.decode(new_ids, skip_special_tokens=True), row["answer"])


@pytest.mark.parametrize("batch_size", [1, 4])
def test_sampled_figures_depend_on_the_seed_only(batch_size):
    model, tokenizer, prompts = make_llada().double(), make_tokenizer(), make_prompts(10)
    recipe = RECIPE.updated(temperature=1.0)

    def evaluate(batch_size, seed):
        texts = []

        def reward(completions, **kwargs):
            texts.extend(completions)
            return [1.0] * len(completions)

        figures = evaluate_decoding(model, tokenizer, prompts, reward, recipe, batch_size, seed=seed)
        return texts, {name: figures[name] for name in ("accuracy", "nfe", "tokens_per_forward")}

    torch.manual_seed(batch_size)
    assert evaluate(batch_size, seed=3) == evaluate(16, seed=3)
    assert evaluate(batch_size, seed=4)[0] != evaluate(16, seed=3)[0]


def test_tokens_after_the_end_of_an_answer_do_not_count():
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(10)
    ends = {"eos_token_id": [1, *range(2, 20)]}
    seen = []

    def reward(completion_ids, **kwargs):
        seen.append(completion_ids)
        return [1.0] * len(completion_ids)

    for stop in (True, False):
        evaluate_decoding(model, tokenizer, prompts, reward, RECIPE.updated(stop_at_eos=stop, **ends))
    assert seen[0] == seen[1] and min(map(len, seen[0])) < 8


def test_only_decoding_is_timed(monkeypatch):
    model = make_llada()
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    passes = []

    def slow(module, args, output):
        clock[0] += 2.0
        passes.append(1)

    def reward(completions, **kwargs):
        clock[0] += 100.0
        return [1.0] * len(completions)

    model.lm_head.register_forward_hook(slow)
    figures = evaluate_decoding(model, make_tokenizer(), make_prompts(4), reward, RECIPE, batch_size=2)
    assert figures["latency_s"] == 2.0 * len(passes) / 4


def test_bad_arguments_are_found_before_decoding():
    model, tokenizer, prompts = make_llada().train(), make_tokenizer(), make_prompts(2)
    model.generate_many = None

    def needs_solution(completions, solution, level=1, **kwargs):
        return [1.0] * len(completions)

    message = r"`needs_solution` cannot be called with \['answer', .*\]: .* 'solution'. Rename the column"
    with pytest.raises(ValueError, match=message):
        evaluate_decoding(model, tokenizer, prompts, [reward_of_the_text, needs_solution], RECIPE)
    with pytest.raises(ValueError, match=r"already has the columns \['completion_ids'\].*remove_columns"):
        with_ids = prompts.add_column("completion_ids", [[1], [2]])
        evaluate_decoding(model, tokenizer, with_ids, reward_of_the_text, RECIPE)
    with pytest.raises(TypeError, match="Use one split of it, or read a stream"):
        evaluate_decoding(model, tokenizer, [{"prompt": "1"}], reward_of_the_text, RECIPE)
    with pytest.raises(ValueError, match="`batch_size` must be at least 1, got -1"):
        evaluate_decoding(model, tokenizer, prompts, reward_of_the_text, RECIPE, batch_size=-1)


def test_chats_are_rendered_with_the_arguments_of_the_template():
    model, tokenizer = make_llada(), make_tokenizer()
    tokenizer.chat_template = "{{ thinking or '' }} {% for message in messages %}{{ message['content'] }} {% endfor %}"
    chats = Dataset.from_list([{"prompt": [{"role": "user", "content": "3 4"}], "answer": "1"}])
    texts = Dataset.from_list([{"prompt": "9 3 4", "answer": "1"}])
    thinking = RECIPE.updated(chat_template_kwargs={"thinking": "9"})
    of_chats = evaluate_decoding(model, tokenizer, chats, lambda completions, **_: [1.0], thinking)
    of_texts = evaluate_decoding(model, tokenizer, texts, lambda completions, **_: [1.0], RECIPE)
    assert (
        of_chats["nfe"]
        == of_texts["nfe"]
        != evaluate_decoding(model, tokenizer, chats, lambda completions, **_: [1.0], RECIPE)["nfe"]
    )
