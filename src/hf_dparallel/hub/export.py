# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Exports a student as a folder that SGLang or LMDeploy loads."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import snapshot_download
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel
from transformers.utils import CONFIG_NAME, cached_file, logging

from hf_dparallel_rules.settings import SETTINGS, SettingError

from ..generation.adapters import has_adapter
from ..generation.configuration import DiffusionGenerationConfig, recipe_of, resolve
from ..generation.inputs import vocabulary_size
from ..reports import check_is_new, read_json, write_json
from .card import SUMMARY_NAME, read_if_saved


logger = logging.get_logger(__name__)

# The line that starts the engine, and what it reads beside the checkpoint.
LAUNCH_NAME = "launch.sh"
YAML_NAME = "dllm.yaml"
COMMANDS = {
    "sglang": "sglang serve --model-path {folder} --trust-remote-code --dllm-algorithm {algorithm} "
    f"--dllm-algorithm-config {{folder}}/{YAML_NAME} --max-running-requests 16",
    "lmdeploy": "lmdeploy serve api_server {folder} --backend pytorch --trust-remote-code "
    "--dllm-block-length {block_size} --dllm-unmasking-strategy low_confidence_dynamic "
    "--dllm-confidence-threshold {threshold}",
}
# Our settings that the engines have, by their names for them.
_EDITING = {"edit_threshold": "editing_threshold", "max_post_edit_steps": "max_post_steps"}
_OF_REQUESTS = ("max_new_tokens", "stop_at_eos", "cache_implementation")
_DECIDING = {"threshold": "confidence_threshold", "block_size": "block_length"}


def export_for_engine(
    student: str | os.PathLike,
    engine: str,
    output_dir: str | os.PathLike,
    *,
    base_model: str | None = None,
    generation_config: DiffusionGenerationConfig | None = None,
) -> str:
    r"""Writes a student as a folder that SGLang or LMDeploy loads.

    The folder holds merged weights under the published names, `config.json` with the architecture that the engine
    knows, tokenizer and chat template, the code of the base model if it has some, the recipe, and the settings of the
    engine. hf-dparallel loads it, too. Everything is checked before anything is written.

    Args:
        student (`str` or `os.PathLike`): a model or an adapter: a folder or a Hub id.
        engine (`str`): `"sglang"` or `"lmdeploy"`.
        output_dir (`str` or `os.PathLike`): the folder, which must be new or empty.
        base_model (`str`, *optional*): the base model, whose code is copied. By default the one that the student
            names.
        generation_config ([`DiffusionGenerationConfig`], *optional*): settings that override the student's recipe.
            The engines decide by `confidence_threshold`.

    Returns:
        `str`: the line that starts the engine.

    Raises:
        ValueError: for a family, a token or a recipe that the engine cannot serve.
        OSError: if the student has no tokenizer, or the folder is not empty.
    """
    output_dir = Path(output_dir)
    check_is_new(output_dir)
    model = AutoModelForMaskedLM.from_pretrained(student, dtype="auto").eval()
    base_model = base_model or _base_of(model, Path(student))
    own = cached_file(student, "tokenizer_config.json", _raise_exceptions_for_missing_entries=False)
    tokenizer = AutoTokenizer.from_pretrained(student if own else base_model)

    vocab_size = vocabulary_size(model)
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, and the model {vocab_size}. Pass the model that it was made "
            "for."
        )
    if getattr(model, "hf_quantizer", None) is not None:
        raise ValueError("The student is quantized. Merge the adapter into the base model in its own dtype.")

    recipe = recipe_of(model)
    if generation_config is not None:
        recipe = recipe.updated(**generation_config.settings())
    published, code = _published(base_model)
    settings = _settings_of(engine, resolve(model, recipe, tokenizer), model)
    published["architectures"] = [model.config.served_as[engine]]

    if "auto_map" not in published:
        logger.warning(
            f"{base_model!r} has no code of its own (no `auto_map` in its config.json), by which {engine} knows the "
            "type of the model. Pass the published `base_model`."
        )
    if tokenizer.chat_template is None:
        logger.warning(f"`{student}` has no chat template. Serve it with plain prompts only.")

    if has_adapter(model):
        model.merge_and_unload()
        # Engines do not read the weights of a head that is tied.
        is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
        model.config.tie_word_embeddings &= is_tied
    model.generation_config = recipe
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    for path in filter(Path.is_file, [*code, Path(student, SUMMARY_NAME)]):
        shutil.copyfile(path, output_dir / path.name)
    write_json(read_json(output_dir / CONFIG_NAME) | published, output_dir / CONFIG_NAME)
    return _write_launch(output_dir, engine, settings)


def _write_launch(output_dir: Path, engine: str, settings: dict[str, Any]) -> str:
    """Writes the settings of an engine, and the line that starts it in its folder. Returns the line for any folder."""
    if engine == "sglang":
        (output_dir / YAML_NAME).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")

    command = COMMANDS[engine]
    algorithm = "JointThreshold" if "edit_threshold" in settings else "LowConfidence"
    line = command.format(folder=".", algorithm=algorithm, **settings)
    (output_dir / LAUNCH_NAME).write_text(f"{line}\n", encoding="utf-8")
    return command.format(folder=shlex.quote(str(output_dir)), algorithm=algorithm, **settings)


def _base_of(model: PreTrainedModel, student: Path) -> str:
    """Returns the base model that an adapter or a saved model names, or the model itself."""
    if has_adapter(model):
        return model.peft_config[model.active_adapters()[0]].base_model_name_or_path
    summary = read_if_saved(student / SUMMARY_NAME)
    return summary.get("base_model") or str(student)


def _published(base_model: str) -> tuple[dict[str, Any], list[Path]]:
    """Returns the `auto_map` of a base model's `config.json`, if it has one, and the files of its own code."""
    folder = Path(base_model)
    if not folder.is_dir():
        folder = Path(snapshot_download(base_model, allow_patterns=[CONFIG_NAME, "*.py"]))

    auto_map = read_json(folder / CONFIG_NAME).get("auto_map")
    if not auto_map:
        return {}, []
    return {"auto_map": auto_map}, sorted(folder.glob("*.py"))


def _settings_of(engine: str, config: DiffusionGenerationConfig, model: PreTrainedModel) -> dict[str, Any]:
    """Returns a resolved configuration in the engine's names, or raises a `ValueError` for what it cannot do."""
    if engine not in getattr(model.config, "served_as", ()):
        raise SettingError(
            "engine", engine, rule=f"does not support {type(model).__name__}", remedy="Use `hf-dparallel serve`."
        )

    published_id = type(model.config).mask_token_id
    if config.mask_token_id != published_id:
        raise SettingError(
            "mask_token_id",
            config.mask_token_id,
            rule=f"must be {published_id}, with which {engine} masks, whatever the checkpoint has",
            remedy="Use `hf-dparallel serve`.",
        )

    if config.confidence_threshold is None:
        raise SettingError(
            "confidence_threshold",
            None,
            rule=f"must be set: {engine} decides by it",
            remedy="Find one with `hf-dparallel calibrate --sweep confidence_threshold=0.5,0.7,0.8,0.9,0.95`.",
        )

    names = dict(_DECIDING)
    if engine == "sglang" and config.is_on("editing_threshold"):
        names |= _EDITING
    for name, value in config.non_defaults().items():
        if name not in (*names.values(), *_OF_REQUESTS):
            raise SettingError(
                name,
                value,
                rule=f"is not supported by {engine}",
                remedy=f"Leave it out, or set `{name}={SETTINGS[name].default!r}`.",
            )
    return {theirs: getattr(config, ours) for theirs, ours in names.items()}
