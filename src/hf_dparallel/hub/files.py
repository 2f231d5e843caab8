# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Which files of a folder go to the Hub."""

from collections.abc import Mapping
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_SAFE_WEIGHTS_NAME,
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
)


CARD_NAME = "README.md"
SUMMARY_NAME = "training_summary.json"
CALIBRATION_NAME = "calibration.json"
# Of a student that was exported for an engine: the line that starts it, and what it reads beside the checkpoint.
LAUNCH_NAME = "launch.sh"
YAML_NAME = "dllm.yaml"

# They have entries such as "/root/".
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
TOKENIZER_PATTERNS = (
    *_VOCABULARIES,
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/*",
)
WEIGHT_PATTERNS = {
    "adapter": (ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME),
    "model": (CONFIG_NAME, SAFE_WEIGHTS_NAME, "model-*.safetensors", SAFE_WEIGHTS_INDEX_NAME),
}
# File endings of weights, of any library.
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
_OTHER_PATTERNS = (GENERATION_CONFIG_NAME, CALIBRATION_NAME, SUMMARY_NAME, CARD_NAME)
_OWN_PATTERNS = ("LICENSE*", "NOTICE*", "*.png", "*.svg")

Content = Path | bytes


def kind_of(folder: Path) -> str:
    """Returns `"adapter"` or `"model"`: what a folder holds. It must have weights in safetensors."""
    if not folder.is_dir():
        raise FileNotFoundError(f"`{folder}` is no folder. Give the one that the adapter or the model was saved in.")
    kind = next((kind for kind, names in WEIGHT_PATTERNS.items() if (folder / names[0]).is_file()), None)
    if kind is None:
        raise FileNotFoundError(
            f"`{folder}` holds neither an adapter ({ADAPTER_CONFIG_NAME}) nor a model ({CONFIG_NAME}). Give the "
            "`output_dir` of the training, or the folder of `save_pretrained`."
        )
    if not any(path.suffix == ".safetensors" for pattern in WEIGHT_PATTERNS[kind] for path in folder.glob(pattern)):
        raise FileNotFoundError(
            f"`{folder}` holds no weights in safetensors, and pickled ones are not published. Load the {kind} and "
            "save it again with `save_pretrained`."
        )
    return kind


def check_is_new(output_dir: Path) -> None:
    """Refuses a folder or file where something would be overwritten."""
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise FileExistsError(f"`output_dir={output_dir}` is not empty. Give a new folder.")


def select_files(folder: Path, kind: str) -> dict[str, Path]:
    """Returns the files to upload, by their path in the repository.

    By a list of what belongs to a model: optimizer states, `training_args.bin`, logs and all else stay. A link to a
    file elsewhere, which may be anything, is refused.
    """
    patterns = (*WEIGHT_PATTERNS[kind], *TOKENIZER_PATTERNS, *_OTHER_PATTERNS, *_OWN_PATTERNS)
    if (folder / LAUNCH_NAME).is_file():
        # Exported, with the code of the base model.
        patterns = (*patterns, LAUNCH_NAME, YAML_NAME, "*.py")
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    for path in found:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"`{path}` is a link that leaves the folder, to `{path.resolve()}`. Replace it by a copy if that file "
                "is to be published, or remove it."
            )
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


def check_own_paths(files: Mapping[str, Content], folder: Path) -> None:
    """Refuses texts with local paths of the user who uploads them.

    The card, which is made from the other files, comes last.
    """
    own = {str(path) for path in (Path.home(), Path.cwd(), folder.absolute(), folder.resolve()) if path != path.parent}
    for name, content in sorted(files.items(), key=lambda item: item[0] == CARD_NAME):
        if name.endswith((".safetensors", ".parquet")) or name in _VOCABULARIES:
            continue
        text = content if isinstance(content, bytes) else content.read_bytes()
        # In JSON a backslash is two.
        text = text.replace(b"\\\\", b"/").replace(b"\\", b"/")
        found = next((path for path in sorted(own) if f"{Path(path).as_posix()}/".encode() in text), None)
        if found is not None:
            raise ValueError(
                f"`{name}` contains the path {found!r} of this machine, which says nothing to others. Replace it by "
                "the name of a repository on the Hub, or remove it."
            )


def hub_name(name: str | None) -> str | None:
    """Returns a name if a repository on the Hub can have it; `None` for a folder of this machine."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name if name is not None and not Path(name).exists() else None
