# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import dataclasses

import pytest
from transformers import HfArgumentParser, TrainingArguments

from hf_dparallel import CertaintyForcingConfig

from ..helpers import refuses


def parse(*arguments):
    return HfArgumentParser(CertaintyForcingConfig).parse_args_into_dataclasses(["--output_dir", "out", *arguments])[0]


def test_defaults_are_as_in_the_paper():
    config = CertaintyForcingConfig("out")
    assert isinstance(config, TrainingArguments)
    assert (config.block_length, config.mask_ratio, config.masking) == (32, 0.5, "semi_autoregressive")
    assert (config.complementary_masking, config.max_length) == (True, 384)
    assert (config.certainty_temperature, config.certainty_weight, config.consistency_weight) == (0.5, 2.0, 1.0)
    assert (config.learning_rate, config.weight_decay, config.lr_scheduler_type) == (2e-5, 0.01, "constant")
    assert (config.logging_steps, config.report_to) == (10, [])
    assert parse().to_dict() == config.to_dict()


@pytest.mark.parametrize("steps", [4, 0.5])
def test_a_constant_rate_is_warmed_up_to_if_asked_for(steps):
    assert CertaintyForcingConfig("out", warmup_steps=steps).lr_scheduler_type == "constant_with_warmup"
    assert parse("--warmup_steps", str(steps)).lr_scheduler_type == "constant_with_warmup"
    assert CertaintyForcingConfig("out", warmup_steps=steps, lr_scheduler_type="cosine").lr_scheduler_type == "cosine"


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")
@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
def test_activation_checkpointing_by_both_of_its_names(name):
    assert CertaintyForcingConfig("out").activation_checkpointing is True
    for value in (True, False):
        assert CertaintyForcingConfig("out", **{name: value}).activation_checkpointing is value
    assert parse("--activation_checkpointing", "false").activation_checkpointing is False


def test_flags():
    config = parse(
        "--block_length", "8", "--mask_ratio", "0.25", "--masking", "random", "--complementary_masking", "false",
        "--certainty_weight", "1", "--certainty_temperature", "0.7", "--max_length", "64",
    )  # fmt: skip
    assert (config.block_length, config.mask_ratio, config.masking) == (8, 0.25, "random")
    assert (config.complementary_masking, config.max_length) == (False, 64)
    assert (config.certainty_weight, config.certainty_temperature) == (1.0, 0.7)
    assert parse("--mask_ratio", "random").mask_ratio == "random"
    assert parse("--chat_template_kwargs", '{"thinking": false}').chat_template_kwargs == {"thinking": False}
    assert parse("--no_complementary_masking").complementary_masking is False


def test_trl_parser(tmp_path):
    trl = pytest.importorskip("trl")
    path = tmp_path / "config.yaml"
    path.write_text("output_dir: out\nmask_ratio: random\nblock_length: 16\n")
    parser = trl.TrlParser(CertaintyForcingConfig)
    config = parser.parse_args_and_config(["--config", str(path), "--block_length", "4"])[0]
    assert (config.mask_ratio, config.block_length) == ("random", 4)


def test_help_is_printed(capsys):
    own = {field.name: field for field in dataclasses.fields(CertaintyForcingConfig)}
    assert all(own[name].metadata["help"] for name in own.keys() - vars(TrainingArguments("out")).keys())
    with pytest.raises(SystemExit, match="0"):
        HfArgumentParser(CertaintyForcingConfig).parse_args_into_dataclasses(["--help"])
    help_text = capsys.readouterr().out
    assert "--mask_ratio" in help_text and "--certainty_weight" in help_text


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("mask_ratio", "2"),
        ("mask_ratio", "half"),
        ("certainty_temperature", 0.0),
        ("certainty_weight", -1.0),
        ("consistency_weight", float("nan")),
        ("label_smoothing_factor", 0.1),
        ("train_sampling_strategy", "group_by_length"),
    ],
)
def test_bad_settings(setting, value):
    with refuses(setting):
        CertaintyForcingConfig("out", **{setting: value})
