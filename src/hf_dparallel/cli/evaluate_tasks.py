# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate --tasks ...` and `--preset ...`: benchmarks of the lm-evaluation-harness."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig
from transformers.utils import find_adapter_config_file

from ..environment import join_processes
from .arguments import BatchArguments, DecodingArguments, LoadingArguments, check_positive
from .console import say
from .loading import load_model
from .loading import loading as loading_by_name


if TYPE_CHECKING:
    from ..harness.run import TaskRunner


@dataclass
class TaskArguments:
    tasks: list[str] | None = field(
        default=None,
        metadata={
            "help": "Measure on these tasks of the lm-evaluation-harness instead of a dataset, with commas or spaces "
            "between. With --preset: those of its tasks."
        },
    )
    preset: str | None = field(
        default=None,
        metadata={
            "help": "Measure on the benchmarks of the paper with its settings, for LLaDA or Dream.",
            "choices": ["paper-llada", "paper-dream"],
        },
    )
    methods: list[str] | None = field(
        default=None,
        metadata={
            "help": "Rows of the paper's tables to measure, with --preset, with commas or spaces between: original, "
            "dual-cache, few-step, conf-threshold, consistency-distillation, dparallel. By default dparallel, on the "
            "model as it is given."
        },
    )
    consistency_adapter: str | None = field(
        default=None, metadata={"help": "Adapter of the method consistency-distillation (--adapter is dparallel's)."}
    )
    include_path: str | None = field(
        default=None, metadata={"help": "Folder with more tasks, as YAML files.", "metavar": "DIR"}
    )
    num_fewshot: int | None = field(default=None, metadata={"help": "Solved examples in each prompt."})
    limit: float | None = field(
        default=None, metadata={"help": "Only the first so many samples of each task; below 1, that share of them."}
    )
    apply_chat_template: bool = field(default=False, metadata={"help": "Ask in a chat. Presets always do."})
    system_instruction: str | None = field(default=None, metadata={"help": "Text that begins each prompt."})
    fewshot_as_multiturn: bool | None = field(
        default=None,
        metadata={"help": "Solved examples as turns of the chat. By default in a chat, without --preset."},
    )
    gen_kwargs: str | None = field(
        default=None,
        metadata={"help": "More decoding settings: name=value,... They win over those of the tasks and over flags."},
    )
    mc_num: int = field(default=128, metadata={"help": "Masked samples for each log-likelihood."})
    check_greedy: bool = field(
        default=False, metadata={"help": "Decode to see whether an answer is the greedy one, for log-likelihoods."}
    )
    allow_code_execution: bool = field(
        default=False, metadata={"help": "Let tasks execute programs of the model, each in a sandbox."}
    )

    def __post_init__(self):
        check_positive(self, "mc_num")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise ValueError(f"`num_fewshot` must be at least 0, got {self.num_fewshot}.")
        if self.limit is not None and not 0 < self.limit < math.inf:
            raise ValueError(f"`limit` must be above 0 and finite, got {self.limit}.")
        self.tasks, self.methods = _split(self.tasks), _split(self.methods)
        if self.tasks == [] or self.methods == []:
            raise ValueError("`tasks` and `methods` must have a name, if they are given.")
        if self.preset is None and (self.methods or self.consistency_adapter):
            raise ValueError("`methods` and `consistency_adapter` need a `preset`. Add --preset paper-llada.")
        if self.preset is not None and self.num_fewshot is not None:
            raise ValueError("A `preset` has its own number of examples. Remove `num_fewshot`.")


def run(
    loading: LoadingArguments,
    tasks: TaskArguments,
    batch: BatchArguments,
    decoding: DecodingArguments,
    output_dir: str | None,
) -> dict[str, Any] | None:
    """Prints scores and costs, writes results, samples and a report, and returns the figures.

    Returns:
        `dict`: `None` on all processes but the first.
    """
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
        output_dir,
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
            batch_size=batch.batch_size,
            mc_num=tasks.mc_num,
            check_greedy=tasks.check_greedy,
            seed=decoding.seed,
            finished_requests=None if output_dir is None else str(Path(output_dir) / "finished_requests.jsonl"),
        )

    measure = _measure_tasks if tasks.preset is None else _measure_preset
    metrics = measure(runner, load, loading, tasks, settings)
    # Processes that end without it may abort.
    state.destroy_process_group()
    return metrics


def _measure_tasks(
    runner: "TaskRunner", load: Callable, loading: LoadingArguments, tasks: TaskArguments, settings: dict[str, Any]
) -> dict[str, Any] | None:
    from lm_eval.utils import make_table

    from ..harness.run import scores_of

    names = runner.select(tasks.tasks or [])
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

    preset, methods = str(tasks.preset), choose_methods(tasks.methods)
    checkpoints = {method: METHODS[method].checkpoint for method in methods}
    adapters = {"base": None, "adapter": loading.adapter, "consistency_adapter": tasks.consistency_adapter}
    _check_adapters(loading, checkpoints, adapters, is_model_as_given=tasks.methods is None)
    comparison = Comparison(runner, preset, choose_benchmarks(preset, tasks.tasks), methods, settings)
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
    checkpoints: Mapping[str, str],
    adapters: Mapping[str, str | None],
    is_model_as_given: bool,
) -> None:
    """Checks that the last method has its adapter before the first is measured, which can take hours.

    Args:
        checkpoints (`Mapping[str, str]`): by method, the checkpoint that it is measured on.
        adapters (`Mapping[str, str]`): by checkpoint, its adapter, if one is given.
        is_model_as_given (`bool`): whether the model may be the checkpoint of the method without an adapter.

    Raises:
        ValueError: if a method lacks its adapter, or an adapter its method.
        OSError: if there is no such adapter.
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
            with loading_by_name(checkpoint, adapter):
                if _with_adapter(loading, adapter).model == adapter:
                    AutoConfig.from_pretrained(adapter)


def _given_settings(tasks: TaskArguments, decoding: DecodingArguments) -> dict[str, Any]:
    """The decoding settings among the arguments.

    Raises:
        ValueError: for an unknown one, one out of range, or one that the preset sets.
    """
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


def _split(names: Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    return [name for text in names for name in text.split(",") if name]
