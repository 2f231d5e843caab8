# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate --tasks ...` and `--preset ...`: benchmarks of the lm-evaluation-harness."""

import dataclasses
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig
from transformers.utils import find_adapter_config_file

from hf_dparallel_cli.flags import (
    BatchSizeArguments,
    DecodingArguments,
    FolderArguments,
    LoadingArguments,
    OutputArguments,
    TaskArguments,
)

from ..environment import join_processes
from .console import note, say, write_json
from .loading import batch_options, checked_name, load_model, read_settings


if TYPE_CHECKING:
    from ..harness.run import TaskRunner


def run(
    loading: LoadingArguments,
    batch: BatchSizeArguments,
    decoding: DecodingArguments,
    tasks: TaskArguments,
    folder: FolderArguments,
    output: OutputArguments,
) -> None:
    """Prints scores and costs, and writes results, samples and a report."""
    read_settings(decoding)
    if find_spec("lm_eval") is None:
        raise ImportError("`evaluate --tasks` needs the lm-evaluation-harness: `pip install 'hf-dparallel[eval]'`.")
    from ..harness.run import TaskRunner

    settings = _given_settings(tasks, decoding)
    state = join_processes()
    multiturn = tasks.fewshot_as_multiturn
    runner = TaskRunner(
        loading.model,
        tasks.include_path,
        tasks.allow_code_execution,
        folder.output_dir,
        num_fewshot=tasks.num_fewshot,
        limit=tasks.limit,
        apply_chat_template=tasks.apply_chat_template or tasks.preset is not None,
        system_instruction=tasks.system_instruction,
        fewshot_as_multiturn=tasks.apply_chat_template if multiturn is None else multiturn,
    )

    def load(loading: LoadingArguments):
        from ..harness.model import DiffusionHarnessLM

        model, tokenizer = load_model(loading)
        return DiffusionHarnessLM(
            model,
            tokenizer=tokenizer,
            mc_num=tasks.mc_num,
            check_greedy=tasks.check_greedy,
            seed=decoding.seed,
            finished_requests=folder.output_dir and str(Path(folder.output_dir) / "finished_requests.jsonl"),
            **batch_options(batch),
        )

    measure = _measure_tasks if tasks.preset is None else _measure_preset
    metrics = measure(runner, load, loading, tasks, settings)
    if metrics is not None:  # on the first process
        write_json(metrics, output.json)
        if folder.output_dir is not None:
            note(f"Written to {folder.output_dir}")
    # Processes that end without it may abort.
    state.destroy_process_group()


def _measure_tasks(
    runner: "TaskRunner", load: Callable, loading: LoadingArguments, tasks: TaskArguments, settings: dict[str, Any]
) -> dict[str, Any] | None:
    from lm_eval.utils import make_table

    from ..harness.run import scores_of

    names = runner.select(tasks.tasks)
    runner.load(names)
    results = runner.run(load(loading), names, settings)
    if results is None:
        return None
    say(make_table(results))
    if results.get("groups"):
        say(make_table(results, "groups"))
    return {
        "model": loading.model,
        "adapter": loading.adapter,
        "settings": settings,
        "results": {name: scores_of(results, name) for name in results["results"]},
    }


def _measure_preset(
    runner: "TaskRunner", load: Callable, loading: LoadingArguments, tasks: TaskArguments, settings: dict[str, Any]
) -> dict[str, Any] | None:
    from ..harness.presets import METHODS, choose_benchmarks, choose_methods
    from ..harness.tables import Comparison, comparison_tables

    preset, methods = str(tasks.preset), choose_methods(tasks.methods or None)
    checkpoints = {method: METHODS[method].checkpoint for method in methods}
    adapters = {"base": None, "adapter": loading.adapter, "consistency_adapter": tasks.consistency_adapter}
    _check_adapters(loading, checkpoints, adapters, is_model_as_given=not tasks.methods)
    comparison = Comparison(runner, preset, choose_benchmarks(preset, tasks.tasks or None), methods, settings)
    for checkpoint in dict.fromkeys(checkpoints.values()):
        model = load(_with_adapter(loading, adapters[checkpoint]))
        for method in methods:
            if checkpoints[method] == checkpoint:
                comparison.measure(model, method)
        # The next one must not be in memory beside it.
        del model
    rows = comparison.rows()
    if not rows:
        return None
    say(comparison_tables(rows))
    return {"preset": preset, "model": loading.model, "rows": rows}


def _with_adapter(loading: LoadingArguments, adapter: str | None) -> LoadingArguments:
    """The arguments that load the model with an adapter, or a model whose weights were trained as a whole."""
    if adapter is None or find_adapter_config_file(adapter) is not None:
        return dataclasses.replace(loading, adapter=adapter)
    return dataclasses.replace(loading, model=adapter, adapter=None)


def _check_adapters(
    loading: LoadingArguments,
    checkpoints: dict[str, str],
    adapters: dict[str, str | None],
    is_model_as_given: bool,
) -> None:
    """Checks that the last method has its adapter before the first is measured, which can take hours.

    Args:
        checkpoints (`dict[str, str]`): by method, the checkpoint that it is measured on.
        adapters (`dict[str, str]`): by checkpoint, its adapter, if one is given.
        is_model_as_given (`bool`): whether the model may be the checkpoint of the method without an adapter.
    """
    from ..harness.presets import METHODS

    for checkpoint, adapter in adapters.items():
        if adapter is not None and checkpoint not in checkpoints.values():
            owner = next(name for name, method in METHODS.items() if method.checkpoint == checkpoint)
            raise ValueError(
                f"`{checkpoint}={adapter}` belongs to a method that is not measured. Add {owner} to --methods, or "
                "leave it out."
            )
    for method, checkpoint in checkpoints.items():
        adapter = adapters[checkpoint]
        if adapter is None and checkpoint != "base" and not is_model_as_given:
            raise ValueError(f"`methods` has {method}, which needs an adapter. Add --{checkpoint} NAME.")
        if adapter is not None:
            with checked_name(checkpoint, adapter):
                if _with_adapter(loading, adapter).model == adapter:
                    AutoConfig.from_pretrained(adapter)


def _given_settings(tasks: TaskArguments, decoding: DecodingArguments) -> dict[str, Any]:
    """The decoding settings among the flags; refuses an unknown one, one out of range, or one that the preset sets."""
    from lm_eval.utils import simple_parse_args_string

    from ..harness.settings import check_gen_kwargs

    settings = dict(decoding.settings)
    if tasks.preset is not None:
        set_by_preset = sorted(settings.keys() - {"max_new_tokens", "block_length"})
        if set_by_preset:
            raise ValueError(f"A `preset` decodes with its own settings. Remove {', '.join(set_by_preset)}.")
    settings |= simple_parse_args_string(tasks.gen_kwargs)
    if settings.get("temperature"):
        # Most tasks ask for the likeliest tokens.
        settings.setdefault("do_sample", True)
    check_gen_kwargs(settings)
    return settings
