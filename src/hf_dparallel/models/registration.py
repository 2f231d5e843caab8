# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Registration of LLaDA and Dream with the Auto classes of transformers, without importing those or torch.

The Auto classes import torch, which takes longer than all of transformers. So each part is registered when it can be
asked for: the names of the configurations when `AutoConfig` is imported, the tokenizer when `AutoTokenizer` is, and
the models when the first configuration of one is made. (Earlier would be too early: modules that our classes need
import the Auto classes themselves, and would be half imported.)
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


_CONFIGURATIONS = {"llada": "LLaDAConfig", "Dream": "DreamConfig"}


def register_configurations() -> None:
    """Makes `AutoConfig` know our `model_type`s as it knows its own: by names, looked up when they are needed.

    As with `AutoConfig.register(..., exist_ok=True)`, of several libraries that register a type the last wins.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    def register(model_type: str, config: type, exist_ok: bool = False) -> None:
        # A name in here is taken for one of transformers' own, which others may not replace.
        if model_type in _CONFIGURATIONS:
            CONFIG_MAPPING_NAMES.pop(model_type, None)
        type(CONFIG_MAPPING).register(CONFIG_MAPPING, model_type, config, exist_ok=exist_ok)

    CONFIG_MAPPING.register = register  # type: ignore[method-assign]
    for model_type, name in _CONFIGURATIONS.items():
        CONFIG_MAPPING._extra_content.pop(model_type, None)
        CONFIG_MAPPING_NAMES[model_type] = name
        CONFIG_MAPPING._modules[model_type] = sys.modules[__name__.partition(".")[0]]


def register_tokenizers() -> None:
    from transformers import AutoTokenizer

    from .dream.configuration_dream import DreamConfig
    from .dream.tokenization_dream import DreamTokenizer

    AutoTokenizer.register(DreamConfig, tokenizer_class=DreamTokenizer, exist_ok=True)


@functools.cache
def register_models() -> None:
    """Makes `AutoModelForMaskedLM.from_pretrained` (and the other Auto classes) know LLaDA and Dream.

    The published repositories name `AutoModel` (both) and `AutoModelForCausalLM` (LLaDA) in their `auto_map`, so
    scripts written for them find our classes there too.
    """
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

    from .dream.modeling_dream import DreamForMaskedDiffusion
    from .llada.modeling_llada import LLaDAForMaskedDiffusion

    for model_class in (LLaDAForMaskedDiffusion, DreamForMaskedDiffusion):
        for auto_class in (AutoModel, AutoModelForMaskedLM, AutoModelForCausalLM):
            auto_class.register(model_class.config_class, model_class, exist_ok=True)


class RegistersModels:
    """Base of our configurations. Every way to an instance, pickle and `copy` included, goes through `__new__`."""

    def __new__(cls, *args, **kwargs):
        register_models()
        return super().__new__(cls)


_AFTER_IMPORT: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": register_configurations,
    "transformers.models.auto.tokenization_auto": register_tokenizers,
}


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules of `_AFTER_IMPORT` as Python does, and calls their function when they have been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _AFTER_IMPORT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _AFTER_IMPORT[fullname]()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register_on_import() -> None:
    """Registers with the Auto classes that are imported, and with the others when they will be."""
    for name, register in _AFTER_IMPORT.items():
        if name in sys.modules:
            register()
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
