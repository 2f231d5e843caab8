# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Solutions as a reader understands them."""

import re


def extract_answer(text: str) -> int | None:
    """Returns the number in the last "The answer is ..." of a text, if there is one."""
    found = re.findall(r"The answer is (\d+) ?\.", text)
    return int(found[-1]) if found else None
