# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""DiffusionGemma: the class of transformers, its recipe, its files, and its logits in ragged batches."""

import copy
import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    CompileConfig,
    DiffusionGemmaForBlockDiffusion,
)
from transformers.models.diffusion_gemma import DiffusionGemmaGenerationConfig

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.generation.configuration import resolve
from hf_dparallel.generation.decoder import Decoder
from hf_dparallel.generation.standard_parts import make_parts
from hf_dparallel.harness.likelihood import estimate_log_likelihood

from ..helpers import Recorder, make_diffusion_gemma, read_json, refuses


@pytest.fixture(scope="module")
def folder(golden_dir):
    return golden_dir / "diffusion_gemma"


@pytest.fixture(scope="module")
def model(folder):
    return AutoModelForMaskedLM.from_pretrained(folder / "model").eval()


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [None, False])
def test_logits_of_a_ragged_batch_equal_the_official_ones(folder, model, use_cache):
    """Without and with self-conditioning, and in a second canvas, whose prefix the sliding layers see a part of."""
    golden = load_file(folder / "forward.safetensors")
    config = resolve(model, max_new_tokens=32, stop_at_eos=False, use_cache=use_cache)
    decoder = Decoder(model, config, make_parts(config))
    (part, _), canvas = decoder.parts, decoder.canvas
    rows = range(sum(name.startswith("prompt_") for name in golden))
    decoder.add_prompts({row: golden[f"prompt_{row}"][0] for row in rows})
    # The canvases are not to be drawn.
    part._num_entered = dict.fromkeys(rows, 2)

    def logits(tokens):
        columns, _ = canvas.open_columns()
        canvas.sequences.scatter_(1, columns, torch.cat([golden[f"{tokens}_{row}"] for row in rows]))
        return columns, decoder.runner.logits(columns)

    def check(found, name):
        torch.testing.assert_close(found, torch.cat([golden[f"{name}_{row}"] for row in rows]), atol=1e-4, rtol=0)

    columns, found = logits("canvas")
    check(found, "logits")
    part._expected = {row: model.expected_embeddings(golden[f"logits_{row}"][0]) for row in rows}
    check(logits("canvas")[1], "logits_selfcond")
    canvas.commit(columns, canvas.sequences.gather(1, columns), torch.ones_like(columns, dtype=torch.bool))
    canvas.advance(torch.zeros(len(rows), dtype=torch.long))
    part._expected = {}
    check(logits("canvas2")[1], "logits_second_canvas")


def test_a_batch_draws_from_the_global_state_as_transformers_does(folder, model):
    lines = map(json.loads, (folder / "generation.jsonl").read_text().splitlines())
    (run,) = (line for line in lines if line["function"] == "transformers.generate_batch")
    recipe = DiffusionGemmaGenerationConfig(**run["params"])
    ids = torch.tensor(run["prompt_ids"])
    torch.manual_seed(run["torch_seed"])
    out = model.generate(ids, recipe, attention_mask=torch.tensor(run["attention_mask"]))
    assert out.sequences[:, ids.shape[1] :].tolist() == run["output_ids"]
    assert out.tokens_per_forward.tolist() == run["tokens_per_forward"]
    assert out.encoder_passes.tolist() == [run["calls_encoder"]] * len(ids)


def test_the_published_recipe_is_read_and_saved_by_our_names(model, tmp_path):
    published = {"entropy_bound": 0.1, "stop_entropy": 0.005, "stability_threshold": 1, "t_min": 0.4, "t_max": 0.8}
    settings = model.generation_config.settings()
    assert settings.items() >= (published | {"max_denoising_steps": 48, "max_new_tokens": 32}).items()
    assert "confidence_threshold" not in settings
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(again) is type(model) and again.generation_config.settings() == settings
    # The class that scripts ask for whose models are of other families.
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is type(model)
    # transformers reads weights and recipe, and keeps its classes.
    theirs = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert type(theirs) is DiffusionGemmaForBlockDiffusion
    assert all(torch.equal(weight, theirs.state_dict()[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(
    "recipe",
    [
        {"max_denoising_steps": 3, "entropy_bound": 2.0, "max_new_tokens": 8, "t_max": 0.9, "t_min": 0.1},
        {"max_denoising_steps": 9, "stop_entropy": 2.5, "stability_threshold": 2, "max_new_tokens": 12},
        {"max_denoising_steps": 2, "max_new_tokens": 4, "eos_token_id": [5, 6], "return_dict_in_generate": True},
    ],
)
def test_transformers_decodes_a_saved_model_by_its_recipe(tmp_path, recipe):
    model, ids = make_diffusion_gemma(), torch.tensor([[2, 3, 4]])
    model.generation_config = DiffusionGenerationConfig(eos_token_id=1, pad_token_id=0).updated(**recipe)
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert again.generation_config.settings() == model.generation_config.settings() | {"do_sample": True}
    answers = []
    for decoding in (model, again, AutoModelForImageTextToText.from_pretrained(tmp_path)):
        torch.manual_seed(0)
        answers.append(decoding.generate(ids, return_dict_in_generate=True).sequences[0])
    ours, second, theirs = answers
    assert torch.equal(ours, second) and torch.equal(ours[: len(theirs)], theirs) and len(theirs) > 3
    assert (ours[len(theirs) :] == 0).all()


@pytest.mark.parametrize(
    "setting",
    [{"do_sample": False}, {"temperature": 0.5}, {"entropy_threshold": 1.0}, {"t_max": 0.1}, {"use_cache": False}],
)
def test_a_recipe_that_transformers_has_no_words_for_is_saved_by_our_names(tmp_path, setting):
    recipe = DiffusionGenerationConfig(max_denoising_steps=3, t_min=0.3, **setting)
    recipe.save_pretrained(tmp_path)
    assert "sampler_config" not in read_json(tmp_path / "generation_config.json")
    assert DiffusionGenerationConfig.from_pretrained(tmp_path).settings() == recipe.settings()


def test_without_a_recipe_it_decodes_as_published():
    model = make_diffusion_gemma()
    config = resolve(model)
    assert (config.max_denoising_steps, config.entropy_bound, config.temperature) == (48, 0.1, 1.0)
    assert (config.block_length, config.mask_token_id, config.eos_token_id) == (4, None, 1)
    # The likeliest tokens, from the same noise.
    greedy = {"do_sample": False, "max_new_tokens": 8, "max_denoising_steps": 2}
    outs = [model.generate(torch.tensor([[2, 3]]), generator=torch.Generator(), **greedy) for _ in range(2)]
    assert torch.equal(*outs)
    # What another rule accepts is renoised in the same way.
    ruled = model.generate(torch.tensor([[2, 3]]), entropy_threshold=1.0, return_dict_in_generate=True, **greedy)
    assert ruled.nfe.item() <= 4 and ruled.num_revisions.item() == 0


def test_an_adapter_of_both_halves_has_its_recipe(tmp_path):
    def answer(model, **settings):
        told = {"generator": torch.Generator().manual_seed(0), "max_new_tokens": 8, "return_dict_in_generate": True}
        return model.generate(input_ids=torch.tensor([[2, 3, 4, 5]]), **told, **settings)

    lora = LoraConfig(r=4, target_modules=r".*(language_model|decoder)\..*\.(q|k|o)_proj", init_lora_weights=False)
    trained = get_peft_model(make_diffusion_gemma(), lora)
    trained.save_pretrained(tmp_path)
    recipe = {"max_denoising_steps": 3, "entropy_bound": 2.0}
    DiffusionGenerationConfig(**recipe).save_pretrained(tmp_path)
    model = make_diffusion_gemma()
    model.load_adapter(str(tmp_path))
    out = answer(model)
    assert out.nfe.item() <= 6 and torch.equal(out.sequences, answer(trained.eval(), **recipe).sequences)
    # Each half has weights of its own, though those of the model are tied.
    for half in ("encoder", "decoder"):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for name, weight in other.named_parameters():
                if half in name and "lora_B" in name:
                    weight.zero_()
            assert not torch.equal(out.sequences, answer(other).sequences)
    with pytest.raises(ValueError, match="cannot be merged"):
        model.merge_and_unload()


def test_a_streamer_gets_whole_canvases_and_the_likeliest_tokens_as_drafts():
    streamer, told = Recorder(), {"max_new_tokens": 8, "max_denoising_steps": 3, "stop_at_eos": False}
    torch.manual_seed(0)
    out = make_diffusion_gemma().generate(torch.tensor([[2, 3]]), streamer=streamer, stop_entropy=0.0, **told)
    assert streamer.tokens == out[0].tolist() and streamer.events == ["put", *["draft", "draft", "put"] * 2, "end"]
    assert [len(draft) for draft in streamer.drafts] == [6, 6, 10, 10]


def test_penalties_and_bans_look_at_decided_tokens_only():
    model, told = make_diffusion_gemma(), {"max_new_tokens": 12, "max_denoising_steps": 3, "stop_at_eos": False}
    prompt = torch.tensor([[2, 3]])
    plain = model.generate(prompt, generator=torch.Generator(), **told)[0, 2:].tolist()
    banned = model.generate(prompt, generator=torch.Generator(), suppress_tokens=plain, **told)[0, 2:].tolist()
    assert not {*plain} & {*banned}
    seen = []

    def note(ids, scores):
        seen.append(ids[0].tolist())
        return scores

    model.generate(prompt, logits_processor=[note], pad_token_id=0, **told)
    assert seen[0] == [2, 3] + [0] * 12 and 0 not in seen[-1][:10] and seen[-1][10:] == [0] * 4


def test_images_are_refused_by_name():
    model, ids = make_diffusion_gemma(), torch.tensor([[2, 3]])
    for images in ({"pixel_values": torch.zeros(1, 4)}, {"mm_token_type_ids": torch.tensor([[0, 1]])}):
        with refuses("pixel_values"):
            model.generate(ids, **images)
    with pytest.raises(ValueError, match="image"):
        model.generate(torch.tensor([[2, 62]]))
    # What a processor returns for text.
    assert model.generate(ids, mm_token_type_ids=torch.zeros_like(ids), max_new_tokens=4).shape == (1, 6)


@pytest.mark.parametrize(
    ("setting", "others"),
    [
        ("mask_token_id", {"mask_token_id": 5}),
        ("denoising_steps", {"denoising_steps": 256}),
        ("soft_threshold", {"soft_threshold": 0.5}),
        ("editing_threshold", {"editing_threshold": 0.5}),
        ("revocation_threshold", {"revocation_threshold": 0.5}),
        ("max_active_blocks", {"max_active_blocks": 2}),
        ("suffix_length", {"suffix_length": 4}),
        ("cache_implementation", {"cache_implementation": "dual"}),
        ("block_origin", {"block_origin": "sequence"}),
        ("max_new_tokens", {"max_new_tokens": 0}),
        ("compile_config", {"compile_config": CompileConfig()}),
    ],
)
def test_what_needs_a_mask_token_is_refused(setting, others):
    with refuses(setting):
        make_diffusion_gemma().generate(torch.tensor([[2, 3]]), **others)


def test_the_argument_of_transformers_is_answered_with_ours():
    with pytest.raises(ValueError, match="Use `entropy_bound` for `sampler_config`"):
        make_diffusion_gemma().generate(torch.tensor([[2, 3]]), sampler_config={"entropy_bound": 0.1})


def test_the_likelihood_of_masked_answers_is_refused():
    with pytest.raises(ValueError, match="masks"):
        estimate_log_likelihood(make_diffusion_gemma(), [2], [3, 4], None, 4, 2, torch.Generator())


def test_an_encoder_that_is_not_causal_is_refused():
    with pytest.raises(ValueError, match="use_bidirectional_attention"):
        make_diffusion_gemma(use_bidirectional_attention="all")
