# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel push`: publish an adapter or a model on the Hub."""

from collections.abc import Mapping
from typing import Any

from hf_dparallel_cli.command import Flags

from ..hub.facts import ModelFacts
from ..hub.files import CARD_NAME, Content
from ..hub.publish import files_to_push, push_model_to_hub
from .console import note, say, say_table
from .loading import read_settings


_ON_CARD = ("license", "base_model", "report", "example", "dataset_name")
# Shown by a dry run where a push needs the name of the base model.
_UNNAMED = "NAME-OF-THE-BASE-MODEL"


def run(flags: Flags) -> dict[str, Any]:
    """Prints where it has been published, or what would be."""
    about = {name: getattr(flags, name) for name in ("repo_id", *_ON_CARD)} | {
        "generation_config": read_settings(flags)
    }
    if flags.dry_run:
        return show(_files_of_model(flags.path, **about), flags.repo_id)
    how = {name: getattr(flags, name) for name in ("revision", "create_pr", "commit_message")}
    # As in huggingface_hub, the default of an organization applies.
    commit = push_model_to_hub(flags.path, **about, **how, private=flags.private or None)
    figures = {"url": commit.pr_url or commit.commit_url, "commit": commit.oid, "repo_id": commit.repo_url.repo_id}
    say_table(figures)
    return figures


def _files_of_model(path: str, **about: Any) -> dict[str, Content]:
    facts = ModelFacts.read(path, **about)
    if facts.adapter and facts.base_model is None:
        facts = ModelFacts.read(path, **about | {"base_model": _UNNAMED})
    return files_to_push(facts)


def show(files: Mapping[str, Content], repo_id: str) -> dict[str, Any]:
    """Prints what would be pushed, and returns the sizes of the files in bytes."""
    card = files.get(CARD_NAME)
    if isinstance(card, bytes):
        say(card.decode())
    sizes = {name: len(it) if isinstance(it, bytes) else it.stat().st_size for name, it in files.items()}
    say_table({name: f"{size:,} bytes" for name, size in sizes.items()})
    if any(isinstance(it, bytes) and _UNNAMED.encode() in it for it in files.values()):
        note("To push, name the base model on the Hub with `--base_model NAME`; push it first if it is not there.")
    note(f"Nothing was sent. Not checked: what {repo_id} holds already, and whether you may write to it.")
    return {"repo_id": repo_id, "files": sizes}
