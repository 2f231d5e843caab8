# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""All families against the official implementations, and what every transformers model must do."""

import itertools
import json
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from hf_dparallel import (
    A2DLlamaForMaskedDiffusion,
    A2DQwen2ForMaskedDiffusion,
    A2DQwen3Config,
    DreamConfig,
    DreamForMaskedDiffusion,
    LLaDA2ForMaskedDiffusion,
    LLaDAConfig,
    LLaDAForMaskedDiffusion,
    LLaDAMoeForMaskedDiffusion,
    RND1Config,
    RND1ForMaskedDiffusion,
    SDARConfig,
    SDARForMaskedDiffusion,
)

from ..helpers import (
    edit_json,
    make_a2d,
    make_dream,
    make_fast_dllm,
    make_llada,
    make_llada2,
    make_llada_moe,
    make_nemotron,
    make_rnd1,
    make_sdar,
    make_sdar_moe,
    refuses,
)


# Settings that transformers 5 or the names of our classes change, and ids that only our files say.
WRITTEN_OTHERWISE = {"architectures", "auto_map", "dtype", "embedding_size", "mask_token_id", "rope_scaling"}
WRITTEN_OTHERWISE |= {"sliding_window", "torch_dtype", "transformers_version"}
# Their recorded logits have their attention in the name.
FULL = ("llada_moe", "rnd1")
GOLDEN_MODELS = ("llada", "llada_gqa", "dream", *FULL)
# With the lengths of blocks that their outputs were recorded for.
BLOCK_CAUSAL = dict.fromkeys(("sdar", "llada2"), (4, 8, 16, 32)) | {"fast_dllm_v2": (8, 32)}
MAKERS = pytest.mark.parametrize(
    "make_model", [make_llada, make_dream, make_sdar, make_llada2, make_a2d, make_fast_dllm, make_nemotron]
)


@pytest.mark.usefixtures("eager_flex_attention")
@pytest.mark.parametrize(
    ("name", "attention"),
    [*itertools.product([*GOLDEN_MODELS, *BLOCK_CAUSAL], ["eager", "sdpa"]), ("llada_gqa", "flex_attention")],
)
def test_logits_equal_the_official_ones(golden_dir, name, attention):
    model, info = AutoModelForMaskedLM.from_pretrained(
        golden_dir / name / "model", attn_implementation=attention, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    golden = load_file(golden_dir / name / "forward.safetensors")
    for block_length, index in itertools.product(BLOCK_CAUSAL.get(name, (None,)), range(4)):
        model.config.block_length = block_length
        with torch.no_grad():
            logits = model(input_ids=golden[f"input_ids_{index}"]).logits
        kind = f"_b{block_length}" if block_length else "_full" if name in FULL else ""
        official = golden[f"logits_{index}{kind}"]
        if model.shift_logits:
            # The official one leaves the shift to its samplers; ours does it in the model.
            official = torch.cat([official[:, :1], official[:, :-1]], dim=1)
        torch.testing.assert_close(logits, official, atol=1e-4, rtol=0)


@pytest.mark.parametrize("block_length", [None, 4, 8, 32])
def test_a2d_has_the_attention_that_it_is_loaded_with(golden_dir, block_length):
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / "a2d/model", block_length=block_length)
    golden = load_file(golden_dir / "a2d/forward.safetensors")
    kind = "full" if block_length is None else f"b{block_length}"
    for index in range(4):
        with torch.no_grad():
            logits = model(input_ids=golden[f"input_ids_{index}"]).logits
        torch.testing.assert_close(logits, golden[f"logits_{index}_{kind}"], atol=1e-4, rtol=0)
    if block_length == 8:
        ids, is_token = golden["input_ids_padded"], torch.arange(16)[None] >= 3
        # Blocks that end where the prompt ends: two of eight columns, with the padding.
        blocks = torch.arange(16) // 8
        visible = (blocks[None] <= blocks[:, None]) & is_token
        positions = (torch.arange(16) - 3).clamp(min=0)[None]
        with torch.no_grad():
            logits = model(ids, attention_mask=visible[None, None], position_ids=positions).logits
        torch.testing.assert_close(logits[:, 3:], golden["logits_padded_b8"][:, 3:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("block_length", [None, 4])
@pytest.mark.parametrize(
    "make_model",
    [make_a2d, partial(make_a2d, of=A2DQwen2ForMaskedDiffusion), partial(make_a2d, of=A2DLlamaForMaskedDiffusion)],
)
def test_a2d_is_an_autoregressive_model_with_another_mask(tmp_path, make_model, block_length, shift):
    """The class of transformers reads the same files. What a checkpoint does not say is said in loading, and kept."""
    make_model().save_pretrained(tmp_path)
    kind = type(make_model()).config_class.model_type
    edit_json(tmp_path / "config.json", model_type=kind.removeprefix("a2d-"))
    causal = AutoModelForCausalLM.from_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", model_type=kind)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path, block_length=block_length, shift_logits=shift)
    model.save_pretrained(tmp_path / "again")
    block, ids = torch.arange(14) // (block_length or 14), torch.arange(2, 16)[None]
    with torch.no_grad():
        logits = causal(ids, attention_mask=(block[None] <= block[:, None])[None, None]).logits
        expected = torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if shift else logits
        torch.testing.assert_close(model(ids).logits, expected)
        again = AutoModelForMaskedLM.from_pretrained(tmp_path / "again")
        assert type(again) is type(model) and torch.equal(again(ids).logits, model(ids).logits)


def test_a_block_causal_a2d_is_not_loaded_with_full_attention(golden_dir, tmp_path):
    folder = tmp_path / "Qwen3-0.6B-diffusion-bd3lm-v0.1"
    shutil.copytree(golden_dir / "a2d/model", folder)
    with pytest.raises(ValueError, match="`block_length` must be given"):
        AutoModelForMaskedLM.from_pretrained(folder)
    AutoModelForMaskedLM.from_pretrained(folder, block_length=8).save_pretrained(folder)
    assert AutoModelForMaskedLM.from_pretrained(folder).attention == "block_causal"


def test_weights_that_a_class_would_drop_are_an_error(tmp_path):
    """The biases of a Qwen2 that is loaded as a Llama."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 16}
    Qwen2ForCausalLM(Qwen2Config(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has 3 weights that are none of A2DLlama.*_proj.bias'"):
        A2DLlamaForMaskedDiffusion.from_pretrained(tmp_path)


@pytest.mark.slow
def test_compiled_flex_attention(golden_dir):
    """One model stands for all: it has fewer key than query heads."""
    test_logits_equal_the_official_ones(golden_dir, "llada_gqa", "flex_attention")


@pytest.mark.parametrize("name", [*GOLDEN_MODELS, *BLOCK_CAUSAL, "a2d"])
def test_save_writes_the_published_names_back(golden_dir, tmp_path, name):
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / name / "model")
    model.save_pretrained(tmp_path)
    saved, published = (load_file(path / "model.safetensors") for path in (tmp_path, golden_dir / name / "model"))
    assert saved.keys() == published.keys()
    assert all(torch.equal(saved[key], published[key]) for key in saved)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "auto_map" not in config
    official = json.loads((golden_dir / name / "model" / "config.json").read_text())
    for key in official.keys() - WRITTEN_OTHERWISE:
        assert config.get(key) == official[key], key


@pytest.mark.parametrize("auto_class", [AutoModel, AutoModelForMaskedLM, AutoModelForCausalLM])
@pytest.mark.parametrize("kwargs", [{}, {"trust_remote_code": False}, {"trust_remote_code": True}], ids=str)
def test_auto_classes_load_ours_whatever_the_auto_map(golden_dir, auto_class, kwargs):
    for family, own_class in {
        "llada": LLaDAForMaskedDiffusion,
        "dream": DreamForMaskedDiffusion,
        "sdar": SDARForMaskedDiffusion,
        "llada2": LLaDA2ForMaskedDiffusion,
        "llada_moe": LLaDAMoeForMaskedDiffusion,
        "rnd1": RND1ForMaskedDiffusion,
    }.items():
        assert isinstance(auto_class.from_pretrained(golden_dir / family / "model", **kwargs), own_class)


@MAKERS
def test_logits_to_keep(make_model):
    model = make_model()
    ids = torch.randint(2, 60, (3, 12), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 3], [5, 5], [11, 2]])
    mask = torch.rand(3, 12, generator=torch.Generator().manual_seed(1)) < 0.4
    with torch.no_grad():
        full = model(ids).logits
        torch.testing.assert_close(model(ids, logits_to_keep=4).logits, full[:, -4:])
        expected = torch.stack([full[row, positions[row]] for row in range(3)])
        torch.testing.assert_close(model(ids, logits_to_keep=positions).logits, expected)
        torch.testing.assert_close(model(ids, logits_to_keep=mask).logits, full[mask])


@MAKERS
def test_labels_give_the_cross_entropy(make_model):
    model = make_model()
    ids = torch.arange(2, 12)[None]
    labels = ids.clone()
    labels[:, ::2] = -100
    output = model(ids, labels=labels)
    log_probabilities = output.logits.log_softmax(-1)
    expected = -torch.stack([log_probabilities[0, i, ids[0, i]] for i in range(1, 10, 2)]).mean()
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=3).loss, expected * 5 / 3)
    torch.testing.assert_close(model(ids, labels=labels, logits_to_keep=labels != -100).loss, expected)
    output = model.bfloat16()(ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(output.logits[0].float(), labels[0])
    assert output.loss.dtype == torch.float32 and output.loss == expected


def test_grouped_query_defaults_and_aliases():
    config = LLaDAConfig(d_model=64, n_heads=8, n_layers=3, mlp_hidden_size=96)
    assert config.n_kv_heads == config.num_key_value_heads == 8
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (64, 3, 96)


@pytest.mark.parametrize(
    ("make_model", "model_type"),
    [(make_llada, "llada"), (make_llada_moe, "llada"), (make_dream, "Dream"), (make_sdar, "sdar")],
)
def test_families_that_share_a_model_type_are_other_architectures(make_model, model_type, tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    published = json.loads((tmp_path / "config.json").read_text())
    assert published["model_type"] == model_type
    for loaded in (AutoModelForMaskedLM.from_pretrained(tmp_path), type(model).from_pretrained(tmp_path)):
        assert type(loaded) is type(model)
        ids = torch.arange(2, 14)[None]
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    other = LLaDAForMaskedDiffusion if make_model is not make_llada else DreamForMaskedDiffusion
    with pytest.raises(ValueError, match=f"{other.__name__} takes no {type(model.config).__name__}"):
        other(model.config)


@pytest.mark.parametrize(
    ("config_class", "settings", "other"),
    [
        (LLaDAConfig, {"num_experts": 8}, "LLaDAMoeConfig"),
        (DreamConfig, {"block_size": 32}, "SDARConfig"),
        (DreamConfig, {"expand_token_id": 5}, "DreamOn"),
        (LLaDAConfig, {"block_size": 32}, "attend to all others"),
        (RND1Config, {"bd_size": 32}, "attend to all others"),
        (A2DQwen3Config, {"block_size": 32}, "Pass `block_length` instead"),
    ],
)
def test_what_a_configuration_describes_instead_is_named(config_class, settings, other):
    with pytest.raises(ValueError, match=other):
        config_class(**settings)


def test_dream_reasoner_reads_what_its_file_leaves_to_defaults(tmp_path):
    """Its published file has Dream's `model_type`, and settings of Qwen3."""
    file = {"model_type": "Dream", "architectures": ["DreamForCausalLM"], "block_size": 32, "rope_theta": 1000000}
    (tmp_path / "config.json").write_text(json.dumps(file))
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, SDARConfig)
    assert (config.head_dim, config.block_length, config.mask_token_id) == (128, 32, 151669)


@pytest.mark.parametrize("make_model", [make_llada, make_dream])
def test_an_integer_is_a_base_of_rotary_frequencies(make_model):
    """Writers of JSON make no difference between 10000 and 10000.0."""
    ids = torch.arange(2, 14)[None]
    assert torch.equal(make_model(rope_theta=10_000)(ids).logits, make_model(rope_theta=10_000.0)(ids).logits)


ROUTING = {"norm_topk_prob": False, "rotary_dim": 3, "router_dtype": "bf16", "use_bias": True}
LAYERS = {"layer_types": ["sliding_attention"] * 2, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "mrope"}}
WINDOW = {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("make_model", "settings"),
    [
        *((make_llada, {name: value}) for name, value in (LAYERS | {"alibi": True, "block_group_size": 2}).items()),
        (make_llada, {"hidden_act": "gelu"}),
        # What stretches the positions of a model in a way of its own.
        *((make, {"rope_scaling_factor": 32}) for make in (make_llada, make_dream)),
        *((make, {name: value}) for make in (make_dream, make_sdar, make_sdar_moe) for name, value in LAYERS.items()),
        *((make, WINDOW) for make in (make_dream, make_sdar, make_sdar_moe, make_llada2)),
        *((make_llada2, {name: value}) for name, value in (ROUTING | {"score_function": "softmax"}).items()),
        (make_llada2, {"rope_scaling": {"type": "mrope"}}),
        (make_llada_moe, {"moe_layer_freq": [0, 1]}),
        (make_llada_moe, {"shared_expert_intermediate_size": 16}),
        *((make, {"is_causal": True}) for make in (make_a2d, make_rnd1, make_nemotron)),
        (partial(make_a2d, A2DLlamaForMaskedDiffusion), {"sliding_window": 2}),
    ],
)
def test_what_would_be_computed_in_another_way_is_refused(make_model, settings):
    names = {"hidden_act": "activation_type", "rope_scaling": "rope_type"}
    name, value = next(iter(settings.items()))
    value = value["type"] if isinstance(value, dict) else value[0] if isinstance(value, list) else value
    with pytest.raises(ValueError, match=f"`{names.get(name, name)}={value!r}`"):
        make_model(**settings)


@pytest.mark.parametrize("make_model", [make_a2d, make_sdar, make_llada2, make_nemotron])
@pytest.mark.parametrize("length", [0, -4])
def test_a_block_of_no_tokens_is_refused(make_model, length):
    with refuses("block_length"):
        make_model(block_length=length)


@pytest.mark.parametrize("make_model", [make_a2d, make_llada, make_nemotron])
def test_a_setting_of_others_that_is_called_attention_changes_nothing(make_model):
    assert make_model(attention="sdpa").attention == make_model().attention


def test_configurations_say_what_the_published_code_would_not_assume():
    """Its defaults are others: of the base of the rotary embedding for Dream, of the architecture for LLaDA."""
    assert DreamConfig().to_dict()["rope_theta"] == 1_000_000
    rope = {"rope_type": "default", "rope_theta": 5e5}
    assert DreamConfig(rope_parameters=rope).rope_theta == 5e5
    assert DreamConfig(rope_theta=5e5).rope_parameters["rope_theta"] == 5e5
    saved = LLaDAConfig().to_dict()
    assert saved["block_type"] == "llama" and saved["rope"] is True and saved["layer_norm_type"] == "rms"


def test_the_embedding_of_the_padding_token_is_drawn_like_others():
    config = make_llada().config
    assert LLaDAForMaskedDiffusion(config).get_input_embeddings().weight[config.pad_token_id].abs().sum() > 0
