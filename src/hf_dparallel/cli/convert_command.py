# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel convert`: an autoregressive model as a masked diffusion model that is to be trained."""

from pathlib import Path
from shlex import quote
from typing import Any

from hf_dparallel_cli.command import Flags

from ..hub.facts import ModelFacts
from ..hub.files import SUMMARY_NAME, check_is_new, hub_name
from ..hub.publish import write_companions
from ..models.convert import convert_to_diffusion
from ..reports import write_json
from .console import say, say_table
from .loading import checked_name


def run(flags: Flags) -> dict[str, Any]:
    """Writes the model with its tokenizer, recipe and card, and prints what it has become."""
    folder = Path(flags.output_dir)
    check_is_new(folder)
    with checked_name("model", flags.model):
        model, tokenizer = convert_to_diffusion(flags.model, block_length=flags.block_length)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    about = {"base_model": hub_name(flags.model), "architecture": type(model).__name__, "is_trained": False}
    write_json(about, folder / SUMMARY_NAME)
    write_companions(ModelFacts.read(folder, folder.name))
    figures = {"architecture": about["architecture"], "attention": model.attention, "output_dir": flags.output_dir}
    figures |= {name: getattr(tokenizer, name) for name in ("mask_token", "mask_token_id")}
    say_table(figures)
    say(
        "\nIt must be trained before it can answer: docs/make_a_teacher.md. Next: hf-dparallel train --config "
        f"examples/make_a_teacher/{model.attention}.yaml --model {quote(flags.output_dir)} --dataset_name DATA"
    )
    return figures
