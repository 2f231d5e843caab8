# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A decode as text, held against what `generate` returns."""

from itertools import pairwise

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.inspection.trace import _text_of, trace_decode

from ..helpers import MASK, exact_model, make_dream, make_llada, make_sdar, make_tokenizer
from .helpers import standing


RECIPE = DiffusionGenerationConfig(max_new_tokens=16, block_length=8, entropy_threshold=1.0, eos_token_id=34)
SHOWN = {"output_certainty": True, "return_dict_in_generate": True}


def test_trace_holds_what_generate_returns():
    model, tokenizer, prompt = make_llada(), make_tokenizer(), [9, 10, 11]
    out = model.generate(torch.tensor([prompt]), RECIPE, **SHOWN)
    trace = trace_decode(model, tokenizer, prompt, RECIPE, "Teacher")
    assert (trace.name, trace.prompt) == ("Teacher", tokenizer.decode(prompt))
    texts = [standing(trace, position, trace.nfe)[1] for position in range(16)]
    # Together they are the text, also where the tokenizer joins words by spaces.
    answer = tokenizer.decode(out.sequences[0])[len(tokenizer.decode(prompt)) :]
    assert answer.startswith("".join(text for text in texts if text is not None)) and None in texts
    steps = [standing(trace, position, trace.nfe)[0] for position in range(16)]
    assert steps == out.commit_step[0].tolist() and -1 in steps
    assert (trace.nfe, trace.tokens_per_forward) == (out.nfe.item(), out.tokens_per_forward.item())
    assert trace.settings == {"max_new_tokens": 16, "block_length": 8, "entropy_threshold": 1.0}
    assert trace.blocks == [range(0, 8), range(8, 16)]
    assert len(trace.predictions) == trace.nfe
    for step, predictions in enumerate(trace.predictions):
        assert list(predictions) == [p for p in range(16) if not out.entropies[0, step, p].isnan()]
        for position, prediction in predictions.items():
            assert prediction.entropy == round(out.entropies[0, step, position].item(), 4)
            assert prediction.confidence == round(out.confidences[0, step, position].item(), 4)
            ids, probabilities = (x[0, step, position].tolist() for x in (out.candidates, out.candidate_probabilities))
            assert prediction.candidates == [
                (tokenizer.decode([t]), round(p, 4)) for t, p in zip(ids, probabilities, strict=True) if p >= 0.0005
            ]


def test_an_entropy_that_counts_as_infinite_is_a_number_on_the_page():
    model = make_llada()
    with torch.no_grad():
        head = model.get_output_embeddings()
        head.weight[MASK] = -50 * head.weight[7]
    trace = trace_decode(model, make_tokenizer(), [9, 10], RECIPE)
    entropies = [each.entropy for of_pass in trace.predictions for each in of_pass.values()]
    assert max(entropies) == 9999.0


def test_the_recipe_of_the_model_counts():
    model = make_llada()
    model.generation_config.max_new_tokens, model.generation_config.block_length = 8, 4
    trace = trace_decode(model, make_tokenizer(), [9, 10])
    assert trace.blocks[0] == range(0, 4) and trace.nfe <= 8
    assert trace.settings == {"max_new_tokens": 8, "block_length": 4, "denoising_steps": 8}


def test_blocks_of_an_infilled_prompt_and_of_answers():
    model, tokenizer = make_llada(), make_tokenizer()
    infilled = trace_decode(
        model, tokenizer, [9, MASK, 11, 12, MASK], RECIPE.updated(max_new_tokens=0, block_length=4)
    )
    assert infilled.prompt == "" and len(infilled.changes) == 5
    assert [standing(infilled, position, 0)[1] is None for position in range(5)] == [False, True, False, False, True]
    assert infilled.blocks == [range(0, 1), range(1, 5)]
    ten = RECIPE.updated(max_new_tokens=10, block_length=4, eos_token_id=[])
    assert trace_decode(model, tokenizer, [9], ten).blocks == [range(0, 4), range(4, 8), range(8, 10)]
    assert trace_decode(make_sdar(), tokenizer, [9], ten).blocks == [range(0, 3), range(3, 7), range(7, 10)]
    of_answer = trace_decode(make_sdar(), tokenizer, [9], ten.updated(block_origin="answer"))
    assert of_answer.blocks == [range(0, 4), range(4, 8), range(8, 10)]


def test_parts_of_a_character_are_named():
    vocabulary = {"<mask>": 0, "Ġthe": 1, "ĠÃ": 2, "©": 3}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="<mask>")
    texts = [_text_of(tokenizer, token, before) for before, token in pairwise([9, 1, 2, 3])]
    assert texts == [" the", "ĠÃ", "©"]


def test_revised_tokens_are_in_the_trace():
    model, tokenizer = exact_model(make_dream), make_tokenizer()
    bold = {"max_new_tokens": 20, "block_length": 8, "entropy_bound": 2.0, "stop_at_eos": False}
    recipe = DiffusionGenerationConfig(revocation_threshold=0.9, **bold)
    out = model.generate(torch.tensor([[2, 3]]), recipe, **SHOWN)
    trace = trace_decode(model, tokenizer, [2, 3], recipe)
    assert sum(text is None for changes in trace.changes for _, text in changes) == out.num_revisions > 0
    steps = [standing(trace, position, trace.nfe)[0] for position in range(20)]
    assert steps == out.commit_step[0].tolist()
    for number in range(trace.nfe):
        texts = [standing(trace, position, number)[1] for position in range(20)]
        # A mask, and nothing else, is predicted by the next pass.
        assert [position for position in range(20) if texts[position] is None] == list(trace.predictions[number])
