# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Mathematical answers, right and wrong."""

import pytest

from hf_dparallel.evaluation.math_answers import math_answers_correct


@pytest.mark.parametrize(
    ("prediction", "reference", "correct"),
    [
        (r"So it is $\frac{2}{4}$.", "0.5", True),
        (r"Thus \boxed{2\pi}.", r"2\pi", True),
        (r"Thus \boxed{2}.", r"2\pi", False),
        (r"The point is $(3, \frac{\pi}{2})$.", r"\left( 3, \frac{\pi}{2} \right)", True),
        (r"\boxed{x^2 + 1}", r"We find $y = 7$, so the answer is \boxed{1 + x^2}.", True),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", True),
        ("He earns 18 dollars a day. The answer is 18.", "9 * 2 = <<9*2=18>>18\n#### 18", True),
        ("#### 1250", "#### 1,250", True),
        ("First 18, and then 19.", "18", False),
        ("I do not know.", "18", False),
        ("", "18", False),
    ],
)
def test_answers_are_compared_as_mathematics(prediction, reference, correct):
    assert math_answers_correct([prediction], [reference]) == [correct]


def test_a_reference_without_an_answer_is_an_error():
    with pytest.raises(ValueError, match="reference 1: '#### '"):
        math_answers_correct(["1", "1"], ["1", "#### "])
