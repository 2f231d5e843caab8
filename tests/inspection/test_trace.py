# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A decode as text, held against what `generate` returns, and what the terminal shows of it."""

import io

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.generation.configuration import resolve
from hf_dparallel.inspection.text import print_answer, print_passes
from hf_dparallel.inspection.trace import trace_decode, trace_output

from ..helpers import MASK, exact_model, make_dream, make_llada, make_sdar, make_tokenizer
from .helpers import make_trace


RECIPE = DiffusionGenerationConfig(max_new_tokens=16, block_length=8, entropy_threshold=1.0, eos_token_id=34)
SHOWN = {"output_certainty": True, "return_dict_in_generate": True}


def printed(show, trace, color=False) -> list[str]:
    """The lines that a function prints."""
    console = Console(file=io.StringIO(), force_terminal=color, color_system="256" if color else None)
    show(trace, console)
    return console.file.getvalue().splitlines()


def test_trace_holds_what_generate_returns():
    model, tokenizer, prompt = make_llada(), make_tokenizer(), [9, 10, 11]
    out = model.generate(torch.tensor([prompt]), RECIPE, **SHOWN)
    trace = trace_decode(model, tokenizer, prompt, RECIPE, "Teacher")
    assert (trace.name, trace.prompt) == ("Teacher", tokenizer.decode(prompt))
    texts = [trace.standing(position, trace.nfe)[1] for position in range(16)]
    # Together they are the text, also where the tokenizer joins words by spaces.
    answer = tokenizer.decode(out.sequences[0])[len(tokenizer.decode(prompt)) :]
    assert answer.startswith("".join(text for text in texts if text is not None)) and None in texts
    steps = [trace.standing(position, trace.nfe)[0] for position in range(16)]
    assert steps == out.commit_step[0].tolist() and -1 in steps
    assert (trace.nfe, trace.tokens_per_forward) == (out.nfe.item(), out.tokens_per_forward.item())
    assert trace.settings == {"max_new_tokens": 16, "block_length": 8, "entropy_threshold": 1.0}
    assert trace.blocks == [range(0, 8), range(8, 16)]
    assert len(trace.predictions) == trace.nfe
    for step, predictions in enumerate(trace.predictions):
        assert list(predictions) == [p for p in range(16) if not out.entropies[0, step, p].isnan()]
        for position, prediction in predictions.items():
            assert prediction.entropy == out.entropies[0, step, position].item()
            assert prediction.confidence == out.confidences[0, step, position].item()
            ids, probabilities = (x[0, step, position].tolist() for x in (out.candidates, out.candidate_probabilities))
            assert prediction.candidates == [
                (tokenizer.decode([t]), p) for t, p in zip(ids, probabilities, strict=True)
            ]


def test_the_recipe_of_the_model_counts():
    model = make_llada()
    model.generation_config.max_new_tokens, model.generation_config.block_length = 8, 4
    trace = trace_decode(model, make_tokenizer(), [9, 10])
    assert trace.blocks[0] == range(0, 4) and trace.nfe <= 8
    assert trace.settings == {"max_new_tokens": 8, "block_length": 4, "denoising_steps": 8}


def test_row_of_a_padded_batch_and_of_an_infilled_prompt():
    model, tokenizer = make_llada(), make_tokenizer()
    config = resolve(model, RECIPE, pad_token_id=1)
    ids, attention_mask = torch.tensor([[1, 1, 9], [9, 10, 11]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    out = model.generate(ids, RECIPE, attention_mask=attention_mask, **SHOWN)
    alone = trace_decode(model, tokenizer, [9], RECIPE)
    assert trace_output(out, tokenizer, config, "Decode", row=0).changes == alone.changes
    assert trace_output(out, tokenizer, config, "Decode", row=0).prompt == alone.prompt == tokenizer.decode([9])

    infilled = trace_decode(
        model, tokenizer, [9, MASK, 11, 12, MASK], RECIPE.updated(max_new_tokens=0, block_length=4)
    )
    assert infilled.prompt == "" and len(infilled.changes) == 5
    assert [infilled.standing(position, 0)[1] is None for position in range(5)] == [False, True, False, False, True]
    assert infilled.blocks == [range(0, 1), range(1, 5)]
    short = trace_decode(model, tokenizer, [9], RECIPE.updated(max_new_tokens=10, block_length=4, eos_token_id=[]))
    assert short.blocks == [range(0, 4), range(4, 8), range(8, 10)]
    shared = trace_decode(make_sdar(), tokenizer, [9], RECIPE.updated(max_new_tokens=10, block_length=4))
    assert shared.blocks == [range(0, 3), range(3, 7), range(7, 10)]
    settings = {"max_new_tokens": 10, "block_length": 4, "block_origin": "answer"}
    of_answer = trace_decode(make_sdar(), tokenizer, [9], RECIPE.updated(**settings))
    assert of_answer.blocks == [range(0, 4), range(4, 8), range(8, 10)]
    assert printed(print_passes, infilled)[-1].endswith("".join(text for ((_, text),) in infilled.changes))


def test_output_without_certainty_is_refused():
    out = make_llada().generate(torch.tensor([[9, 10]]), RECIPE, return_dict_in_generate=True)
    with pytest.raises(ValueError, match="Decode with `output_certainty=True`"):
        trace_output(out, make_tokenizer(), RECIPE, "Teacher")


def test_parts_of_a_character_are_named():
    vocabulary = {"<mask>": 0, "Ġthe": 1, "ĠÃ": 2, "©": 3}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="<mask>")
    out = make_llada().generate(torch.tensor([[9]]), RECIPE, **SHOWN)
    out.sequences[0, 1:4] = torch.tensor([1, 2, 3])
    trace = trace_output(out, tokenizer, resolve(make_llada(), RECIPE), "Teacher")
    assert [text for ((_, text),) in trace.changes[:3]] == [" the", "ĠÃ", "©"]


def test_lines_show_what_stands_after_each_pass():
    assert printed(print_passes, make_trace()) == [
        "pass 1/2  +2    ░ . <end> ░",
        "pass 2/2  +1    five . <end>",
    ]
    assert printed(print_answer, make_trace()) == ["Teacher, 2 passes, 1.50 tokens per pass", "five . <end>"]
    # What has not been reached is left out.
    first, last = printed(
        print_passes, make_trace(changes=[[(0, "five")], [(0, ".")], [(1, "<end>")], [(1, "<end>")]])
    )
    assert first.endswith("+2    five .") and last.endswith("five . <end> <end>")


def test_tokens_are_coloured_from_first_to_last_pass():
    first, last = "\033[38;5;233;48;5;146m", "\033[38;5;233;48;5;229m"
    assert printed(print_passes, make_trace(), color=True)[1] == (
        f"pass 2/2  +1    {last}five\033[0m {first}.\033[0m {first}<end>\033[0m"
    )
    title, answer = printed(print_answer, make_trace(), color=True)
    assert title.startswith("Teacher, 2 passes") and "pass 1 \033[48;5;146m" in title and title.endswith(" pass 2")
    assert answer == f"{last}five\033[0m {first}.\033[0m {first}<end>\033[0m"
    last_line = printed(print_answer, make_trace(changes=[[(0, "<end>")]] * 4, nfe=1), color=True)[-1]
    assert last_line.endswith(f"{first}<end>\033[0m")


def test_tokens_neither_break_lines_nor_move_the_cursor():
    tokens = [" a", "\n", "\033[2J", "\N{RIGHT-TO-LEFT OVERRIDE}b"]
    trace = make_trace(changes=[[(0, token)] for token in tokens], nfe=1)
    # These tokens bring their spaces along.
    assert printed(print_answer, trace)[1:] == [r" a\n\x1b[2J\u202eb"]


@pytest.mark.parametrize(
    ("environment", "has_color"),
    [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_are_to_show_them(monkeypatch, environment, has_color):
    for name, value in ({"TERM": "xterm-256color", "COLORTERM": ""} | environment).items():
        monkeypatch.setenv(name, value)
    lines = {}
    for is_terminal in (True, False):
        stream = io.StringIO()
        print_answer(make_trace(), Console(file=stream, force_terminal=is_terminal))
        lines[is_terminal] = stream.getvalue()
    assert "\033[" not in lines[False] and ("\033[" in lines[True]) is has_color
    assert ("pass 1" in lines[True]) is has_color


def test_revised_tokens_are_seen_pass_by_pass():
    model, tokenizer = exact_model(make_dream), make_tokenizer()
    bold = {"max_new_tokens": 20, "block_length": 8, "entropy_bound": 2.0, "stop_at_eos": False}
    recipe = DiffusionGenerationConfig(revocation_threshold=0.9, **bold)
    out = model.generate(torch.tensor([[2, 3]]), recipe, **SHOWN)
    trace = trace_decode(model, tokenizer, [2, 3], recipe)
    assert sum(text is None for changes in trace.changes for _, text in changes) == out.num_revisions > 0
    steps = [trace.standing(position, trace.nfe)[0] for position in range(20)]
    assert steps == out.commit_step[0].tolist()
    for number in range(trace.nfe):
        texts = [trace.standing(position, number)[1] for position in range(20)]
        # A mask, and nothing else, is predicted by the next pass.
        assert [position for position in range(20) if texts[position] is None] == list(trace.predictions[number])
    lines = printed(print_passes, trace)
    taken_back = sum(int(line.split(" -")[1].split()[0]) for line in lines if " -" in line)
    assert taken_back == out.num_revisions
