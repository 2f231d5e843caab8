# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A decode as text, and text that a page must not trust."""

from hf_dparallel.inspection.trace import DecodeTrace, Prediction


HOSTILE = (
    "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'><!-- __DATA__ __TITLE__ &amp;"
)


def make_trace(**changed) -> DecodeTrace:
    """Returns a trace of three tokens in two passes, and one token after the end of the answer."""
    settings = {
        "name": "Teacher",
        "prompt": "2 + 3",
        "changes": [[(1, "five")], [(0, ".")], [(0, "<end>")], []],
        "blocks": [range(0, 2), range(2, 4)],
        "nfe": 2,
        "tokens_per_forward": 1.5,
        "settings": {"entropy_threshold": 0.5},
        "predictions": [
            {position: Prediction(0.5, 0.75, [("five", 0.75), ("six", 0.25)]) for position in range(4)},
            {position: Prediction(0.1, 0.9996, [("five", 0.9996)]) for position in (0, 3)},
        ],
    }
    return DecodeTrace(**(settings | changed))


def standing(trace: DecodeTrace, position: int, number: int) -> tuple[int, str | None]:
    """Returns the last of `number` passes that set a position, or -1, and the text there, `None` for a mask."""
    return next((change for change in reversed(trace.changes[position]) if change[0] < number), (-1, None))
