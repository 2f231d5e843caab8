# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What must not be in the files that go to the Hub: secrets, and paths of the machine that they come from."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from .files import CARD_NAME, Content


_HUB_TOKEN = rb"\b(?:hf|api_org)_[A-Za-z0-9]{30,}\b"
_SECRETS = (
    _HUB_TOKEN,
    rb"\bgh[pousr]_[A-Za-z0-9]{36,}\b",
    rb"\bgithub_pat_\w{22,}\b",
    rb"\bsk-[\w-]{32,}",
    rb"\bAKIA[0-9A-Z]{16}\b",
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    rb"://[\w.%+-]+:[\w.%+!$-]+@\w",  # a URL with a password
)
# They have entries such as "/root/".
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")


def check_contents(files: Mapping[str, Content], folder: Path) -> None:
    """Checks that no file tells a secret, or where something lies in the home of the one who uploads it.

    Raises:
        ValueError: naming the file and what is in it.
    """
    own = {str(path) for path in (Path.home(), Path.cwd(), folder.absolute(), folder.resolve()) if path != path.parent}
    # The card is made from the other files: it comes last.
    for name, content in sorted(files.items(), key=lambda item: item[0] == CARD_NAME):
        is_data = name.endswith(".parquet")
        # Without the zeros that UTF-16 has between letters.
        text = _text_in(name, content).replace(b"\0", b"")
        # Questions about programs may well show such a thing.
        secrets = [_HUB_TOKEN] if is_data else _SECRETS
        if secret := next(filter(None, (re.search(pattern, text) for pattern in secrets)), None):
            raise ValueError(
                f"`{name}` contains what looks like an access token or a password ({secret[0][:6].decode()}...). "
                "Remove it, and revoke it if it has been shared before."
            )
        if is_data or name in _VOCABULARIES:
            continue
        found = next((path for path in sorted(own) if re.search(re.escape(path).encode() + rb"[\\/]", text)), None)
        if found is not None:
            raise ValueError(
                f"`{name}` contains the path {found!r} of this machine, which says nothing to others. Replace it by "
                "the name of a repository on the Hub, or remove it."
            )


def _text_in(name: str, content: Content) -> bytes:
    """Returns the content of a file; of weights their metadata, of data the columns with text."""
    if isinstance(content, bytes):
        return content
    if name.endswith(".parquet"):
        from pyarrow.parquet import ParquetFile

        rows = ParquetFile(content)
        columns = [field.name for field in rows.schema_arrow if "string" in str(field.type)]
        texts = [json.dumps(batch.to_pylist()) for batch in rows.iter_batches(columns=columns)]
        return "\n".join([*rows.schema_arrow.names, *texts]).encode()
    if name.endswith(".safetensors"):
        try:
            with safe_open(content, framework="np") as weights:
                return json.dumps(weights.metadata()).encode()
        except SafetensorError as error:
            raise ValueError(
                f"`{content}` holds no weights that can be read ({error}). Save the model again."
            ) from None
    return content.read_bytes().replace(b"\\\\", b"\\")
