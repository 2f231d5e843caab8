# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate --tasks ...` and `--preset ...`: benchmarks of the lm-evaluation-harness."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig
from transformers.utils import find_adapter_config_file

from ..environment import join_processes
from .arguments import CommandParser, DecodingArguments, LoadingArguments, OutputArguments, check_positive
from .console import note, say, write_json
from .loading import load_model
from .loading import loading as loading_by_name


_METHODS = ("original", "dual-cache", "few-step", "conf-threshold", "consistency-distillation", "dparallel")


@dataclass
class TaskArguments:
    tasks: list[str] | None = field(
        default=None,
        metadata={"help": "Tasks of the harness, with commas or spaces between. With --preset: those of its tasks."},
    )
    preset: str | None = field(
        default=None,
        metadata={
            "help": "The benchmarks of the paper with its settings, for LLaDA or Dream.",
            "choices": ["paper-llada", "paper-dream"],
        },
    )
    methods: list[str] | None = field(
        default=None,
        metadata={
            "help": "Rows of the paper's tables to measure, with --preset, with commas or spaces between: "
            f"{', '.join(_METHODS)}. By default dparallel, on the model as it is given."
        },
    )
    consistency_adapter: str | None = field(
        default=None, metadata={"help": "Adapter of the method consistency-distillation (--adapter is dparallel's)."}
    )
    batch_size: int = field(
        default=16, metadata={"help": "Requests decoded together. Does not change the answers, but their latency."}
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
    output_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder for results, samples and the report. Started again with it, a run goes on where it was "
            "stopped.",
            "metavar": "DIR",
        },
    )

    def __post_init__(self):
        check_positive(self, "batch_size")
        check_positive(self, "mc_num")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise ValueError(f"`num_fewshot` must be at least 0, got {self.num_fewshot}.")
        if self.limit is not None and self.limit <= 0:
            raise ValueError(f"`limit` must be above 0, got {self.limit}.")
        self.tasks, self.methods = _split(self.tasks), _split(self.methods)
        if self.tasks is None and self.preset is None:
            raise ValueError("Name `tasks` or a `preset`.")
        if self.preset is None and (self.methods or self.consistency_adapter):
            raise ValueError("`methods` and `consistency_adapter` need a `preset`. Add --preset paper-llada.")
        if self.preset is not None and self.num_fewshot is not None:
            raise ValueError("A `preset` has its own number of examples. Remove `num_fewshot`.")
        unknown = [method for method in self.methods or [] if method not in _METHODS]
        if unknown:
            raise ValueError(f"`methods` must be among {', '.join(_METHODS)}, got {', '.join(unknown)}.")
        if self.consistency_adapter is not None and "consistency-distillation" not in (self.methods or []):
            raise ValueError(
                "`consistency_adapter` belongs to a method that is not measured. Add --methods "
                "consistency-distillation, or leave it out."
            )


def asks_for_tasks(argv: Sequence[str]) -> bool:
    """Whether the arguments of `evaluate`, or its file of arguments, name tasks or a preset."""
    names = {argument.split("=")[0] for argument in argv}
    if names & {"--tasks", "--preset"}:
        return True
    parts = [part for argument in argv for part in argument.split("=", 1)]
    files = [Path(after) for flag, after in zip(parts, parts[1:], strict=False) if flag == "--config"]
    for file in files:
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue  # the parser says what is wrong with it
        if isinstance(values, dict) and values.keys() & {"tasks", "preset"}:
            return True
    return False


def run(argv: Sequence[str]) -> None:
    """Prints scores and costs, and writes results, samples and a report."""
    parser = CommandParser(
        "evaluate",
        "Measure scores and costs on tasks of the lm-evaluation-harness.",
        [LoadingArguments, TaskArguments, DecodingArguments, OutputArguments],
        positionals=["model"],
    )
    loading, tasks, decoding, output = parser.parse(argv)
    if find_spec("lm_eval") is None:
        raise ImportError("`evaluate --tasks` needs the lm-evaluation-harness: `pip install 'hf-dparallel[eval]'`.")
    settings = _given_settings(tasks, decoding)
    state = join_processes()
    if tasks.preset is not None:
        report = _run_preset(loading, tasks, decoding, settings)
    else:
        report = _run_tasks(loading, tasks, decoding, settings)
    if report is not None:
        write_json(report, output.json)
        if tasks.output_dir is not None:
            note(f"Written to {tasks.output_dir}")
    # Processes that end without it may abort.
    state.destroy_process_group()


def _run_tasks(
    loading: LoadingArguments,
    tasks: TaskArguments,
    decoding: DecodingArguments,
    settings: dict[str, Any],
) -> dict[str, Any] | None:
    from lm_eval.utils import make_table

    from ..harness.run import run_tasks, scores_of
    from ..harness.selection import load_tasks, make_task_manager, select_tasks

    task_manager = make_task_manager(tasks.include_path)
    names = select_tasks(task_manager, tasks.tasks or [], tasks.allow_code_execution)
    # Before the model, which takes longer: a data set that cannot be loaded.
    load_tasks(task_manager, names, tasks.allow_code_execution)
    model = _harness_model(loading, tasks, decoding)
    results = run_tasks(model, loading.model, names, task_manager, settings, _options(tasks), tasks.output_dir)
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


def _run_preset(
    loading: LoadingArguments,
    tasks: TaskArguments,
    decoding: DecodingArguments,
    settings: dict[str, Any],
) -> dict[str, Any] | None:
    from ..harness.presets import METHODS, PRESETS, choose_benchmarks, method_settings
    from ..harness.selection import load_tasks, make_task_manager, select_tasks
    from ..harness.settings import check_gen_kwargs
    from ..harness.tables import compare_methods, comparison_tables

    benchmarks = choose_benchmarks(str(tasks.preset), tasks.tasks)
    methods = tasks.methods or ["dparallel"]
    adapters = {"base": None, "adapter": loading.adapter, "consistency_adapter": tasks.consistency_adapter}
    if tasks.methods is not None:
        _check_adapters(loading, {method: METHODS[method].checkpoint for method in methods}, adapters)
    for benchmark in benchmarks:
        for method in methods:
            check_gen_kwargs(method_settings(method, PRESETS[str(tasks.preset)], benchmark, settings))
    task_manager = make_task_manager(tasks.include_path)
    select_tasks(task_manager, [benchmark.task for benchmark in benchmarks], tasks.allow_code_execution)
    names = [benchmark.register(str(tasks.preset), task_manager) for benchmark in benchmarks]
    load_tasks(task_manager, names, tasks.allow_code_execution)
    rows = compare_methods(
        lambda checkpoint: _harness_model(_with_adapter(loading, adapters[checkpoint]), tasks, decoding),
        loading.model,
        str(tasks.preset),
        benchmarks,
        methods,
        task_manager,
        _options(tasks),
        settings,
        tasks.output_dir,
    )
    if not rows:
        return None
    say(comparison_tables(rows))
    return {"preset": tasks.preset, "model": loading.model, "rows": rows}


def _harness_model(loading: LoadingArguments, tasks: TaskArguments, decoding: DecodingArguments):
    from ..harness.model import DiffusionHarnessLM

    model, tokenizer = load_model(loading)
    finished = Path(tasks.output_dir) / "finished_requests.jsonl" if tasks.output_dir is not None else None
    return DiffusionHarnessLM(
        model,
        tokenizer=tokenizer,
        batch_size=tasks.batch_size,
        mc_num=tasks.mc_num,
        check_greedy=tasks.check_greedy,
        seed=decoding.seed,
        finished_requests=str(finished) if finished is not None else None,
    )


def _with_adapter(loading: LoadingArguments, adapter: str | None) -> LoadingArguments:
    """The arguments that load the model with an adapter, or a model whose weights were trained as a whole."""
    if adapter is None or find_adapter_config_file(adapter) is not None:
        return dataclasses.replace(loading, adapter=adapter)
    return dataclasses.replace(loading, model=adapter, adapter=None)


def _check_adapters(
    loading: LoadingArguments, checkpoints: dict[str, str], adapters: Mapping[str, str | None]
) -> None:
    """Checks that there is what the last method needs before the first is measured, which can take hours.

    Raises:
        ValueError: if a method lacks its adapter, or an adapter its method.
        OSError: if there is no such adapter.
    """
    if adapters["adapter"] is not None and "adapter" not in checkpoints.values():
        raise ValueError(
            f"`adapter={adapters['adapter']}` belongs to a method that is not measured. Add dparallel to --methods, "
            "or leave it out."
        )
    for method, checkpoint in checkpoints.items():
        adapter = adapters[checkpoint]
        if adapter is None and checkpoint != "base":
            raise ValueError(f"`methods` has {method}, which needs an adapter. Add --{checkpoint} NAME.")
        if adapter is not None:
            with loading_by_name(checkpoint, adapter):
                if _with_adapter(loading, adapter).model == adapter:
                    AutoConfig.from_pretrained(adapter)


def _options(tasks: TaskArguments):
    from ..harness.run import TaskOptions

    in_chat = tasks.apply_chat_template or tasks.preset is not None
    multiturn = tasks.fewshot_as_multiturn
    return TaskOptions(
        num_fewshot=tasks.num_fewshot,
        limit=tasks.limit,
        apply_chat_template=in_chat,
        system_instruction=tasks.system_instruction,
        fewshot_as_multiturn=tasks.apply_chat_template if multiturn is None else multiturn,
        allow_code_execution=tasks.allow_code_execution,
    )


def _given_settings(tasks: TaskArguments, decoding: DecodingArguments) -> dict[str, Any]:
    """The decoding settings among the arguments.

    Raises:
        ValueError: for an unknown one, one out of range, or one that the preset sets.
    """
    from lm_eval.utils import simple_parse_args_string

    from ..harness.settings import check_gen_kwargs

    settings = {name: value for name, value in vars(decoding).items() if name != "seed" and value is not None}
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
