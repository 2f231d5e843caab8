# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The models that a server answers with: one set of weights, and its adapters by name."""

import dataclasses
from collections.abc import Collection, Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_cli.usage import UsageError

from ..demo import path_of
from ..generation.configuration import DiffusionGenerationConfig
from ..serving.engine import set_adapter
from ..serving.requests import ServedModel
from .loading import loading, resolve_settings


def read_names(adapters: Sequence[str]) -> dict[str, str]:
    """Returns adapters, each `NAME=ADAPTER` or `ADAPTER`, by the names that requests call them.

    Raises:
        UsageError: if two have the same name.
    """
    names: dict[str, str] = {}
    for text in adapters:
        name, is_named, path = text.partition("=")
        if name in names:
            raise UsageError(f"`adapter` has {name!r} twice. Give one of them another name: NAME=ADAPTER.")
        names[name] = path if is_named else text
    return names


class ServedModels:
    """Loads the adapters of a model, and can read them anew.

    Args:
        name (`str`): what requests call the model without adapters.
        model ([`~transformers.PreTrainedModel`]): the weights.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer.
        adapters (`dict[str, str]`): names on the Hub or folders, by the names that requests call them.
        generation_config ([`DiffusionGenerationConfig`]): settings over the recipe of each of them.

    Attributes:
        by_name (`dict[str, ServedModel]`): the adapters and after them the model itself.

    Raises:
        OSError: if there is no such adapter.
        UsageError: if two have the same name, or the settings contradict the recipe of one.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        adapters: dict[str, str],
        generation_config: DiffusionGenerationConfig,
    ):
        if name in adapters:
            raise UsageError(f"An adapter has the name of the model, {name!r}. Give it another: NAME=ADAPTER.")
        self.adapters = adapters
        # MODEL may be an adapter itself, and is then active.
        own = model.active_adapters()[0] if getattr(model, "_hf_peft_config_loaded", False) else None
        self._base = ServedModel(name, model, tokenizer, generation_config, own)
        self._num_loaded = 0
        # In PEFT's names, of the adapters that answer, and of those which they have replaced.
        self._loaded: list[str] = []
        self._replaced: list[str] = []
        self.by_name: dict[str, ServedModel] = {}
        self.load()

    def load(self, in_use: Collection[str | None] = ()) -> None:
        """Loads all adapters, also if they are loaded already.

        Args:
            in_use (`Collection`, *optional*): adapters, in PEFT's names, with which answers under way go on.
        """
        kept = [name for name in self._replaced if name in in_use]
        for name in set(self._replaced).difference(kept):
            self._base.model.delete_adapter(name)
        before, self._loaded = self._loaded, []
        try:
            served = [self._load(name, path) for name, path in self.adapters.items()]
            served.append(self._resolved(self._base))
        except Exception:
            # Of one with weights of another shape, a part is left in the model.
            left = [name for name in self._loaded if name in getattr(self._base.model, "peft_config", {})]
            self._replaced, self._loaded = kept + left, before
            if before:
                self._base.model.enable_adapters()  # in all layers, as it may have ended between two
            raise
        # Those before, too, for requests that are being read.
        self._replaced = kept + before
        self.by_name.update({each.name: each for each in served})

    def _load(self, name: str, path: str) -> ServedModel:
        # PEFT's names are parts of the names of modules, which have no dots.
        adapter, self._num_loaded = f"served_{self._num_loaded}", self._num_loaded + 1
        self._loaded.append(adapter)
        path = path_of(path)
        with loading("adapter", path):
            self._base.model.load_adapter(path, adapter)
        return self._resolved(dataclasses.replace(self._base, name=name, adapter=adapter, parent=self._base.name))

    def _resolved(self, served: ServedModel) -> ServedModel:
        """The same with all settings, while its own recipe is the active one."""
        set_adapter(served.model, served.adapter)
        config = resolve_settings(served.model, served.generation_config, served.tokenizer)
        return dataclasses.replace(served, generation_config=config)
