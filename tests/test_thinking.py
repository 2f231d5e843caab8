# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Thinking: a student is asked as it was trained wherever a chat is rendered, and thoughts are told from answers."""

import io
import json
import re
import sys

import pytest
import torch
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_dparallel import (
    CertaintyForcingConfig,
    CertaintyForcingTrainer,
    DiffusionGenerationConfig,
    evaluate_decoding,
    filter_trajectories,
    generate_trajectories,
    numeric_answer_reward,
)
from hf_dparallel.data.rewards import score_completions
from hf_dparallel.data.thoughts import ThoughtMarkers
from hf_dparallel.evaluation.callback import DecodingCallback
from hf_dparallel.evaluation.lm_eval import DiffusionHarnessLM
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.hub.card import make_card
from hf_dparallel.inspection.play import Pair
from hf_dparallel.serving.api import ServedModel
from hf_dparallel.serving.text import IncrementalText
from hf_dparallel_cli import main
from hf_dparallel_cli.answer_streamer import AnswerStreamer

from .helpers import lora, make_llada, refuses, write_jsonl
from .serving.helpers import running


OFF = {"chat_template_kwargs": {"enable_thinking": False}}
CANVAS = {"max_new_tokens": 12, "block_length": 4, "entropy_threshold": 1.0}
# As Qwen3's, but for the thought that is open by default, as in templates of models that always think.
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<think> </think> {{ m['content'] }} {% else %}"
    "<s> {{ m['content'] }} {% endif %}{% endfor %}{% if add_generation_prompt %}<think> "
    "{% if enable_thinking is defined and not enable_thinking %}</think> {% endif %}{% endif %}"
)


def make_tokenizer(end: int = 61) -> PreTrainedTokenizerFast:
    """A tokenizer of numbers, in which the id `end` ends a thought."""
    words = {"<s>": 0, "</s>": 1, **{str(number): number for number in range(2, 60)}, "<think>": 60, "62": 62}
    words = {word: number for word, number in words.items() if number != end} | {"</think>": end, "<mask>": 63}
    backend = Tokenizer(models.WordLevel(words, unk_token="2"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE, **special)


def save(folder, **recipe) -> str:
    make_llada(max_sequence_length=512).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    DiffusionGenerationConfig(**CANVAS, **recipe).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def student(tmp_path) -> str:
    """A student that was trained without thinking."""
    return save(tmp_path / "student", **OFF)


@pytest.fixture
def rendered(monkeypatch) -> list:
    """What the chat template is told about thinking, each time that a prompt is rendered."""
    told = []
    original = PreTrainedTokenizerBase.apply_chat_template

    def apply(tokenizer, *args, **kwargs):
        told.append(kwargs.get("enable_thinking"))
        return original(tokenizer, *args, **kwargs)

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", apply)
    return told


CHATS = [{"prompt": [{"role": "user", "content": f"{n} 5"}], "answer": str(n)} for n in range(6, 14)]
ANY_DROP = ["--max_accuracy_drop", "0.99", "--confidence", "0.1", "--sweep", "entropy_threshold=0.5,1.0"]
COMMANDS = {
    "generate": ["5 6", "--stream"],
    "inspect": ["5 6"],
    "chat": [],
    "evaluate": ["--dataset", "chats.jsonl"],
    "calibrate": ["--dataset", "chats.jsonl", "--output_dir", "recipe", *ANY_DROP],
    "trajectories": ["--dataset", "chats.jsonl", "--output_dir", "data", "--reward", "none"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_ask_the_student_as_it_was_trained(student, rendered, monkeypatch, tmp_path, capsys, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("5 6\n7\n"))
    write_jsonl("chats.jsonl", CHATS)
    flags = COMMANDS[command]
    assert main([command, student, *flags]) == 0, capsys.readouterr()
    assert rendered and set(rendered) == {False}
    if command == "calibrate":
        saved = DiffusionGenerationConfig.from_pretrained("recipe")
        assert saved.chat_template_kwargs == OFF["chat_template_kwargs"]
    assert main([command, student, *flags, "--chat_template_kwargs", '{"enable_thinking": true}']) == 2
    assert "contradicts the recipe of the model, {'enable_thinking': False}" in capsys.readouterr().err


def test_python_and_the_harness_ask_it_so_too(student, rendered):
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(student), AutoTokenizer.from_pretrained(student)
    dataset = Dataset.from_list(CHATS)

    def reward(completions, **kwargs):
        return [1.0] * len(completions)

    evaluate_decoding(model, tokenizer, dataset, reward)
    Pair(student).answer("5 6")
    lm = DiffusionHarnessLM(model, tokenizer=tokenizer)
    assert lm.apply_chat_template([{"role": "user", "content": "5 6"}]).endswith("<think> </think> ")
    assert rendered and set(rendered) == {False}
    thinking = {"enable_thinking": True}
    given = DiffusionGenerationConfig(chat_template_kwargs=thinking)
    for contradiction in (
        lambda: evaluate_decoding(model, tokenizer, dataset, reward, given),
        lambda: Answerer(model, tokenizer, given),
        lambda: DiffusionHarnessLM(model, tokenizer=tokenizer, chat_template_args=thinking),
        lambda: ServedModel("m", model, tokenizer, DiffusionGenerationConfig(chat_template_kwargs=thinking)),
    ):
        with refuses("chat_template_kwargs"):
            contradiction()
    with refuses("chat_template_kwargs"):
        model.generate(tokenizer("5", return_tensors="pt")["input_ids"], chat_template_kwargs=thinking)


def test_arguments_of_several_sources_come_together():
    model = make_llada()
    model.generation_config = DiffusionGenerationConfig(**OFF)
    answerer = Answerer(model, make_tokenizer(), DiffusionGenerationConfig(chat_template_kwargs='{"style": "b"}'))
    assert answerer.config.chat_template_kwargs == {"style": "b", "enable_thinking": False}
    lm = DiffusionHarnessLM(model, tokenizer=make_tokenizer(), chat_template_kwargs='{"style": "b"}')
    assert lm.chat_template_args == {"style": "b", "enable_thinking": False}
    with refuses("chat_template_kwargs"):
        DiffusionGenerationConfig(chat_template_kwargs="no JSON")
    with refuses("thought_markers"):
        ThoughtMarkers.of(make_tokenizer(), ["<a>"])


def test_a_student_is_saved_with_what_its_data_were_rendered_with(tmp_path, rendered):
    """From the teacher's trajectories through the training to the student's recipe."""
    model, tokenizer = make_llada(), make_tokenizer()
    recipe = DiffusionGenerationConfig(**CANVAS, **OFF)
    rows = generate_trajectories(model, tokenizer, Dataset.from_list(CHATS), recipe, output_dir=tmp_path / "data")
    assert [json.loads(text) for text in rows.unique("chat_template_kwargs")] == [OFF["chat_template_kwargs"]]
    rows = filter_trajectories(rows, tokenizer, lambda completions, **kwargs: [1.0] * len(completions))
    args = {"block_length": 4, "max_length": 32, "max_steps": 1, "use_cpu": True, "report_to": []}

    def train(**settings):
        config = CertaintyForcingConfig(str(tmp_path / "student"), **args, **settings)
        return CertaintyForcingTrainer(make_llada(), config, rows, processing_class=tokenizer, peft_config=lora())

    trainer = train(eval_strategy="no")
    assert trainer.args.chat_template_kwargs == OFF["chat_template_kwargs"]
    trainer.save_model()
    saved = DiffusionGenerationConfig.from_pretrained(tmp_path / "student")
    assert saved.chat_template_kwargs == OFF["chat_template_kwargs"]
    card = make_card(tmp_path / "student", "user/student", saved)
    assert ', return_tensors="pt", enable_thinking=False)\n' in str(card)
    with refuses("chat_template_kwargs", match="contradicts the data"):
        train(chat_template_kwargs={"enable_thinking": True})
    # Chats that the training itself renders.
    rows = Dataset.from_list([{"messages": [*CHATS[0]["prompt"], {"role": "assistant", "content": "7 8"}]}] * 4)
    rendered.clear()
    assert train(**OFF).args.chat_template_kwargs == OFF["chat_template_kwargs"] and set(rendered) == {False}
    trainer = train(**OFF)
    trainer.eval_dataset, trainer.args.eval_strategy = rows, "steps"
    rendered.clear()
    callback = DecodingCallback(trainer, Dataset.from_list(CHATS), lambda completions, **kwargs: [1.0])
    assert callback.answerer.config.chat_template_kwargs == OFF["chat_template_kwargs"] and set(rendered) == {False}


CLOSED, OPEN = ThoughtMarkers("<think>", "</think>"), ThoughtMarkers("<think>", "</think>", is_open=True)
TEXTS = {
    (CLOSED, "<think>\nWe add.\n</think>\n\nIt is 7."): ("We add.", "It is 7."),
    (CLOSED, "<think>\n\n</think>\n\nIt is 7."): ("", "It is 7."),
    (CLOSED, "<think>We add"): ("We add", ""),
    (CLOSED, "It is 7."): ("", "It is 7."),
    (CLOSED, " <thin ice"): ("", " <thin ice"),
    (CLOSED, "<think>a < b </thin </think>c"): ("a < b </thin", "c"),
    (CLOSED, "<think>a <think>b</think> c <think>d</think>e"): ("a <think>b", "c <think>d</think>e"),
    (OPEN, "We add.</think>It is 7."): ("We add.", "It is 7."),
    # The model opens the thought again that the prompt has opened.
    (OPEN, "<think>\nWe add.\n</think>\n\nIt is 7."): ("We add.", "It is 7."),
    (OPEN, "\n<think>We <think> add.</think>It is 7."): ("We <think> add.", "It is 7."),
    (OPEN, " <thin ice</think>It is 7."): ("<thin ice", "It is 7."),
    (OPEN, "<think"): ("<think", ""),
    (OPEN, "</think>It is 7."): ("", "It is 7."),
}


@pytest.mark.parametrize(("markers", "text"), TEXTS)
def test_a_thought_is_told_from_the_answer(markers, text):
    """A stream tells the same, character by character."""
    assert markers.split(text) == TEXTS[markers, text]
    told = ("", "")
    for length in range(len(text) + 1):
        parts = markers.split(text[:length], is_whole=False)
        assert all(now.startswith(before) for before, now in zip(told, parts, strict=True))
        told = parts
    assert all(whole.startswith(part) for part, whole in zip(told, TEXTS[markers, text], strict=True))


def test_the_markers_are_those_of_the_template_or_given():
    tokenizer = make_tokenizer()
    assert ThoughtMarkers.of(tokenizer) == ThoughtMarkers("<think>", "</think>", is_open=True)
    assert ThoughtMarkers.of(tokenizer, None, {"enable_thinking": False}) == CLOSED
    assert ThoughtMarkers.of(tokenizer, ["((", "))"]) == ThoughtMarkers("((", "))")
    assert ThoughtMarkers("<think>", "</think>", is_open=True).split("a</think>b") == ("a", "b")
    tokenizer.chat_template = "{{ messages }}"
    assert ThoughtMarkers.of(tokenizer) is None


def test_rewards_see_the_answer_only():
    tokenizer = make_tokenizer()
    ids = tokenizer("7 8 </think> 9")["input_ids"]
    rows = Dataset.from_list([CHATS[0] | {"completion_ids": ids}])
    seen = []

    def reward(completions, **kwargs):
        seen.extend(message["content"] for message in completions[0])
        return [1.0]

    score_completions(rows, tokenizer, reward, ThoughtMarkers.of(tokenizer))
    filter_trajectories(rows, tokenizer, reward)
    assert seen == ["9", "9"]


# A pair that is one token each, and one whose tokens are a part of a marker, as in gpt-oss.
SPECIAL = {
    "one token": ("[THINK]", "[/THINK]"),
    "several tokens": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
}


def tokenizer_of_characters(markers: tuple[str, str], is_special: bool) -> PreTrainedTokenizerFast:
    """A tokenizer of characters and of the markers' tokens, in which only `</s>` ends an answer."""
    words = [chr(code) for code in range(32, 127)]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tokens = re.findall(r"<\|\w+\|>|\[/?THINK\]", "".join(markers))
    backend.add_tokens([AddedToken(token, special=is_special, normalized=False) for token in dict.fromkeys(tokens)])
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{# [THINK][/THINK] #}"
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **special)


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("name", SPECIAL)
def test_markers_that_are_special_tokens_are_read_before_those_are_dropped(name, is_special, capsys):
    begin, end = SPECIAL[name]
    tokenizer = tokenizer_of_characters((begin, end), is_special)
    ids = [*tokenizer(f"{begin}7 or 9{end}<s>5")["input_ids"], tokenizer.eos_token_id]
    given = None if name == "one token" else [begin, end]
    markers = ThoughtMarkers.of(tokenizer, given)

    # The server, with every number of tokens sent before the last ones.
    for sent in range(len(ids)):
        text = IncrementalText(tokenizer, markers=markers)
        text.add(ids[:sent])
        assert "<s>" not in text.text
        text.add(ids[sent:], is_last=True)
        assert markers.split(text.text) == ("7 or 9", "5")

    # Rewards. Answers to plain texts have no thoughts.
    chat = Dataset.from_list([CHATS[0] | {"answer": "5", "completion_ids": ids}])
    assert len(filter_trajectories(chat, tokenizer, numeric_answer_reward, thought_markers=given)) == 1
    seen = []
    plain = Dataset.from_list([{"prompt": "5 6", "completion_ids": ids}])
    score_completions(plain, tokenizer, lambda completions, **kwargs: seen.extend(completions) or [1.0], markers)
    assert seen == [tokenizer.decode(ids, skip_special_tokens=True)]

    # The command line.
    model = make_llada(vocab_size=len(tokenizer), mask_token_id=tokenizer.mask_token_id)
    streamer = AnswerStreamer(Answerer(model, tokenizer, DiffusionGenerationConfig(thought_markers=given)))
    streamer.put(torch.tensor([[1, 2]]))
    for token in ids:
        streamer.put(torch.tensor([token]))
    streamer.end()
    assert streamer.shown == ("7 or 9", "5")
    assert capsys.readouterr().out == "7 or 9\n\n5\n"


def ending_inside(model) -> tuple[PreTrainedTokenizerFast, str, str]:
    """A tokenizer in which one of the tokens that a model answers "7 8" with ends the thought; thought and answer."""
    prompt = [{"role": "user", "content": "7 8"}]
    ids = make_tokenizer().apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
    answer = next(iter(model.generate_many([ids], **CANVAS))).tokens.tolist()
    end = next(token for token in answer if token != answer[0])
    tokenizer = make_tokenizer(end)
    thought, _, content = tokenizer.decode(answer, skip_special_tokens=True).partition("</think>")
    return tokenizer, thought.strip(), content.strip()


def test_the_server_tells_the_thought_apart():
    """A student without thinking thinks for the request that asks it to."""
    model = make_llada(max_sequence_length=512)
    tokenizer, thought, content = ending_inside(model)
    model.generation_config = DiffusionGenerationConfig(**CANVAS, **OFF)
    served = ServedModel("m", model, tokenizer, DiffusionGenerationConfig())
    chat = {"messages": [{"role": "user", "content": "7 8"}]}
    thinking = chat | {"chat_template_kwargs": {"enable_thinking": True}}
    with running(served) as server:
        message = server.post(thinking).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (thought, content)
        assert "reasoning_content" not in server.post(chat).json()["choices"][0]["message"]
        lines = server.post(thinking | {"stream": True}).text.split("\n\n")
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == thought
    assert "".join(delta["content"] for delta in deltas) == content


def test_chat_shows_thoughts_dimmed(tmp_path, monkeypatch, capsys):
    folder = save(tmp_path / "thinking")
    tokenizer, thought, content = ending_inside(AutoModelForMaskedLM.from_pretrained(folder))
    tokenizer.save_pretrained(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO("7 8\n"))
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    assert main(["chat", folder]) == 0
    out = capsys.readouterr().out
    assert out.replace("\033[2m", "").replace("\033[0m", "") == f"{thought}\n\n{content}\n"
    assert out.startswith("\033[2m") and out.endswith(f"\033[0m\n\n{content}\n")
