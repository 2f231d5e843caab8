# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Models of one layer, and an engine on a simulated device."""

from hf_dparallel.serving.engine import Engine

from ..helpers import make_dream, make_llada, make_sdar
from ..simulated_device import SimulatedDevices


def small_llada():
    return make_llada(n_layers=1)


def small_dream():
    return make_dream(num_hidden_layers=1)


def small_sdar():
    return make_sdar(num_hidden_layers=1)


class SimulatedEngine(Engine):
    # A context is of a thread.
    def _run(self):
        with SimulatedDevices() as devices:
            devices.move(self.model)
            super()._run()

    def _enter(self, prompt):
        prompt.input_ids = prompt.input_ids.to("cuda")
        super()._enter(prompt)
