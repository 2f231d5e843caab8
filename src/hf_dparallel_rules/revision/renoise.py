# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of renoising."""

from ..settings import add_setting


# fmt: off
add_setting("max_denoising_steps", "revision", int, minimum=1, is_swept=True,
    model={"has_random_noise": "is for models whose noise is random tokens, but {model} has a mask token"},
    help="Renoising, for models whose noise is random tokens: at most this many passes over a canvas. Each decides "
    "all tokens again; those that the commit rule does not accept become random tokens.")
add_setting("t_max", "revision", float, default=0.8, above_minimum=True, is_swept=True,
    help="With `max_denoising_steps`: the temperature of the first pass. It falls evenly from pass to pass.")
add_setting("t_min", "revision", float, default=0.4, is_swept=True,
    help="With `max_denoising_steps`: the temperature that the last passes come close to.")
add_setting("stop_entropy", "revision", float, default=0.005, noun="a number of nats", is_swept=True,
    help="With `max_denoising_steps`: a canvas is decided before the last pass if the mean entropy of its tokens is "
    "below this, and its likeliest tokens stay the same.")
add_setting("stability_threshold", "revision", int, default=1, is_swept=True,
    help="With `max_denoising_steps`: for how many passes the likeliest tokens must have stayed the same.")
# fmt: on
