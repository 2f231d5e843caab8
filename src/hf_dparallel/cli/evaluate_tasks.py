# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate --tasks ...` and `--preset ...`: benchmarks of the lm-evaluation-harness."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from transformers import AutoConfig
from transformers.utils import find_adapter_config_file

from hf_dparallel_cli.command import Flags

from ..environment import join_processes
from .console import note, say
from .loading import batch_size, checked_name, load_model, read_settings, require


if TYPE_CHECKING:
    from ..harness.run import TaskRunner


def run(flags: Flags) -> dict[str, Any] | None:
    """Prints scores and costs, and writes results, samples and a report."""
    read_settings(flags)
    chosen = {name: _names(name, getattr(flags, name)) for name in ("tasks", "methods")}
    flags = Flags(**vars(flags) | chosen)
    if flags.limit is not None and not 0 < flags.limit < math.inf:
        raise click.UsageError(f"`limit` must be above 0 and finite, got {flags.limit}.")
    require("evaluate --tasks", "lm_eval")
    from ..harness.run import TaskRunner

    settings = _given_settings(flags)
    state = join_processes()
    multiturn = flags.fewshot_as_multiturn
    runner = TaskRunner(
        flags.model,
        flags.include_path,
        flags.allow_code_execution,
        flags.output_dir,
        num_fewshot=flags.num_fewshot,
        limit=flags.limit,
        apply_chat_template=flags.apply_chat_template or flags.preset is not None,
        system_instruction=flags.system_instruction,
        fewshot_as_multiturn=flags.apply_chat_template if multiturn is None else multiturn,
    )

    def load(flags: Flags):
        from ..harness.model import DiffusionHarnessLM

        model, tokenizer = load_model(flags)
        return DiffusionHarnessLM(
            model,
            tokenizer=tokenizer,
            mc_num=flags.mc_num,
            check_greedy=flags.check_greedy,
            seed=flags.seed,
            finished_requests=flags.output_dir and str(Path(flags.output_dir) / "finished_requests.jsonl"),
            batch_size=batch_size(flags.batch_size),
        )

    measure = _measure_tasks if flags.preset is None else _measure_preset
    metrics = measure(runner, load, flags, settings)
    if metrics is not None and flags.output_dir is not None:  # on the first process
        note(f"Written to {flags.output_dir}")
    # Processes that end without it may abort.
    state.destroy_process_group()
    return metrics


def _names(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    """The names of tasks or methods, with commas or spaces between."""
    names = tuple(name for text in texts for name in text.split(",") if name)
    if texts and not names:
        raise click.UsageError(f"`{flag}` must have a name, if it is given.")
    return names


def _measure_tasks(
    runner: "TaskRunner", load: Callable, flags: Flags, settings: dict[str, Any]
) -> dict[str, Any] | None:
    from lm_eval.utils import make_table

    from ..harness.run import scores_of

    names = runner.select(flags.tasks)
    runner.load(names)
    results = runner.run(load(flags), names, settings)
    if results is None:
        return None
    say(make_table(results))
    if results.get("groups"):
        say(make_table(results, "groups"))
    return {
        "model": flags.model,
        "adapter": flags.adapter,
        "settings": settings,
        "results": {name: scores_of(results, name) for name in results["results"]},
    }


def _measure_preset(
    runner: "TaskRunner", load: Callable, flags: Flags, settings: dict[str, Any]
) -> dict[str, Any] | None:
    from ..harness.presets import METHODS, choose_benchmarks, choose_methods
    from ..harness.tables import Comparison, comparison_tables

    preset, methods = str(flags.preset), choose_methods(flags.methods or None)
    adapters = {"base": None, "adapter": flags.adapter, "consistency_adapter": flags.consistency_adapter}
    _check_adapters(flags, methods, adapters)
    comparison = Comparison(runner, preset, choose_benchmarks(preset, flags.tasks or None), methods, settings)
    for checkpoint in dict.fromkeys(METHODS[method].checkpoint for method in methods):
        model = load(_with_adapter(flags, adapters[checkpoint]))
        for method in methods:
            if METHODS[method].checkpoint == checkpoint:
                comparison.measure(model, method)
        # The next one must not be in memory beside it.
        del model
    rows = comparison.rows()
    if not rows:
        return None
    say(comparison_tables(rows))
    return {"preset": preset, "model": flags.model, "rows": rows}


def _with_adapter(flags: Flags, adapter: str | None) -> Flags:
    """The arguments that load the model with an adapter, or a model whose weights were trained as a whole."""
    is_whole = adapter is not None and find_adapter_config_file(adapter) is None
    named = {"model": adapter, "adapter": None} if is_whole else {"adapter": adapter}
    return Flags(**vars(flags) | named)


def _check_adapters(flags: Flags, methods: Sequence[str], adapters: dict[str, str | None]) -> None:
    """Checks that each method has its adapter before the first is measured, which can take hours."""
    from ..harness.presets import METHODS

    for name, method in METHODS.items():
        checkpoint, adapter = method.checkpoint, adapters[method.checkpoint]
        if adapter is not None and name not in methods:
            raise ValueError(
                f"`{checkpoint}={adapter}` belongs to a method that is not measured. Add {name} to --methods, or "
                "leave it out."
            )
        # Without `methods`, the model is measured as it is given.
        if adapter is None and name in methods and checkpoint != "base" and flags.methods:
            raise ValueError(f"`methods` has {name}, which needs an adapter. Add --{checkpoint} NAME.")
        if adapter is not None:
            with checked_name(checkpoint, adapter):
                if _with_adapter(flags, adapter).model == adapter:
                    AutoConfig.from_pretrained(adapter)


def _given_settings(flags: Flags) -> dict[str, Any]:
    """The decoding settings among the flags; refuses an unknown one, one out of range, or one that the preset sets."""
    from lm_eval.utils import simple_parse_args_string

    from ..harness.request_settings import check_gen_kwargs

    set_by_preset = sorted(flags.settings.keys() - {"max_new_tokens", "block_length"})
    if flags.preset is not None and set_by_preset:
        raise ValueError(f"A `preset` decodes with its own settings. Remove {', '.join(set_by_preset)}.")
    settings = flags.settings | simple_parse_args_string(flags.gen_kwargs)
    if settings.get("temperature"):
        # Most tasks ask for the likeliest tokens.
        settings.setdefault("do_sample", True)
    check_gen_kwargs(settings)
    return settings
