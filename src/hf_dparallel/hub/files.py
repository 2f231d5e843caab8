# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Which files of a folder go to the Hub, and what must not be in them."""

import fnmatch
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
)

from ..models.adapter_files import WEIGHTS_NAME as ADAPTER_WEIGHTS_NAME


CARD_NAME = "README.md"
SUMMARY_NAME = "training_summary.json"

TOKENIZER_PATTERNS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "additional_chat_templates/*",
)
WEIGHT_PATTERNS = {
    "adapter": (ADAPTER_CONFIG_NAME, ADAPTER_WEIGHTS_NAME),
    "model": (CONFIG_NAME, SAFE_WEIGHTS_NAME, "model-*.safetensors", SAFE_WEIGHTS_INDEX_NAME),
}
# As other libraries write weights, too.
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
_OTHER_PATTERNS = (GENERATION_CONFIG_NAME, SUMMARY_NAME, CARD_NAME, "LICENSE*", "NOTICE*", "*.png", "*.svg")

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")
# An absolute path within a text: not a part of a URL, a link within a site, a fraction, a route such as /v1/models.
_PATH_IN_TEXT = re.compile(
    r"""(?<!\w)[A-Z]:[\\/][\w.@+-]+[\\/][\w.@+-]+
    | (?: ^ | (?<=[\s"'`(\[{=,;|:]) | (?<=file://) ) (?<! \]\( ) / (?! v\d+/ | api/ ) [\w.@+-]+ (?:/[\w.@+-]+)+ \b""",
    flags=re.VERBOSE,
)
_DATA_SUFFIXES = (".json", ".jsonl", ".parquet", ".csv")
# They have entries such as "/usr/bin/".
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")

Content = Path | bytes


def kind_of(folder: Path) -> str:
    """Returns `"adapter"` or `"model"`: what a folder holds.

    Raises:
        OSError: if it holds neither, or no safetensors weights.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"`{folder}` is no folder. Give the one that the adapter or the model was saved in.")
    kind = next(
        (kind for kind, patterns in WEIGHT_PATTERNS.items() if (folder / patterns[0]).is_file()),
        None,
    )
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


def select_files(folder: Path, kind: str) -> tuple[dict[str, Content], list[str]]:
    """Returns the files to upload, by their path in the repository, and the names of those that are left out.

    By a list of what belongs to a model: optimizer states, `training_args.bin`, logs and all else stay.
    """
    patterns = (*WEIGHT_PATTERNS[kind], *TOKENIZER_PATTERNS, *_OTHER_PATTERNS)
    chosen: dict[str, Content] = {}
    left = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and is_one_of(name, patterns):
            chosen[name] = path
        elif path.parent == folder:
            left.append(f"{name}/" if path.is_dir() else name)
    return chosen, [name for name in left if not any(other.startswith(name) for other in chosen)]


def copy_selected(folder: Path, target: Path) -> None:
    """Copies the files to upload to another folder.

    Raises:
        OSError: as [`kind_of`], or if there is no space for them.
    """
    files, _ = select_files(folder, kind_of(folder))
    for name in files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target / name)


def is_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a path in a repository matches one of the patterns, all of whose folders are written out."""
    return any(fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def check_contents(files: Mapping[str, Content], folder: Path) -> None:
    """Checks that no file tells an access token, or a path on this machine.

    Raises:
        ValueError: naming the file and what is in it.
    """
    own = (Path.home(), Path.cwd(), folder.absolute(), folder.resolve())
    private = {f"{path}/" for path in own if path != path.parent}
    for name, content in files.items():
        text = None if name.endswith((*WEIGHT_SUFFIXES, ".parquet")) else _read_text(content)
        if text is None:
            continue
        if token := _TOKEN.search(text):
            raise ValueError(
                f"`{name}` contains what looks like an access token ({token[0][:6]}...). Remove it, and revoke the "
                "token if it has been shared before."
            )
        if name in _VOCABULARIES:
            continue
        found = next((path for path in private if path in text), None)
        if found is None and name.endswith(".json"):
            found = next(filter(None, map(_path_in, _strings(json.loads(text)))), None)
        if found is None and name.endswith(".md"):
            found = _path_in(text)
        if found is not None:
            raise ValueError(
                f"`{name}` contains the path {found!r} of this machine, which says nothing to others. Replace it by "
                "the name of a repository on the Hub, or remove it."
            )


def is_local_path(value: str) -> bool:
    """Whether a text is an absolute path, of this or another system."""
    is_absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    return is_absolute and len(PureWindowsPath(value).parts) > 2


def local_file_name(value: str) -> str | None:
    """Returns the name of a file if a text is the path of one, and not the name of a repository on the Hub."""
    path = PureWindowsPath(value)
    is_path = is_local_path(value) or path.parts[:1] in [("~",), ("..",)] or value.startswith("./")
    return path.name if is_path or path.suffix in _DATA_SUFFIXES or Path(value).exists() else None


def read_json(path: Path) -> dict[str, Any]:
    """Returns what a JSON file holds; nothing, if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _read_text(content: Content) -> str | None:
    try:
        return content.decode() if isinstance(content, bytes) else content.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def _path_in(text: str) -> str | None:
    found = _PATH_IN_TEXT.search(text)
    return text if is_local_path(text) else found[0] if found else None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
