# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Exports a student as a folder that a serving engine, or the published code of its family, loads."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_relative_imports
from transformers.utils import CONFIG_NAME, cached_file, logging

from hf_dparallel_rules.settings import SettingError

from ..generation.compatibility import check, has_adapter
from ..generation.configuration import DiffusionGenerationConfig, recipe_of, resolve
from ..generation.inputs import vocabulary_size
from ..hub.facts import ModelFacts
from ..hub.files import CALIBRATION_NAME, LAUNCH_NAME, SUMMARY_NAME, YAML_NAME, check_is_new
from ..hub.publish import write_companions
from ..reports import read_json, write_json
from .emulation import check_engine


logger = logging.get_logger(__name__)

ENGINES = ("sglang", "lmdeploy", "transformers")
# No index has the package, so the command installs a clone.
_INSTALL = "pip install --no-deps ./hf-dparallel && "
_LOADING = (
    "python -c 'import sys; from transformers import AutoModel; "
    "AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)' {folder}"
)


def export_for_engine(
    student: str | os.PathLike,
    engine: str,
    output_dir: str | os.PathLike,
    *,
    base_model: str | None = None,
    generation_config: DiffusionGenerationConfig | None = None,
) -> str:
    r"""
    Writes a student as a folder that SGLang, LMDeploy or the published code of its family loads.

    The folder holds merged weights under the published names, `config.json` with the architecture and every key that
    the engine reads, tokenizer and chat template, the code of the base model if it has some, the recipe, a card, and
    the settings of the engine. hf-dparallel loads it, too. Everything is checked before anything is written.

    Args:
        student (`str` or `os.PathLike`):
            A model or an adapter: a folder or a Hub id.
        engine (`str`):
            `"sglang"`, `"lmdeploy"` or `"transformers"`: the published code, with `trust_remote_code=True`.
        output_dir (`str` or `os.PathLike`):
            The folder, which must be new or empty.
        base_model (`str`, *optional*):
            The base model, whose code is copied. By default the one that the student names.
        generation_config ([`DiffusionGenerationConfig`], *optional*):
            Settings that override the student's recipe.

    Returns:
        `str`: the line that starts the engine; for `"transformers"`, one that loads the model.

    Raises:
        ValueError: for a family, a token or a recipe that the engine cannot serve.
        OSError: if the student has no tokenizer, or the folder is not empty.
    """
    if engine not in ENGINES:
        raise SettingError("engine", engine, f"must be one of {ENGINES}", "No other engine decodes these models.")
    output_dir = Path(output_dir)
    check_is_new(output_dir)
    model = AutoModelForMaskedLM.from_pretrained(student, dtype="auto").eval()
    base_model = base_model or _base_of(model, Path(student))
    own = cached_file(student, "tokenizer_config.json", _raise_exceptions_for_missing_entries=False)
    tokenizer = AutoTokenizer.from_pretrained(student if own else base_model)
    published, code = _published(base_model)
    given = generation_config.settings() if generation_config else {}
    recipe = recipe_of(model).updated(**given)
    _check_weights(model, tokenizer)
    if engine not in ("transformers", *getattr(model.config, "served_as", ())):
        rule, remedy = f"does not support {type(model).__name__}", "Use `hf-dparallel serve`."
        raise SettingError("engine", engine, rule, remedy)
    if engine != "transformers":
        recipe = recipe.updated(engine=engine)
        command, settings = _start(model, resolve(model, recipe, tokenizer), "auto_map" in published)
        published["architectures"] = [model.config.served_as[engine]]
    elif len(published) == 2:
        command, settings = _LOADING, {}
    else:
        rule = f"needs published code, and {base_model!r} has none (no `auto_map` in its config.json)"
        raise SettingError("engine", engine, rule, "Pass another `base_model`, or use hf-dparallel.")
    if tokenizer.chat_template is None:
        logger.warning(f"`{student}` has no chat template. Serve it with plain prompts only.")
    if has_adapter(model):
        model.merge_and_unload()
        # Engines do not read the weights of a head that is tied.
        weights = [layer.weight for layer in (model.get_input_embeddings(), model.get_output_embeddings())]
        model.config.tie_word_embeddings &= weights[0] is weights[1]
    model.generation_config = recipe
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    kept = [Path(student, name) for name in ([SUMMARY_NAME] if given else [SUMMARY_NAME, CALIBRATION_NAME])]
    for path in [*code, *filter(Path.is_file, kept)]:
        shutil.copyfile(path, output_dir / path.name)
    write_json(read_json(output_dir / CONFIG_NAME) | published, output_dir / CONFIG_NAME)
    if settings:
        (output_dir / YAML_NAME).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    (output_dir / LAUNCH_NAME).write_text(command.format(folder=".") + "\n", encoding="utf-8")
    write_companions(ModelFacts.read(output_dir, output_dir.name, base_model=base_model))
    return command.format(folder=shlex.quote(str(output_dir)))


def _base_of(model: PreTrainedModel, student: Path) -> str:
    """Returns the base model that an adapter or a saved model names, or the model itself."""
    if has_adapter(model):
        return model.peft_config[model.active_adapters()[0]].base_model_name_or_path
    said = ModelFacts.read(student, student.name).summary.get("base_model") if student.is_dir() else None
    return said or str(student)


def _published(base_model: str) -> tuple[dict[str, Any], list[Path]]:
    """Returns `architectures` and `auto_map` of a base model's `config.json`, and the files of its own code."""
    config = read_json(Path(cached_file(base_model, CONFIG_NAME)))
    published = {name: config[name] for name in ("architectures", "auto_map") if config.get(name)}
    values = published.get("auto_map", {}).values()
    references = [one for value in values for one in (value if isinstance(value, list) else [value]) if one]
    # Code of another repository is loaded from there.
    names = list(dict.fromkeys(one.partition(".")[0] for one in references if "--" not in one))
    files: list[Path] = []
    for name in names:
        files.append(Path(cached_file(base_model, f"{name}.py")))
        # Also the files that these import, in turn.
        names += set(get_relative_imports(files[-1])) - set(names)
    return published, files


def _check_weights(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    if getattr(model, "hf_quantizer", None) is not None:
        raise ValueError("The student is quantized. Merge the adapter into the base model in its own dtype.")
    if len(tokenizer) > (vocab_size := vocabulary_size(model)):
        sizes = f"{len(tokenizer)} tokens, and the model {vocab_size}"
        raise ValueError(f"The tokenizer has {sizes}. Pass the model that it was made for.")


def _start(model: PreTrainedModel, config: DiffusionGenerationConfig, has_code: bool) -> tuple[str, dict[str, Any]]:
    """Returns the command that starts the engine of a configuration, and the content of its YAML file."""
    check(config, model)
    check_engine(config)
    for name in ("stop_strings", "max_time"):
        if config.is_on(name):
            raise SettingError(name, getattr(config, name), "must be set by each request", f"Leave `{name}` out.")
    act = getattr(model.config, "hidden_act", "silu")
    if act != "silu":
        raise ValueError(f"`hidden_act` must be 'silu' for {config.engine}, got {act!r}. Use `hf-dparallel serve`.")
    # The published id: engines mask with it, whatever the checkpoint has. Our plug-in gives SGLang the checkpoint's.
    mask_token_id = type(model.config).mask_token_id
    if config.engine == "lmdeploy":
        return _start_lmdeploy(config, mask_token_id), {}
    return _start_sglang(config, mask_token_id, has_code)


def _start_sglang(config: DiffusionGenerationConfig, mask_token_id: int, has_code: bool) -> tuple[str, dict[str, Any]]:
    keys = {"threshold": "confidence_threshold", "block_size": "block_length"}
    algorithm = "LowConfidence"
    if config.is_on("editing_threshold"):
        algorithm = "JointThreshold"
        keys |= {"edit_threshold": "editing_threshold", "max_post_edit_steps": "max_post_steps"}
        keys |= {"penalty_lambda": "penalty_lambda"}
    elif not config.is_on("confidence_threshold"):
        # An algorithm of our plug-in.
        rule = str(config.commit_rule())
        algorithm, keys = rule.title().replace("_", ""), {rule: rule, "block_size": "block_length"}
    # Without code of its own, SGLang knows the type of the model from our plug-in.
    needs_plug_in = not has_code or "threshold" not in keys or config.mask_token_id != mask_token_id
    command = (
        f"{_INSTALL if needs_plug_in else ''}sglang serve --model-path {{folder}} --trust-remote-code "
        f"--dllm-algorithm {algorithm} --dllm-algorithm-config {{folder}}/{YAML_NAME} --max-running-requests 16"
    )
    return command, {key: getattr(config, name) for key, name in keys.items()}


def _start_lmdeploy(config: DiffusionGenerationConfig, mask_token_id: int) -> str:
    length = config.block_length
    if config.mask_token_id != mask_token_id:
        rule = f"must be {mask_token_id}, with which LMDeploy always masks"
        raise SettingError("mask_token_id", config.mask_token_id, rule, "Serve it with SGLang and our plug-in.")
    if config.is_on("confidence_threshold"):
        how = f"low_confidence_dynamic --dllm-confidence-threshold {config.confidence_threshold}"
    else:
        # LMDeploy gets the passes of a block, and divides its tokens among them.
        count = config.min_commits
        steps = max(1, length // count)
        if length // steps != count:
            rule = f"must be the block length, {length}, over a number of passes, rounded down"
            raise SettingError("min_commits", count, rule, f"Use {length // steps}.")
        strategy = "sequential" if config.commit_order == "left_to_right" else "low_confidence_static"
        how = f"{strategy} --dllm-denoising-steps {steps}"
    return (
        "lmdeploy serve api_server {folder} --backend pytorch --trust-remote-code "
        f"--dllm-block-length {length} --dllm-unmasking-strategy {how}"
    )
