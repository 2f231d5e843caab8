# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What transformers asks of every model class, for each of ours."""

import copy
import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM

import hf_dparallel
from hf_dparallel.models.base import MaskedDiffusionModel

from ..helpers import (
    FAMILIES,
    enable_checkpointing,
    left_padded,
    make_dream,
    make_illada,
    make_llada,
    make_llada_moe,
    make_rnd1,
)


MAKERS = pytest.mark.parametrize("make_model", FAMILIES)
IDS = torch.randint(2, 60, (3, 11), generator=torch.Generator().manual_seed(0))


FAMILY_FILES = sorted(Path(hf_dparallel.models.__file__).parent.glob("*/modeling_*.py"))


@pytest.mark.parametrize("file", FAMILY_FILES, ids=lambda file: file.stem)
def test_the_package_imports_every_family(file):
    """Or the Auto classes would not find it: registering is what importing a family does."""
    module = importlib.import_module(f"hf_dparallel.models.{file.parent.name}.{file.stem}")
    classes = [cls for cls in vars(module).values() if getattr(cls, "__module__", None) == module.__name__]
    models = [cls for cls in classes if isinstance(cls, type) and issubclass(cls, MaskedDiffusionModel)]
    families = [cls for cls in models if hasattr(cls, "config_class")]
    assert families
    for family in families:
        for public in (family, family.config_class):
            name, source = public.__name__, public.__module__.removeprefix("hf_dparallel")
            line = f"from {source} import {name} as {name}"
            assert name in vars(hf_dparallel), f"hf_dparallel/__init__.py lacks `{line}`"


def logits(model, ids=IDS, **kwargs) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, **kwargs).logits


def reloaded(model, folder, **kwargs):
    model.save_pretrained(folder)
    return AutoModelForMaskedLM.from_pretrained(folder, **kwargs)


@MAKERS
def test_shards_and_dtype_are_read_back(make_model, tmp_path):
    model = make_model().bfloat16()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path, dtype="auto")
    assert type(loaded) is type(model) and loaded.dtype == torch.bfloat16 and not loaded.training
    weights = model.state_dict()
    assert loaded.state_dict().keys() == weights.keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.state_dict().items())
    assert AutoModelForMaskedLM.from_pretrained(tmp_path, dtype=torch.float32).lm_head.weight.dtype == torch.float32


@MAKERS
def test_a_configuration_is_read_back(make_model, tmp_path):
    config = make_model(some_setting_of_others=[1, 2]).config
    config.save_pretrained(tmp_path)
    # The second time as people write it, with what differs from the defaults only.
    for _ in range(2):
        loaded = AutoConfig.from_pretrained(tmp_path)
        assert type(loaded) is type(config) and loaded.some_setting_of_others == [1, 2]
        assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict()
        (tmp_path / "config.json").write_text(json.dumps(config.to_diff_dict()))


@MAKERS
def test_a_constructor_computes_nothing_and_the_initialization_fills_everything(make_model):
    config = make_model().config
    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(config)
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    model = AutoModelForMaskedLM.from_config(config)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    # But for biases, which begin at zero.
    assert all(parameter.any() for parameter in model.parameters() if parameter.ndim > 1)


@MAKERS
@pytest.mark.usefixtures("eager_flex_attention")
@pytest.mark.parametrize("attention", ["eager", "flex_attention"])
def test_attention_is_sdpa_however_it_is_computed(make_model, attention):
    model = make_model()
    ids, mask = left_padded(IDS.tolist() + [[2, 3, 4]])
    by_implementation = []
    for implementation in ("sdpa", attention):
        model.set_attn_implementation(implementation)
        by_implementation.append(logits(model, ids, attention_mask=mask)[mask.bool()])
    torch.testing.assert_close(*by_implementation, atol=1e-4, rtol=1e-4)


@MAKERS
def test_a_row_has_the_logits_that_it_has_alone(make_model):
    model = make_model()
    rows = [row[: 11 - 3 * index] for index, row in enumerate(IDS.tolist())]
    ids, mask = left_padded(rows)
    counted = logits(model, ids, attention_mask=mask)
    given = logits(model, ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(0))
    for index, row in enumerate(rows):
        alone = logits(model, torch.tensor([row]))[0]
        torch.testing.assert_close(given[index, -len(row) :], alone, atol=1e-4, rtol=1e-4)
        # Where logits are shifted, those of a first token need `position_ids`.
        torch.testing.assert_close(counted[index, 1 - len(row) :], alone[1:], atol=1e-4, rtol=1e-4)


@MAKERS
def test_flash_attention_is_bidirectional_or_refused(make_model):
    """It needs a GPU to run, but what it reads (the flag of each module) can be checked anywhere."""
    model = make_model()
    assert not any(layer.self_attn.is_causal for layer in model.model.layers) and not model.config.is_causal
    if make_model in (make_llada, make_illada, make_dream, make_llada_moe, make_rnd1):
        assert model._supports_flash_attn
    else:
        with pytest.raises(ValueError, match="does not support Flash Attention"):
            model.set_attn_implementation("flash_attention_2")


@MAKERS
def test_the_same_call_gives_the_same_logits(make_model):
    model = make_model()
    expected = logits(model)
    assert torch.equal(logits(model), expected)
    # There is no dropout.
    assert torch.equal(logits(copy.deepcopy(model).train()), expected)


@MAKERS
def test_embeddings_stand_for_their_tokens(make_model):
    model = make_model()
    embeddings = model.get_input_embeddings()(IDS).detach()
    assert torch.equal(logits(model, None, inputs_embeds=embeddings), logits(model))


@MAKERS
def test_hidden_states_and_attentions_are_given_when_asked_for(make_model):
    model = make_model()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(IDS)
        output = model(IDS, output_hidden_states=True, output_attentions=True)
        *_, states, attentions = model(IDS, output_hidden_states=True, output_attentions=True, return_dict=False)
    assert plain.hidden_states is None and plain.attentions is None
    assert [state.shape for state in output.hidden_states] == [(3, 11, 32)] * 3
    assert [weights.shape for weights in output.attentions] == [(3, 4, 11, 11)] * 2
    for weights in output.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 11))
    assert torch.equal(output.logits, plain.logits)
    assert torch.equal(states[-1], output.hidden_states[-1]) and torch.equal(attentions[-1], output.attentions[-1])


@MAKERS
@pytest.mark.parametrize("tied", [False, True])
def test_the_vocabulary_can_be_resized(make_model, tied, tmp_path):
    name = "weight_tying" if make_model is make_llada else "tie_word_embeddings"
    model = make_model(**{name: tied})
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    before = logits(model)
    model.resize_token_embeddings(70)
    torch.testing.assert_close(logits(model)[..., :64], before)
    model.resize_token_embeddings(64)
    torch.testing.assert_close(logits(model), before)
    model.resize_token_embeddings(66)
    loaded = reloaded(model, tmp_path)
    assert loaded.config.vocab_size == loaded.lm_head.out_features == 66
    assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) == tied
    assert torch.equal(logits(loaded), logits(model))


def gradients(model) -> dict[str, torch.Tensor]:
    model(IDS, labels=IDS).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@MAKERS
def test_gradient_checkpointing_gives_the_same_gradients(make_model):
    expected = gradients(make_model().train())
    model = make_model().train()
    enable_checkpointing(model)
    assert any(module.gradient_checkpointing for module in model.model.layers)
    torch.testing.assert_close(gradients(model), expected)


@MAKERS
def test_configs_have_the_tokens_that_transformers_asks_for(make_model):
    config = make_model().config
    assert config.eos_token_id is not None and config.pad_token_id is not None
    assert config.bos_token_id is None or config.bos_token_id < config.vocab_size


@MAKERS
def test_training_lowers_the_loss(make_model):
    model = make_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = model(torch.full_like(IDS, 63), labels=IDS[:1].expand_as(IDS)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@MAKERS
def test_a_body_alone_is_no_checkpoint(make_model, tmp_path):
    make_model().model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="lacks 1 weights of .*'lm_head.weight'"):
        type(make_model()).from_pretrained(tmp_path)


@MAKERS
def test_scaled_rotary_embeddings(make_model, tmp_path):
    plain = make_model(rope_parameters=make_model().config.rope_parameters | {"rope_type": "default"})
    scaling = plain.config.rope_parameters | {"rope_type": "linear", "factor": 4.0}
    model = reloaded(make_model(rope_parameters=scaling), tmp_path)
    assert model.config.rope_parameters["factor"] == 4.0
    torch.testing.assert_close(model.model.rotary_emb.inv_freq * 4, plain.model.rotary_emb.inv_freq)
    assert not torch.allclose(logits(model), logits(plain))


@MAKERS
def test_the_plan_of_tensor_parallelism_splits_all_of_the_attention_or_none(make_model):
    model = make_model()
    plan = "|".join(re.escape(pattern).replace(r"\*", r"\d+") for pattern in model.tp_plan)
    linear = [name for name, module in model.named_modules() if "self_attn." in name and isinstance(module, nn.Linear)]
    assert len(linear) >= 2 * 2 and "lm_head" in model.tp_plan
    assert len({re.fullmatch(plan, name) is None for name in linear}) == 1
