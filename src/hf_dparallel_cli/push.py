# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel push`: publishes an adapter or a model on the Hub."""

from typing import Any

import click

from .options import settings_options


@click.command()
@click.argument("path", type=click.Path(file_okay=False))
@click.argument("repo_id")
@click.option("--base_model", help="Hub name of the base model, if it was a folder.")
@click.option("--report", type=click.Path(), help="Results for the card: the file of `evaluate --json FILE`.")
@click.option("--dataset_name", help="Hub name of the training data, for the card.")
@click.option("--license", help="Identifier of the licence for the card, such as 'mit' or 'apache-2.0'.")
@click.option("--private", is_flag=True, help="Make a new repository private.")
@click.option("--revision", help="Branch to push to, which is created if necessary. By default 'main'.")
@click.option("--dry_run", is_flag=True, help="Run the checks, and show the card and the files, without uploading.")
@settings_options
def push_command(path: str, repo_id: str, private: bool, revision: str | None, dry_run: bool, **options: Any) -> None:
    """Publish an adapter or a model on the Hub, with a card.

    PATH is its folder, REPO_ID the name of the repository, such as user/llada-dparallel.

    Example: hf-dparallel push runs/student user/my-student --dry_run
    """
    from hf_dparallel.hub.push import CARD_NAME, files_to_push, push_model_to_hub

    from .loading import read_settings

    about = {name: options[name] for name in ("base_model", "report", "dataset_name", "license")}
    about["generation_config"] = read_settings(options)

    if dry_run:
        files = files_to_push(path, repo_id, **about)
        card = files[CARD_NAME]
        click.echo(card.decode() if isinstance(card, bytes) else card.read_text(encoding="utf-8"))
        for name, content in files.items():
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            click.echo(f"{name}  {size:,} bytes")
        click.echo(f"Nothing was sent. Not checked: whether you may write to {repo_id}.", err=True)
        return

    # As in huggingface_hub, the default of an organization applies.
    click.echo(push_model_to_hub(path, repo_id, **about, revision=revision, private=private or None).commit_url)
