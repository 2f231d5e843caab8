# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A tiny teacher, its student and their word problems, which come with the package.

`TEACHER` and `STUDENT` are folders, for `from_pretrained` and wherever else a model has a name.
"""

from pathlib import Path

from .word_problems import word_problem_dataset as word_problem_dataset


# The student is an adapter. Its folder is a complete checkpoint, whose weights the teacher's folder in it has.
STUDENT = str(Path(__file__).parent / "student")
TEACHER = str(Path(STUDENT) / "teacher")
# What both are called on the command line.
NAMES = {"demo": TEACHER, "demo-student": STUDENT}


def path_of(name: str) -> str:
    """Returns the folder of a bundled model or adapter; any other name stays as it is."""
    return NAMES.get(name, name)
