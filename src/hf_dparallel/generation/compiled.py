# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Passes as compiled graphs: one from the canvas to the scores, one from the scores to the committed canvas."""

import threading
from typing import Any

import torch

from hf_dparallel_rules.certainty import TokenPrediction
from hf_dparallel_rules.commit_rules import RULES

from .hooks.base import Change, DecodingHook


# The most shapes of a graph: of rows, widths and settings.
_MOST_GRAPHS = 256
# Where a pass begins, CUDA graphs take back what they have returned, also to other threads, which may be within one.
_ONE_PASS = threading.RLock()


class CompiledPass:
    """Runs the passes of a decoder by compiled code, of few shapes: the planner's kinds, over all lines of the canvas.

    The decision is compiled, too, unless something on the host takes part in it: draws, processors, JSON. The first
    pass, over the prompts, is not compiled, nor is one without a cache yet: it allocates what compiled code cannot.
    """

    def __init__(self, decoder: Any):
        self.decoder = decoder
        settings = decoder.config.compile_config.to_dict()
        if settings.get("dynamic") is None:
            settings["dynamic"] = False
        self._scores = torch.compile(_scores, **settings)
        self._decide = torch.compile(_decide, **settings)
        self._decides_on_host = _decides_on_host(decoder)
        self._has_run = False

    def run_pass(self) -> tuple[TokenPrediction, Change]:
        """Runs a pass over all rows, and returns what it predicts and changes."""
        decoder = self.decoder
        canvas = decoder.canvas
        decoder.runner.fit()
        cache = decoder.runner.cache
        is_compiled = self._has_run and (cache is None or cache.is_initialized)
        with _ONE_PASS, torch._dynamo.config.patch(recompile_limit=_MOST_GRAPHS):
            torch.compiler.cudagraph_mark_step_begin()
            if is_compiled:
                logits = self._logits()
            else:
                logits = decoder.runner.run_all(decoder.planner.plan(_wanted(decoder)))

            if not is_compiled or self._decides_on_host:
                result = _decide(decoder, logits, max(status.num_open for status in canvas.status))
            else:
                result = self._decide(decoder, logits, None)
                # Compiled code uses the memory of what it returns again.
                canvas.own()
        self._has_run = True
        return result

    def _logits(self) -> torch.Tensor:
        decoder = self.decoder
        canvas = decoder.canvas
        logits: Any = None
        for kind, rows in decoder.planner.groups().items():
            is_of_pass: Any = None
            if len(rows) < len(canvas):
                is_of_pass = torch.zeros(len(canvas.sequences), dtype=torch.bool)
                is_of_pass[rows] = True
                is_of_pass = is_of_pass.to(canvas.sequences.device)

            if kind == "eager":
                of_kind = decoder.runner.run_all(decoder.planner.over_rows(rows, _wanted(decoder)))
            else:
                of_kind = self._scores(decoder, kind, is_of_pass)
            logits = of_kind if logits is None else torch.where(is_of_pass[:, None, None], of_kind, logits)
        return logits


def _decides_on_host(decoder: Any) -> bool:
    """Returns whether draws, hooks or a commit rule of one's own take part in what is committed."""
    rule = RULES.get(decoder.config.commit_rule())
    if rule is not None and not rule.__module__.startswith("hf_dparallel_rules."):
        # It may keep tensors of a pass, whose memory compiled code uses again, or read them on the host.
        return True

    own = (DecodingHook.scores, DecodingHook.change)
    is_plain = all((type(hook).scores, type(hook).change) == own for hook in decoder.hooks)
    return not is_plain or decoder.config.temperature > 0


def _wanted(decoder: Any) -> torch.LongTensor:
    columns, _ = decoder.canvas.open_columns()
    return decoder.runner.scored(decoder.wanted(columns))


def _scores(decoder: Any, kind: str, is_of_pass: torch.BoolTensor | None) -> torch.Tensor:
    runner = decoder.runner
    logits = runner.run(decoder.planner.compiled(kind, _wanted(decoder), is_of_pass))
    if runner.cache is not None:
        # It would keep tensors of the graph.
        runner.cache.select(None)
    return logits


def _decide(decoder: Any, logits: torch.Tensor, num_open: int | None) -> tuple[TokenPrediction, Change]:
    """Decides by the scores of all columns, or of the first `num_open` as without compiled code."""
    columns, masked = decoder.canvas.open_columns()
    if num_open is not None and logits.shape[1] == columns.shape[1] and decoder.wanted(columns) is columns:
        columns = columns[:, :num_open]
        masked = masked[:, :num_open]
        logits = logits[:, :num_open]
    return decoder.decide(columns, masked, logits.clone())
