# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page for trying a model in a browser: one HTML file without other resources."""

import base64
import hashlib
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

from hf_dparallel_rules.settings import SETTINGS, Setting, settings_of

from ..pass_colors import CSS


# Questions to try, by title. Several questions are one conversation.
EXAMPLES = {
    "two steps": ["Mia has 14 pens. She finds 6 more and then sells 5. How many pens are left?"],
    "six steps": [
        "Tom has 20 coins. He finds 8 more. Then he loses 5. He buys 9 more. Then he loses 7. He finds 4 more. Then "
        "he loses 6. How many coins are left?"
    ],
    "eight steps": [
        "Leo has 12 stamps. Then Leo finds 8 more. Later Leo loses 5 stamps. Then Leo buys 9 more. Later Leo sells 4 "
        "stamps. Then Leo finds 7 more. Later Leo loses 6 stamps. Then Leo buys 3 more. Later Leo sells 2 stamps. "
        "How many stamps does Leo have now?"
    ],
    "a follow-up": ["Gia has 18 apples and eats 7 of them. How many are left?", "And if she finds 9 more?"],
    "number words": ["Emma has twenty-three books and buys eight more. How many books does she have?"],
    "something else": ["What is the capital of France?"],
}
_TEMPLATE = Path(__file__).with_name("web_page.html")
# The end of the slider for thresholds without a maximum: some answers of the bundled teacher break only above 2.
_LARGEST_ON_SLIDER = 3.0
# Up to this entropy, the probability of the likeliest token is at least one half.
_USEFUL = {"entropy_threshold": math.log(2)}


@cache
def render_page() -> tuple[str, dict[str, str]]:
    """Returns the page and its HTTP headers.

    The content security policy allows only the page's own script, and connections to this server only.
    """
    rules = {name: _slider(SETTINGS[name]) for name in settings_of("rule") if SETTINGS[name].has_flag}
    page = _TEMPLATE.read_text(encoding="utf-8").replace("__PASS_COLORS__", CSS)
    for place, data in {"__RULES__": rules, "__EXAMPLES__": EXAMPLES}.items():
        page = page.replace(place, json.dumps(data).replace("<", "\\u003c"))
    policy = (
        f"default-src 'none'; script-src {_hash_of('script', page)}; style-src {_hash_of('style', page)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}


def _slider(rule: Setting) -> dict[str, Any]:
    """Returns the range, the step and the default of the slider for a commit rule, and its help."""
    has_maximum = rule.type is float and rule.maximum <= 1
    return {
        "help": rule.help.replace("`", ""),
        # The page computes the range: from one pass per block to one pass per token of the model's recipe.
        "is_schedule": rule.type is int,
        "minimum": 0.05 if rule.above_minimum else rule.minimum,
        "maximum": rule.maximum if has_maximum else _LARGEST_ON_SLIDER,
        "step": 1 if rule.type is int else 0.05,
        "value": None if rule.type is int else 0.9 if has_maximum else 0.5,
        "useful": _USEFUL.get(rule.name),
    }


def _hash_of(tag: str, page: str) -> str:
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
