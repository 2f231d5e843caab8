# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Draws the animation of the README, the chart of results and the pictures of the concepts, as SVG.

    python scripts/picture_concepts.py

The animation and the commits are real decodes of the bundled teacher and its student, the chart is of the last
`make demo` whose report was kept.
"""

import argparse
import json
import math
from html import escape
from pathlib import Path

from transformers import AutoModelForMaskedLM, AutoTokenizer

import hf_dparallel


# In lines, as the picture has them.
QUESTION = (
    "Mia has 14 pens. Then Mia finds 6 more. Later Mia sells 5 pens.",
    "Then Mia buys 4 pens. How many pens does Mia have now?",
)
SECONDS_PER_PASS, PAUSE, HOLD = 0.18, 1.0, 5.0
CHAR, LINE = 8.2, 26
ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "results" / "demo_seed0.json"
STYLE = """
svg { --page: #fff; --text: #16181d; --quiet: #555b66; --line: #b9bec8; --mask: #e4e7ec; --bar: #8a93a3;
  --accent: #0b57d0; --first: 0.82; --span: 0.11; --chroma: 0.1; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { svg { --page: #14161a; --text: #e8eaee; --quiet: #a6adb9; --line: #4a505b;
  --mask: #2a2e36; --bar: #7d8798; --accent: #8ab4f8; --first: 0.36; --span: 0.15; --chroma: 0.09; } }
text { font: 14px system-ui, sans-serif; fill: var(--text); }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 13.5px; }
.small, .quiet { font-size: 12.5px; fill: var(--quiet); }
.title { font-weight: 600; }
.mid { text-anchor: middle; }
.page { fill: var(--page); stroke: var(--line); }
.mask { fill: var(--mask); stroke: var(--line); }
.bar { fill: var(--bar); }
.none { fill: none; stroke: var(--line); stroke-dasharray: 3 3; }
.given { fill: none; stroke: var(--line); }
.open { fill: none; stroke: var(--accent); stroke-width: 2; }
.back { fill: var(--mask); stroke: var(--accent); stroke-width: 2; stroke-dasharray: 4 3; }
.limit { stroke: var(--accent); stroke-dasharray: 5 4; }
.token { fill: oklch(calc(var(--first) + var(--span) * var(--when)) var(--chroma) calc(300 - 200 * var(--when))); }
"""


def picture(width: int, height: int, title: str, parts: list[str], style: str = "") -> str:
    """Draws a card with its own background, legible on light and dark pages."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{STYLE}{style}</style>\n'
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}"{more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, when: float = 0.0, more: str = "") -> str:
    style = f' style="--when: {when:.2f}"' if kind == "token" else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" class="{kind}"{style}{more}/>'


class Decode:
    """What the pictures show of one answer: its words, the pass of each, and the entropies of the first pass."""

    def __init__(self, folder: str, **settings):
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForMaskedLM.from_pretrained(folder)
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": " ".join(QUESTION)}],
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        out = model.generate(**inputs, **settings, output_certainty=True, return_dict_in_generate=True)
        answer = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        steps, self.nfe = out.commit_step[0].tolist(), int(out.nfe[0])
        length = answer.index(tokenizer.eos_token_id)
        grown = [tokenizer.decode(answer[:end]) for end in range(length + 1)]
        self.words = [after[len(before) :] for before, after in zip(grown, grown[1:], strict=False)]
        self.steps = steps[:length]
        self.first_entropies = out.entropies[0, 0].tolist()


def answer_panel(left: float, top: float, width: float, decode: Decode) -> tuple[list[str], float]:
    """Draws masks, over them the words, each from the end of its pass on; and returns the last line's place."""
    parts, x, y = [], left, top
    for index, (word, step) in enumerate(zip(decode.words, decode.steps, strict=True)):
        shown = word.strip()
        gap = CHAR if word.startswith(" ") and x > left else 0
        following = decode.words[index + 1] if index + 1 < len(decode.words) else " "
        needed = CHAR * (len(shown) + (0 if following.startswith(" ") else len(following)))
        if x + gap + needed > left + width and gap:
            x, y, gap = left, y + LINE, 0
        x += gap
        size = CHAR * len(shown)
        token = box(x - 1, y - 16, size + 2, 21, "token", step / max(decode.nfe - 1, 1))
        fitted = f' textLength="{size:g}" lengthAdjust="spacingAndGlyphs"'
        moment = f"after-{step + 1}"
        parts += [
            box(x - 1, y - 16, size + 2, 21, "mask"),
            f'<g class="{moment}">{token}{text(x, y, shown, "mono", fitted)}</g>',
        ]
        x += size
    return parts, y


def counter(x: float, y: float, name: str, decode: Decode) -> list[str]:
    """Draws the number of passes, in a column of which a window shows one."""
    numbers = "".join(text(x, y + 60 * number, str(number), "count") for number in range(decode.nfe + 1))
    return [
        f'<clipPath id="window-{name}"><rect x="{x - 5}" y="{y - 40}" width="90" height="50"/></clipPath>',
        f'<g clip-path="url(#window-{name})"><g class="count-{name}">{numbers}</g></g>',
        text(x + 32 * len(str(decode.nfe)), y, "passes", "quiet"),
    ]


def motion(decodes: dict[str, Decode]) -> str:
    """Writes the animation, equally fast per pass for all. Without motion, the end is shown."""
    longest = max(decode.nfe for decode in decodes.values())
    period = PAUSE + SECONDS_PER_PASS * longest + HOLD

    def after(passes: int) -> str:
        return f"{100 * (PAUSE + SECONDS_PER_PASS * passes) / period:.2f}%"

    style, moving = "", ""
    for name, decode in decodes.items():
        end = f"transform: translateY({-60 * decode.nfe}px)"
        style += (
            f".count-{name} {{ {end} }}\n@keyframes count-{name} {{ 0% {{ transform: none }} {after(0)}"
            f" {{ transform: none; animation-timing-function: steps({decode.nfe}) }} {after(decode.nfe)}, 100%"
            f" {{ {end} }} }}\n"
        )
        moving += f".count-{name} {{ animation: count-{name} {period:.2f}s infinite }}\n"
    for passes in sorted({step + 1 for decode in decodes.values() for step in decode.steps} | {longest}):
        style += f"@keyframes after-{passes} {{ 0% {{ opacity: 0 }} {after(passes)} {{ opacity: 1 }} }}\n"
        moving += f".after-{passes} {{ animation: after-{passes} {period:.2f}s step-end infinite }}\n"
    return f"{style}@media (prefers-reduced-motion: no-preference) {{\n{moving}}}\n"


def draw_decode(teacher: Decode, student: Decode) -> str:
    """Draws teacher and student on one problem, side by side."""
    style = ".count { font-size: 42px; font-weight: 700; } .fewer { font-size: 19px; font-weight: 700; }\n"
    parts = [text(18, 28 + 20 * row, line) for row, line in enumerate(QUESTION)]
    sides = (("teacher", "Teacher, one token per pass", teacher, 18), ("student", "Student (dParallel)", student, 332))
    for name, title, decode, left in sides:
        parts += [text(left, 84, title, "title"), *counter(left, 130, name, decode)]
        panel, last = answer_panel(left, 166, 290, decode)
        parts += panel
    fewer = f"{teacher.nfe / student.nfe:.0f}x fewer passes"
    parts.append(f'<g class="after-{teacher.nfe}">{text(436, 130, fewer, "fewer")}</g>')
    height = last + 56
    parts.append(text(18, height - 16, "Colour: the pass that committed the token, from first", "small"))
    parts += [box(364 + 14 * index, height - 27, 14, 13, "token", index / 6) for index in range(7)]
    parts.append(text(470, height - 16, "to last", "small"))
    title = f"The same answer in {teacher.nfe} passes of the teacher and {student.nfe} of the student."
    return picture(640, height, title, parts, style + motion({"teacher": teacher, "student": student}))


def draw_block() -> str:
    """Draws prompt and canvas in mid-decode."""
    parts, cell = [], 22
    kinds = [("prompt", "given", 6), ("block 1", "token", 8), ("block 2", "open", 8), ("block 3", "mask", 8)]
    notes = ["", "decided", "open: every pass predicts its masks", "waits, all masks"]
    x = 20
    for (name, kind, count), note in zip(kinds, notes, strict=True):
        for index in range(count):
            decided = kind == "token" or (kind == "open" and index in (0, 1, 2, 5))
            shown = "given" if kind == "given" else "token" if decided else "mask"
            parts.append(box(x + cell * index, 52, cell - 3, 26, shown, 0.2 if kind == "token" else 0.9))
        width = cell * count - 3
        if kind == "open":
            parts.append(box(x - 4, 46, width + 8, 38, "open"))
        parts += [text(x + width / 2, 32, name, "mid title"), text(x + width / 2, 104, note, "mid small")]
        x += width + 16
    parts.append(text(20 + cell * 6 + 13, 128, "canvas: max_new_tokens places", "small"))
    return picture(x + 4, 142, "A prompt and a canvas of three blocks: one decided, one open, one of masks.", parts)


def draw_commit(teacher: Decode, student: Decode, threshold: float) -> str:
    """Draws each prediction's entropy in the first pass over the first block."""
    parts, width, height, most = [], 21, 92, 3.0
    for row, (name, decode) in enumerate((("Teacher", teacher), ("Student", student))):
        base = 152 + row * 216
        entropies = decode.first_entropies[:32]
        # The most certain prediction is always committed.
        limit = max(threshold, min(entropies))
        committed = sum(entropy <= limit for entropy in entropies)
        title = f"{name}, first pass: {committed} of 32 predictions are committed"
        parts.append(text(20, base - 116, title, "title"))
        for index, entropy in enumerate(entropies):
            tall, x = max(height * min(entropy / most, 1), 2), 52 + width * index
            kind = "token" if entropy <= limit else "bar"
            parts.append(box(x, base - tall, width - 4, tall, kind, 0.9))
            word = decode.words[index].strip()
            parts.append(text(x + 4, base + 10, word, "mono small", f' transform="rotate(60 {x + 4:g} {base + 8:g})"'))
        line = base - height * threshold / most
        parts.append(f'<line class="limit" x1="48" x2="724" y1="{line:g}" y2="{line:g}"/>')
        for value in (0, 1, 2, 3):
            parts.append(text(40, base + 4 - height * value / most, str(value), "small", ' text-anchor="end"'))
    parts.append(
        text(20, 442, f"Height: entropy of the prediction, in nats. Dashed: entropy_threshold={threshold:g}.", "small")
    )
    return picture(744, 456, "Entropies of the first pass: the student is certain of almost the whole block.", parts)


def draw_cache() -> str:
    """Draws what a pass inside the second block computes, and what it reads from the cache."""
    parts = [
        text(x, 30, name, "mid small")
        for name, x in (("prompt", 292), ("block 1", 412), ("block 2, open", 532), ("block 3", 652))
    ]
    rows = [
        ("no cache (exact)", "ccccccc cccccc cccccc cccccc"),
        ('"prefix"', "kkkkkkk kkkkkk cccccc cccccc"),
        ('"dual"', "kkkkkkk kkkkkk cccccc kkkkkk"),
        ("Block-causal (exact)", "kkkkkkk kkkkkk cccccc ------"),
    ]
    for row, (name, cells) in enumerate(rows):
        y = 42 + 40 * row
        parts.append(text(20, y + 19, name, "mono"))
        for group, letters in enumerate(cells.split()):
            for index in range(6):
                kind = {"c": "token", "k": "mask", "-": "none"}[letters[index]]
                parts.append(box(238 + 120 * group + 18 * index, y, 15, 26, kind, 0.9))
    for x, kind, name in (
        (20, "token", "computed in this pass"),
        (220, "mask", "keys and values kept"),
        (420, "none", "not seen"),
    ):
        parts += [box(x, 212, 15, 15, kind, 0.9), text(x + 22, 224, name, "small")]
    return picture(744, 242, "What a pass computes without a cache and with each of the caches.", parts)


def draw_verification() -> str:
    """Draws a wrong commit, the next pass doubting it, and the third setting another."""
    rows = [
        ("pass 1 commits boldly", ["14", "+", "6", "=", "21", ".", None, None], None),
        ("pass 2 predicts each from the others", ["0.99", "0.99", "0.98", "0.99", "0.04", "0.97", "", ""], 4),
        ("below revocation_threshold: masked again", ["14", "+", "6", "=", None, ".", "Then", "we"], 4),
        ("pass 3 commits another", ["14", "+", "6", "=", "20", ".", "Then", "we"], None),
    ]
    parts = []
    for row, (name, words, doubted) in enumerate(rows):
        y = 24 + 46 * row
        parts.append(text(20, y + 20, name, "small"))
        for index, word in enumerate(words):
            x, when = 300 + 54 * index, 0.9 if row == 3 and index == 4 else 0.5 if row > 1 and index > 5 else 0.1
            kind = "given" if row == 1 and word else "none" if row == 1 else "mask" if word is None else "token"
            parts.append(box(x, y, 49, 30, "back" if index == doubted else kind, when))
            parts.append(text(x + 24.5, y + 20, word or "", "mid mono"))
    return picture(
        750, 214, "A committed token that the next pass finds improbable is masked and decided again.", parts
    )


def draw_results(report: Path) -> str:
    """Draws accuracy against passes on the tuning problems, for each threshold."""
    tuning = json.loads(report.read_text())["tuning"]
    curves = [
        ("entropy_threshold", "Teacher, entropy threshold", "second"),
        ("confidence_threshold", "Teacher, confidence threshold", "first"),
        ("student", "Student, entropy threshold", "third"),
    ]

    lowest = 2 * math.floor(50 * min(trial["accuracy"] for rule, *_ in curves for trial in tuning[rule]))

    def place(nfe: float, accuracy: float) -> tuple[float, float]:
        return 64 + 136 * math.log2(nfe / 2), 40 + 192 * (100 - 100 * accuracy) / (100 - lowest)

    parts = []
    for percent in range(lowest, 101, 2):
        y = place(2, percent / 100)[1]
        parts += [
            f'<line class="given" x1="64" x2="744" y1="{y:g}" y2="{y:g}"/>',
            text(56, y + 4, f"{percent}%", "small", ' text-anchor="end"'),
        ]
    parts += [text(place(passes, 0)[0], 256, str(passes), "small mid") for passes in (2, 4, 8, 16, 32, 64)]
    parts.append(text(404, 276, "forward passes per answer, fewer is faster", "small mid"))
    parts.append(text(20, 16, "right answers", "small"))
    for row, (rule, name, kind) in enumerate(curves):
        points = [(place(trial["nfe"], trial["accuracy"]), trial["recipe"]) for trial in tuning[rule]]
        line = " ".join(f"{x:g},{y:g}" for (x, y), _ in points)
        parts.append(f'<polyline class="{kind}" points="{line}"/>')
        free = 0.0
        for (x, y), recipe in sorted(points, key=lambda point: point[0]):
            parts.append(f'<circle class="{kind} dot" cx="{x:g}" cy="{y:g}" r="4.5"/>')
            (threshold,) = recipe.values()
            if x > free:
                free = x + 22
                parts.append(text(x + 7, y + (15 if row else -7), f"{threshold:g}", "small"))
        parts += [
            f'<circle class="{kind} dot" cx="100" cy="{164 + 22 * row}" r="4.5"/>',
            text(112, 169 + 22 * row, name),
        ]
    x, y = place(tuning["original"]["nfe"], tuning["original"]["accuracy"])
    parts += [
        f'<circle class="bar" cx="{x:g}" cy="{y:g}" r="5"/>',
        text(x - 6, y + 20, "one token per pass", "small", ' text-anchor="end"'),
    ]
    style = "".join(
        f".{kind} {{ stroke: {colour}; fill: none; stroke-width: 2 }} .{kind}.dot {{ fill: {colour} }}\n"
        for kind, colour in (("first", "#7c6fe0"), ("second", "#2f8fd8"), ("third", "#4f9a1f"))
    )
    return picture(
        770, 290, "Accuracy against passes: the student is left of every threshold of the teacher.", parts, style
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=ROOT / "docs" / "images")
    folder = parser.parse_args().output_dir
    canvas = {"max_new_tokens": 64, "block_length": 32}
    teacher = Decode(hf_dparallel.demo.TEACHER, **canvas)
    student = Decode(hf_dparallel.demo.STUDENT, **canvas)
    if teacher.words != student.words:
        raise RuntimeError(f"Teacher and student answer differently: {teacher.words} and {student.words}.")
    pictures = {
        "decode": draw_decode(teacher, student),
        "results": draw_results(REPORT),
        "block": draw_block(),
        "commit": draw_commit(teacher, student, threshold=0.5),
        "cache": draw_cache(),
        "verification": draw_verification(),
    }
    for name, drawn in pictures.items():
        (folder / f"{name}.svg").write_text(drawn, encoding="utf-8")
        print(f"{name}.svg: {len(drawn) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
