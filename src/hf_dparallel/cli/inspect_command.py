# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel inspect`: how a decode goes, pass by pass, and how certainty grows over a dataset."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from textwrap import shorten
from typing import Any

from hf_dparallel_cli.command import Flags

from ..data.prompts import tokenize_prompts
from ..data.rewards import get_reward
from ..environment import require
from ..evaluation.decoding import Evaluation, evaluate_answers
from ..evaluation.rows import metrics_with_intervals
from ..generation.answerer import Answerer
from ..generation.compatibility import active_adapter, set_adapter
from ..inspection.certainty import committed_confidence, mean_confidence
from ..inspection.page import write_page
from ..inspection.plots import plot_confidence_maps, plot_tradeoff
from ..inspection.text import print_answer, print_passes
from ..inspection.trace import DecodeTrace, trace_decode
from .console import make_folder, say
from .loading import batch_size, encode_prompt, load_model, load_prompts, read_prompt, read_settings, resolve_settings


# The confidence thresholds at which accuracy is drawn against speed.
_THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
# Passes and tokens of the maps, as in the paper.
_NUM_PASSES, _NUM_TOKENS = 16, 160


def run(flags: Flags) -> dict[str, Any]:
    """Shows a decode, or writes a page of it; draws pictures over a dataset."""
    given = read_settings(flags)
    if flags.figures is not None:
        require("figures", "matplotlib")
    # With --figures a prompt may be left out, and stdin is not waited for.
    is_asked = flags.prompt is not None or flags.prompt_file is not None or flags.figures is None
    text = read_prompt(flags) if is_asked else None
    if text is None and (flags.output_file is not None or flags.compare):
        raise ValueError("`output_file` and `compare` show the decode of a prompt. Add --prompt TEXT.")
    dataset = load_prompts(flags, default_split="test") if flags.figures is not None else None
    reward = get_reward(flags.reward, dataset) if flags.reward is not None else None
    # Before the decoding, which may take long.
    make_folder(flags.figures, "figures")
    make_folder(flags.output_file and Path(flags.output_file).parent, "output_file")
    model, tokenizer = load_model(flags)
    adapter = active_adapter(model)
    if flags.compare and adapter is None:
        raise ValueError("`compare` shows the model with and without its adapter, and it has none. Add --adapter.")
    recipe = resolve_settings(model, given, tokenizer)
    report: dict[str, Any] = {}
    if text is not None:
        prompt_ids = encode_prompt(tokenizer, text, flags.raw)
        who = flags.adapter or flags.model
        names = {"Without adapter": None, "With adapter": adapter} if flags.compare else {who: adapter}
        traces = []
        for name, used in names.items():
            set_adapter(model, used)
            traces.append(trace_decode(model, tokenizer, prompt_ids, recipe, name, flags.seed))
        title = f"{who}: {shorten(text, 60)}"
        report["decodes"] = show(traces, flags.output_file, title)
    if dataset is not None:
        prompts = tokenize_prompts(dataset, tokenizer, recipe.mask_token_id)
        answerer = Answerer(model, tokenizer, recipe, seed=flags.seed, batch_size=batch_size(flags.batch_size))
        score = None
        if reward is not None:
            score = partial(evaluate_answers, dataset=dataset, reward_funcs=reward, prompt_ids=prompts)
        report["figures"] = make_plots(answerer, adapter, prompts, score, Path(flags.figures))
    return report


def show(traces: Sequence[DecodeTrace], output_file: str | None, title: str) -> list[dict[str, Any]]:
    """Writes the page, or prints every pass; prints the answers, and returns what they cost."""
    for trace in traces:
        if output_file is None:
            print_passes(trace)
        print_answer(trace)
    if output_file is not None:
        write_page(traces, output_file, title)
        say(f"Page: {output_file}")
    return [{name: getattr(trace, name) for name in ("name", "nfe", "tokens_per_forward")} for trace in traces]


def make_plots(
    answerer: Answerer,
    adapter: str | None,
    prompts: Sequence[list[int]],
    score: Callable[..., Evaluation] | None,
    folder: Path,
) -> dict[str, Any]:
    """Decodes a dataset by several methods, writes the pictures, and returns their files and what the methods cost.

    The methods are the model without its adapter at one token per pass, and the given settings without and with it.
    """
    recipe = answerer.config
    rule = recipe.commit_rule()
    if rule is None:
        raise ValueError("`figures` draws answers, and `max_new_tokens=0` appends none. Set it to their length.")
    given = f"{rule}={getattr(recipe, rule)}"
    original = replace(answerer, generation_config=recipe.one_token_per_pass())
    methods: dict[str, tuple[Answerer, str | None]] = {"one token per pass": (original, None)}
    if getattr(original.config, rule) != getattr(recipe, rule):
        methods[given] = (answerer, None)
    if adapter is not None:
        methods[f"{given}, with adapter"] = (answerer, adapter)
    certainty, means = {}, {}
    for name, (method, used) in methods.items():
        set_adapter(answerer.model, used)
        out = method.with_(output_certainty=True).decode(prompts, name)
        certainty[name] = mean_confidence(out.confidences, _NUM_PASSES)[:, :_NUM_TOKENS]
        rows = {"nfe": out.nfe, "tokens_per_forward": out.tokens_per_forward, "confidence": committed_confidence(out)}
        means[name] = {figure: of_row.float().mean().item() for figure, of_row in rows.items()}
    figures = {str(folder / "confidence_maps.png"): plot_confidence_maps(certainty)}
    answers = None if score is None else score_thresholds(answerer, adapter, score)
    if answers is not None:
        figures[str(folder / "tradeoff.png")] = plot_tradeoff(answers)
    for file, figure in figures.items():
        figure.savefig(file)
        say(f"Figure: {file}")
    return {"files": list(figures), "methods": means, "answers": answers}


def score_thresholds(
    answerer: Answerer, adapter: str | None, score: Callable[..., Evaluation]
) -> dict[str, list[dict[str, Any]]]:
    """Scores the answers at several confidence thresholds, without and with the adapter."""
    names = {"without adapter": None} | ({} if adapter is None else {"with adapter": adapter})
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for (name, used), threshold in product(names.items(), _THRESHOLDS):
        set_adapter(answerer.model, used)
        method = answerer.with_(confidence_threshold=threshold)
        measured = score(method, description=f"confidence_threshold={threshold}, {name}")
        point = {"confidence_threshold": threshold, "label": str(threshold)}
        answers[name].append(point | metrics_with_intervals(measured))
    return answers
