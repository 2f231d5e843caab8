# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel export`: write a student for a serving engine."""

from typing import Any

from hf_dparallel_cli.command import Flags

from ..demo import STUDENT, TEACHER, path_of
from ..engines.export import export_for_engine
from .console import say
from .loading import checked_name, read_settings


def run(flags: Flags) -> dict[str, Any]:
    """Prints the line that starts the engine."""
    student = path_of(flags.student)
    base_model = flags.base_model or (TEACHER if student == STUDENT else None)
    given = read_settings(flags)
    with checked_name("student", student):
        launch = export_for_engine(
            student, flags.engine, flags.output_dir, base_model=base_model, generation_config=given
        )
    say(launch)
    return {"engine": flags.engine, "output_dir": flags.output_dir, "launch": launch}
