# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The plug-in of SGLang over stand-ins, and, in slow tests, with SGLang's own classes, from its wheel."""

import pickle
import re
import subprocess
import sys
import zipfile
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from hf_dparallel_rules.commit_rules import rules_of_one_pass

from .helpers import make_llada2, make_sdar, refuses
from .simulated_sglang import make_args, serve, simulated_sglang


ROOT = Path(__file__).parents[1]
RULES = {
    "ConfidenceFactor": "confidence_factor",
    "ConfidenceThreshold": "confidence_threshold",
    "EntropyBound": "entropy_bound",
    "EntropyBudget": "entropy_budget",
    "EntropyThreshold": "entropy_threshold",
}


@pytest.fixture
def plugin():
    with simulated_sglang():
        module = import_module("hf_dparallel_rules.sglang_plugin")
        module.register()
        yield module


def make_config(algorithm="EntropyThreshold", values=None, **fields):
    values = {"entropy_threshold": 0.5} if values is None else values
    config = {"mask_id": 151669, "block_size": 4, "requires_separate_context_encoding": False}
    return SimpleNamespace(**config | {"algorithm": algorithm, "algorithm_config": values} | fields)


def test_every_rule_of_one_pass_is_an_algorithm(plugin):
    assert {name: cls.rule for name, cls in plugin.algo_name_to_cls.items()} == RULES
    assert set(RULES.values()) == set(rules_of_one_pass())
    assert {call.args[0] for call in plugin.AutoConfig.register.mock_calls} == {"sdar", "sdar_moe", "llada2_moe"}


def test_a_step_commits_in_place(plugin):
    algorithm = plugin.algo_name_to_cls["EntropyThreshold"](make_config(mask_id=3))
    logits = torch.tensor([[9.0, 0, 0, 0], [0, 9, 0, 0], [0, 1, 0, 9], [0, 0, 0, 0]]).repeat(2, 1)
    batch = SimpleNamespace(input_ids=torch.tensor([3, 2, 3, 3, 3, 1, 3, 0]), dllm_prompt_mask=None)
    # The mask token is never picked. A block without a mask is finished.
    assert algorithm.step(batch, logits, [None, None]) == [False, False]
    assert batch.input_ids.tolist() == [0, 2, 3, 3, 0, 1, 3, 0]
    assert algorithm.step(batch, logits, [None, None]) == [False, False]
    assert batch.input_ids.tolist() == [0, 2, 3, 0, 0, 1, 1, 0]
    batch.dllm_prompt_mask = torch.tensor([[False, False, True, False], [False] * 4])
    assert algorithm.step(batch, logits, [None, None]) == [True, True]
    assert batch.input_ids.tolist() == [0, 2, 3, 0, 0, 1, 1, 0]


@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated")
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 7.0, "rope_scaling": None},
        {"rope_theta": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
    ],
)
@pytest.mark.parametrize("name", ["SDARConfig", "SDARMoeConfig", "LLaDA2MoeConfig"])
def test_configurations_have_what_config_json_has(plugin, name, rope):
    values = {"hidden_size": 32, "head_dim": 12, "mask_token_id": 63, "use_qk_norm": True}
    config = pickle.loads(pickle.dumps(getattr(plugin, name).from_dict(values | rope)))
    values["rope_theta"] = 7.0
    assert {key: getattr(config, key) for key in values} == values


@pytest.mark.parametrize("value", [None, -1, "1e-1", True])
def test_a_rule_without_a_right_value_is_refused(plugin, value):
    config, args = make_config(values={"entropy_threshold": value}), make_args(make_sdar().config, "EntropyThreshold")
    with refuses("entropy_threshold", "Write it into the file of"):
        plugin.read_checkpoint(config, args)


@pytest.mark.parametrize("make", [make_sdar, make_llada2])
def test_mask_token_and_block_length_are_the_checkpoint_s(plugin, make):
    args = make_args(make().config, "EntropyThreshold")
    for block_size, values in ((4, {}), (8, {"block_size": 8})):
        config = make_config(block_size=values.get("block_size", 32), values={"entropy_threshold": 0.5} | values)
        plugin.read_checkpoint(config, args)
        assert (config.mask_id, config.block_size) == (63, block_size)
    # A server of another model.
    plugin.read_checkpoint(None, args)


def test_a_mask_token_outside_the_vocabulary_is_refused(plugin):
    args = make_args(SimpleNamespace(vocab_size=64), "EntropyThreshold")
    with refuses("mask_token_id", "got 151669"):
        plugin.read_checkpoint(make_config(), args)


def test_needs_no_library_but_torch():
    """Where neither the package nor what it needs can be imported."""
    libraries = ("transformers", "peft", "datasets", "trl", "accelerate")
    with patch.dict(sys.modules), simulated_sglang():
        for name in [name for name in sys.modules if name.partition(".")[0] in ("hf_dparallel", *libraries)]:
            del sys.modules[name]
        sys.modules.update(dict.fromkeys(libraries))
        module = import_module("hf_dparallel_rules.sglang_plugin")
        module.register()
        assert module.algo_name_to_cls.keys() == RULES.keys()
        # Who imports the package later gets it, or the reason why not.
        assert "hf_dparallel" not in sys.modules


@pytest.fixture(scope="module")
def sglang(tmp_path_factory):
    """The diffusion and plug-in files of the pinned wheel, unpacked, and our plug-in, loaded by SGLang."""
    pin = re.search(r"^sglang==\S+$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)[0]
    folder = tmp_path_factory.mktemp("sglang")
    options = ["--python-version", "3.11", "--platform", "manylinux_2_34_x86_64", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", *options, "--dest", str(folder), pin]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"The wheel of {pin} cannot be had, so nothing is compared with SGLang: {result.stderr[-300:]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if re.match(r"sglang/srt/(dllm|plugins)/.*\.py$", name)]
        wheel.extractall(folder, names)
    entry_point = EntryPoint("hf_dparallel", "hf_dparallel_rules.sglang_plugin:register", "sglang.srt.plugins")
    with simulated_sglang(), pytest.MonkeyPatch.context() as context:
        context.syspath_prepend(str(folder))
        plugins = import_module("sglang.srt.plugins")
        context.setattr(plugins, "entry_points", lambda group: [entry_point] if group == entry_point.group else [])
        plugins.load_plugins()
        yield folder


PROMPTS = [[5, 9, 3], [7, 2, 8, 6], [4, 11, 12, 13, 14, 15, 16, 3, 2], [8, 8, 30, 31, 32, 33, 34, 35]]
STOPS = [1, 20, 21]
# An algorithm, its YAML, and our settings for `engine="sglang"`.
COMPARISONS = [
    ("EntropyThreshold", "entropy_threshold: 2.0", {"entropy_threshold": 2.0}),
    ("EntropyBound", "entropy_bound: 3.0", {"entropy_bound": 3.0}),
    ("EntropyBudget", "entropy_budget: 4", {"entropy_budget": 4.0}),
    ("ConfidenceFactor", "confidence_factor: 1.5", {"confidence_factor": 1.5}),
    ("LowConfidence", "threshold: 0.3", {"confidence_threshold": 0.3}),
    ("LowConfidence", "", {"confidence_threshold": 0.95}),
    (
        "JointThreshold",
        "threshold: 0.3\nedit_threshold: 0.3\nmax_post_edit_steps: 4\npenalty_lambda: 0.5",
        {"confidence_threshold": 0.3, "editing_threshold": 0.3, "max_post_steps": 4, "penalty_lambda": 0.5},
    ),
    (
        "JointThreshold",
        "threshold: 0.2\nmax_post_edit_steps: 2",
        {"confidence_threshold": 0.2, "editing_threshold": 0.0, "max_post_steps": 2},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("fdfo", [True, False])
@pytest.mark.parametrize("make", [make_sdar, make_llada2])
@pytest.mark.parametrize(("algorithm", "lines", "settings"), COMPARISONS)
def test_decoding_equals_sglang(sglang, tmp_path, make, algorithm, lines, settings, fdfo):
    model = make()
    model.config.architectures = ["SDARForCausalLM" if make is make_sdar else "LLaDA2MoeModelLM"]
    (tmp_path / "dllm.yaml").write_text(lines)
    args = make_args(model.config, algorithm, tmp_path / "dllm.yaml", fdfo)
    # Synchronously, rows that are finished join the passes of the others.
    groups = [PROMPTS] if fdfo else [[prompt] for prompt in PROMPTS]
    theirs = [row for group in groups for row in serve(args, model, group, 13, STOPS)]
    ours = model.generate_many(PROMPTS, max_new_tokens=13, engine="sglang", eos_token_id=STOPS, **settings)
    assert theirs == [(row.tokens[: row.num_tokens].tolist(), row.nfe) for row in ours]
    assert len({passes for _, passes in theirs}) > 1


@pytest.mark.slow
def test_our_confidence_threshold_is_not_that_of_sglang(sglang, tmp_path):
    """It equals `generate` without an engine over whole blocks, but for a pass more to store each block."""
    model = make_sdar()
    model.config.architectures = ["SDARForCausalLM"]
    (tmp_path / "dllm.yaml").write_text("confidence_threshold: 0.2")
    args = make_args(model.config, "ConfidenceThreshold", tmp_path / "dllm.yaml")
    for prompt in PROMPTS:
        length = 16 - len(prompt)
        (theirs,) = serve(args, model, [prompt], length, [])
        (ours,) = model.generate_many([prompt], max_new_tokens=length, confidence_threshold=0.2, stop_at_eos=False)
        assert theirs == (ours.tokens.tolist(), ours.nfe + 4)
