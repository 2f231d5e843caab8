# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate --tasks ...`: benchmarks of the lm-evaluation-harness."""

import math
from typing import Any

import click

from hf_dparallel_cli.command import Flags

from ..environment import join_processes, require
from .console import note, say
from .loading import batch_size, load_model, read_settings


def run(flags: Flags) -> dict[str, Any] | None:
    """Prints scores and costs, and writes results and samples."""
    read_settings(flags)
    tasks = [name for text in flags.tasks for name in text.split(",") if name]
    if not tasks:
        raise click.UsageError("`tasks` must have a name, if it is given.")
    if flags.limit is not None and not 0 < flags.limit < math.inf:
        raise click.UsageError(f"`limit` must be above 0 and finite, got {flags.limit}.")
    require("evaluate --tasks", "lm_eval")
    from lm_eval.utils import make_table

    from ..harness.model import DiffusionHarnessLM
    from ..harness.run import TaskRunner, scores_of

    settings = _given_settings(flags)
    state = join_processes()
    multiturn = flags.fewshot_as_multiturn
    runner = TaskRunner(
        flags.model,
        flags.include_path,
        flags.confirm_run_unsafe_code,
        flags.output_dir,
        num_fewshot=flags.num_fewshot,
        limit=flags.limit,
        apply_chat_template=flags.apply_chat_template,
        system_instruction=flags.system_instruction,
        fewshot_as_multiturn=flags.apply_chat_template if multiturn is None else multiturn,
    )
    names = runner.load(tasks)
    model, tokenizer = load_model(flags)
    lm = DiffusionHarnessLM(
        model,
        tokenizer=tokenizer,
        mc_num=flags.mc_num,
        check_greedy=flags.check_greedy,
        seed=flags.seed,
        batch_size=batch_size(flags.batch_size),
    )
    results = runner.run(lm, names, settings)
    # Processes that end without it may abort.
    state.destroy_process_group()
    if results is None:
        return None
    say(make_table(results))
    if results.get("groups"):
        say(make_table(results, "groups"))
    if flags.output_dir is not None:
        note(f"Written to {flags.output_dir}")
    return {
        "model": flags.model,
        "adapter": flags.adapter,
        "settings": settings,
        "results": {name: scores_of(results, name) for name in results["results"]},
    }


def _given_settings(flags: Flags) -> dict[str, Any]:
    """Returns the decoding settings among the flags; refuses an unknown one, or one out of range."""
    from lm_eval.utils import simple_parse_args_string

    from ..harness.request_settings import check_gen_kwargs

    settings = flags.settings | simple_parse_args_string(flags.gen_kwargs)
    if settings.get("temperature"):
        # Most tasks ask for the likeliest tokens.
        settings.setdefault("do_sample", True)
    check_gen_kwargs(settings)
    return settings
