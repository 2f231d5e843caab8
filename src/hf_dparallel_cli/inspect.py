# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel inspect`: shows a decode pass by pass, and draws how certainty grows over a dataset."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import click

from .console import make_folder
from .options import (
    batch_option,
    common_options,
    data_options,
    model_options,
    prompt_options,
    seed_option,
    settings_options,
)


if TYPE_CHECKING:
    from hf_dparallel.generation.answerer import Answerer

# Passes and tokens of the maps, as in the paper.
_NUM_PASSES, _NUM_TOKENS = 16, 160


@click.command()
@model_options
@prompt_options
@click.option("--output_file", type=click.Path(), help="Write an HTML page. Without it, every pass is printed.")
@click.option("--figures", type=click.Path(), help="Draw into this folder how certainty grows over --dataset.")
@data_options
@batch_option
@settings_options
@seed_option
@common_options
def inspect_command(
    prompt: dict[str, Any],
    output_file: str | None,
    figures: str | None,
    data: dict[str, Any],
    batch_size: int | None,
    **how: Any,
) -> dict[str, Any]:
    """Step through a decode, in the terminal or on a page, or draw how certainty grows over a dataset.

    Example: hf-dparallel inspect demo-student 'Mia has 14 pens and finds 6. How many?' --output_file page.html
    """
    if figures is None:
        if data["dataset"] is not None:
            raise click.UsageError("`dataset` needs `figures`. Add --figures FOLDER.")
        return inspect_prompt(prompt, data["raw"], output_file, **how)
    if output_file is not None or any(prompt.values()):
        raise click.UsageError("`figures` are of a dataset, not of a prompt. Remove one.")
    return draw_figures(data, figures, batch_size, **how)


def inspect_prompt(
    prompt: dict[str, Any],
    raw: bool,
    output_file: str | None,
    source: dict[str, Any],
    settings: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Prints every pass of a decode, or writes a page of it, and prints the answer."""
    from hf_dparallel.inspection.page import write_page
    from hf_dparallel.inspection.text import print_answer, print_passes
    from hf_dparallel.inspection.trace import trace_decode

    from .loading import encode_prompt, load_model, read_prompt, read_settings, resolve_settings

    given, text = read_settings(settings), read_prompt(**prompt)
    make_folder(output_file and Path(output_file).parent, "output_file")
    model, tokenizer = load_model(**source)
    recipe = resolve_settings(model, given, tokenizer)
    name = source["adapter"] or source["model"]
    trace = trace_decode(model, tokenizer, encode_prompt(tokenizer, text, raw), recipe, name, seed)
    if output_file is None:
        print_passes(trace)
    print_answer(trace)
    if output_file is not None:
        write_page([trace], output_file, f"{name}: {shorten(text, 60)}")
        click.echo(f"Page: {output_file}")
    return {each: getattr(trace, each) for each in ("name", "nfe", "tokens_per_forward")}


def draw_figures(
    data: dict[str, Any],
    figures: str,
    batch_size: int | None,
    source: dict[str, Any],
    settings: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Draws the certainty of each position in each pass, and prints the name of the file."""
    from hf_dparallel.data.prompts import tokenize_prompts
    from hf_dparallel.environment import require
    from hf_dparallel.generation.answerer import Answerer
    from hf_dparallel.generation.compatibility import active_adapter
    from hf_dparallel.inspection.plots import plot_confidence_maps

    from .loading import default_batch_size, load_model, load_prompts, read_settings, resolve_settings

    require("figures", "matplotlib")
    given = read_settings(settings)
    dataset = load_prompts(source, data, reward=None, default_split="test")
    make_folder(figures, "figures")
    model, tokenizer = load_model(**source)
    recipe = resolve_settings(model, given, tokenizer)
    if recipe.is_infilling:
        raise click.UsageError("`figures` draws answers, and `max_new_tokens=0` appends none. Set it to their length.")
    prompts = tokenize_prompts(dataset, tokenizer, recipe.mask_token_id)
    answerer = Answerer(model, tokenizer, recipe, batch_size or default_batch_size(), seed)
    maps, methods = measure_certainty(answerer, active_adapter(model), prompts)
    file = str(Path(figures, "confidence_maps.png"))
    plot_confidence_maps(maps).savefig(file)
    click.echo(f"Figure: {file}")
    return {"file": file, "methods": methods}


def measure_certainty(
    answerer: "Answerer", adapter: str | None, prompts: Sequence[list[int]]
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Returns the maps and the mean figures of several methods, by name.

    The methods are the model without its adapter at one token per pass, and the given settings without and with it.
    """
    from dataclasses import replace

    from hf_dparallel.generation.compatibility import set_adapter
    from hf_dparallel.inspection.plots import committed_confidence, mean_confidence

    recipe = answerer.config
    rule = str(recipe.commit_rule())
    given = f"{rule}={getattr(recipe, rule)}"
    original = replace(answerer, generation_config=recipe.one_token_per_pass())
    methods: dict[str, tuple[Answerer, str | None]] = {"one token per pass": (original, None)}
    if getattr(original.config, rule) != getattr(recipe, rule):
        methods[given] = (answerer, None)
    if adapter is not None:
        methods[f"{given}, with adapter"] = (answerer, adapter)
    maps, means = {}, {}
    for name, (method, used) in methods.items():
        set_adapter(answerer.model, used)
        out = method.with_(output_certainty=True).decode(prompts, name)
        maps[name] = mean_confidence(out.confidences, _NUM_PASSES)[:, :_NUM_TOKENS]
        rows = {"nfe": out.nfe, "tokens_per_forward": out.tokens_per_forward, "confidence": committed_confidence(out)}
        means[name] = {figure: of_row.float().mean().item() for figure, of_row in rows.items()}
    return maps, means
