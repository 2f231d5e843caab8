# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The colours of passes: violet for the first, yellow for the last, ever lighter in between."""

# For pages. `--when` goes from 0 for the first pass to 1 for the last; `.ramp` is the whole scale, for a legend. Masks
# are filled as high as their `--confidence`.
CSS = """\
.by-pass { color: light-dark(#111111, #ffffff); background: light-dark(
  oklch(calc(0.76 + 0.19 * var(--when)) 0.1 calc(300 - 200 * var(--when))),
  oklch(calc(0.36 + 0.18 * var(--when)) 0.08 calc(300 - 200 * var(--when)))); }
.ramp { background: linear-gradient(to right in oklch decreasing hue,
  light-dark(oklch(0.76 0.1 300), oklch(0.36 0.08 300)), light-dark(oklch(0.95 0.1 100), oklch(0.54 0.08 100))); }
.mask { background: linear-gradient(to top, light-dark(#8a93a3, #7d8798) calc(var(--confidence, 0) * 100%),
  light-dark(#dfe3e9, #2f343d) 0); }
"""
# The colours of a light page, for terminals, whose background is not known.
RAMP = (
    *("#bba3e8", "#b0acf2", "#a4b5fa", "#97befe", "#8bc8fe", "#80d0fc", "#78d9f6", "#76e0ee"),
    *("#7be6e4", "#86ebd8", "#96efcb", "#aaf2bf", "#bff3b3", "#d5f3aa", "#eaf2a4", "#fef1a1"),
)


def pass_style(step: int, num_passes: int) -> str:
    """Returns rich's style for a token that pass `step` of `num_passes` committed, from 0 on; none for -1."""
    return "" if step < 0 else f"#111111 on {RAMP[round(step / max(num_passes - 1, 1) * (len(RAMP) - 1))]}"
