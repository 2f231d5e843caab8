# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel push`: publish an adapter, a model or trajectories on the Hub."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from huggingface_hub import CommitInfo

from ..hub.files import CARD_NAME, Content
from ..hub.publish import files_to_push, push_model_to_hub
from ..hub.publish_data import data_to_push, push_trajectories_to_hub
from .arguments import CommandParser, OutputArguments, RecipeArguments
from .console import note, say, say_table, write_json


# Arguments that say something about a model, and nothing about data.
_OF_MODELS = ("report", "example", "dataset_name")
# Arguments that say how it is sent.
_OF_COMMITS = ("private", "revision", "create_pr", "commit_message")


@dataclass
class PushArguments:
    path: str = field(
        metadata={
            "help": "Folder of the adapter or model; or, with --repo_type dataset, the output folder of `hf-dparallel "
            "trajectories` or a parquet file. `hf-dparallel push PATH REPO_ID` does without the names of these two.",
        }
    )
    repo_id: str = field(metadata={"help": "Name of the repository, such as 'user/llada-dparallel'."})
    repo_type: str = field(default="model", metadata={"help": "What is published.", "choices": ["model", "dataset"]})
    base_model: str | None = field(
        default=None,
        metadata={"help": "Name on the Hub of the base model (of trajectories: the teacher), if it was a folder."},
    )
    report: str | None = field(
        default=None,
        metadata={
            "help": "Measured figures for the card: what `hf-dparallel evaluate --json FILE` or `demo` "
            "(report.json) wrote.",
            "metavar": "FILE",
        },
    )
    example: str | None = field(
        default=None,
        metadata={
            "help": "Answer for the card and its widget: what `hf-dparallel generate --json FILE` wrote.",
            "metavar": "FILE",
        },
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "Name on the Hub of the training data, for the card."}
    )
    license: str | None = field(
        default=None, metadata={"help": "Identifier of the licence for the card, such as 'mit' or 'apache-2.0'."}
    )
    private: bool = field(default=False, metadata={"help": "Make the repository private if it is created now."})
    revision: str | None = field(
        default=None, metadata={"help": "Branch to push to. It is created if there is none. By default 'main'."}
    )
    create_pr: bool = field(default=False, metadata={"help": "Open a pull request instead of pushing directly."})
    commit_message: str | None = field(default=None, metadata={"help": "Message of the commit."})
    dry_run: bool = field(
        default=False, metadata={"help": "Run the checks, show the card and the files, and send nothing."}
    )

    def __post_init__(self):
        given = [name for name in _OF_MODELS if getattr(self, name) is not None]
        if self.repo_type == "dataset" and given:
            raise ValueError(_about_models(given[0]))


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser("push", [PushArguments, RecipeArguments, OutputArguments], positionals=["path", "repo_id"])


def run(argv: Sequence[str]) -> None:
    """Prints where it has been published, or what would be."""
    parser = make_parser()
    arguments, recipe, output = parser.parse(argv)
    if arguments.repo_type == "dataset" and recipe.settings:
        parser.error(_about_models(min(recipe.settings)))
    settings = {name: value for name, value in vars(arguments).items() if name not in ("path", "repo_type", "dry_run")}
    push: Callable[..., CommitInfo] = push_model_to_hub
    prepare: Callable[..., dict[str, Content]] = files_to_push
    if arguments.repo_type == "dataset":
        settings["teacher"] = settings.pop("base_model")
        settings = {name: value for name, value in settings.items() if name not in _OF_MODELS}
        push, prepare = push_trajectories_to_hub, data_to_push
    else:
        settings["generation_config"] = recipe.to_generation_config()
    if arguments.dry_run:
        about = {name: value for name, value in settings.items() if name not in _OF_COMMITS}
        figures = show(prepare(arguments.path, **about), arguments.repo_id)
    else:
        # As in huggingface_hub, the default of an organization applies.
        commit = push(arguments.path, **settings | {"private": arguments.private or None})
        figures = {"url": commit.pr_url or commit.commit_url, "commit": commit.oid, "repo_id": commit.repo_url.repo_id}
        say_table(figures)
    write_json(figures, output.json)


def show(files: Mapping[str, Content], repo_id: str) -> dict[str, Any]:
    """Prints what would be pushed, and returns the sizes of the files in bytes."""
    card = files.get(CARD_NAME)
    if isinstance(card, bytes):
        say(card.decode())
    sizes = {
        name: len(content) if isinstance(content, bytes) else content.stat().st_size for name, content in files.items()
    }
    say_table({name: f"{size:,} bytes" for name, size in sizes.items()})
    note(f"Nothing was sent. Not checked: what {repo_id} holds already, and whether you may write to it.")
    return {"repo_id": repo_id, "files": sizes}


def _about_models(name: str) -> str:
    return f"`{name}` says something about a model, and nothing about a dataset. Leave it out."
