# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters on the models: every weight finds its place or it is an error, and the decoding recipe comes along."""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from torch import nn
from transformers import GenerationConfig
from transformers.integrations import PeftAdapterMixin

from ..generation.configuration import recipe_of
from .adapter_files import AdapterFiles


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers.modeling_utils import LoadStateDictConfig

_DEFAULT_NAME = "default"


class AdapterLoadingMixin(PeftAdapterMixin):
    r"""
    PEFT adapters with their decoding recipes.

    The recipe beside an adapter (generation_config.json) holds while the adapter is active: [`resolve`] asks for it,
    before that of the model, and `model.generation_config` stays as it is.
    """

    generation_config: GenerationConfig

    def load_adapter(
        self,
        peft_model_id: str | None = None,
        adapter_name: str | None = None,
        peft_config: "PeftConfig | None" = None,
        *,
        hotswap: bool | Literal["auto"] = "auto",
        local_files_only: bool = False,
        adapter_kwargs: dict[str, Any] | None = None,
        load_config: "LoadStateDictConfig | None" = None,
        revision: str | None = None,
        token: str | bool | None = None,
        **kwargs,
    ):
        r"""
        Loads an adapter, with its recipe, and makes it the active one.

        Weights that are named as in the published files (an adapter that was trained with the published code) are
        translated, and a LoRA of LLaDA2's `query_key_value` becomes one for each of its three parts. With
        `hotswap=True` the adapter takes the place of a loaded one of that name.

        Args:
            peft_model_id (`str`, *optional*):
                The adapter: its name on the Hub, or its folder.
            adapter_name (`str`, *optional*, defaults to `"default"`):
                A name to call it by, in [`set_adapter`].
            peft_config ([`~peft.PeftConfig`], *optional*):
                Its configuration, by default that beside its weights.
            local_files_only (`bool`, *optional*, defaults to `False`):
                Whether to read the cache only.
            revision (`str`, *optional*):
                Branch, tag or commit of the repository.
            token (`str` or `bool`, *optional*):
                For a private repository. By default the token that is saved on this machine.
            hotswap, adapter_kwargs, load_config, kwargs:
                As in [`~transformers.integrations.PeftAdapterMixin.load_adapter`].

        Raises:
            ValueError: if a weight of the adapter has no place in the model, or a place no weight.
            OSError: if there is no such adapter, or its weights are pickled (`use_safetensors=False` reads those).
        """
        name = adapter_name or _DEFAULT_NAME
        check_not_repacked(self)
        kwargs |= {"hotswap": hotswap, "load_config": load_config}
        if peft_model_id is None:
            info = super().load_adapter(None, name, peft_config, adapter_kwargs=adapter_kwargs, **kwargs)
            self.peft_config[name]._recipe = None
            return info
        given = {"revision": revision, "token": token, "local_files_only": local_files_only or None}
        download = {**(load_config.download_kwargs if load_config else {}), **(adapter_kwargs or {})}
        files = AdapterFiles(peft_model_id, download | {key: value for key, value in given.items() if value})
        recipe = files.recipe(self.config.max_position_embeddings)
        loaded = getattr(self, "peft_config", {}).get(name)
        source: dict[str, Any] = {"peft_model_id": peft_model_id, "download_kwargs": files.download}
        if kwargs.get("use_safetensors", load_config.use_safetensors if load_config else None) is not False:
            peft_config = files.config_for(self, peft_config)
            weights = files.split_weights(self, peft_config)
            if weights is not None:
                source = {"adapter_state_dict": weights}
            if loaded is not None and hotswap is True:
                _check_replacement(loaded, peft_config)
        conversions = getattr(self, "_weight_conversions", None)
        with _without_load_report():
            info = super().load_adapter(adapter_name=name, peft_config=peft_config, **source, **kwargs)
        # transformers would write the merged model under the names that it has just read the adapter with.
        self._weight_conversions = conversions
        self._check_fit(info, name, files.name, keep=loaded is not None)
        # Kept where PEFT keeps what belongs to an adapter, and deletes it with the adapter.
        self.peft_config[name]._recipe = recipe
        return info

    def state_dict(self, *args, **kwargs):
        """As in torch. `PeftModel.from_pretrained` and all that saves call it, and so does loading.

        Raises:
            ValueError: for 4-bit weights that have run on the CPU.
        """
        check_not_repacked(self)
        return super().state_dict(*args, **kwargs)  # type: ignore[misc]

    def recipes(self) -> list[GenerationConfig | None]:
        """Puts the recipe of the active adapter (of several, the first one) before that of the model."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        if not getattr(self, "_hf_peft_config_loaded", False):
            return super().recipes()
        layers = (module for module in self.modules() if isinstance(module, BaseTunerLayer))
        if all(layer.disable_adapters for layer in layers):
            return super().recipes()
        return [getattr(self.peft_config[self.active_adapters()[0]], "_recipe", None), *super().recipes()]

    def save_pretrained(self, save_directory: str | os.PathLike, *args, **kwargs) -> None:
        """Saves the model; of one with adapters, the adapters, and beside them the recipe that is active."""
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if getattr(self, "_hf_peft_config_loaded", False) and kwargs.get("is_main_process", True):
            recipe_of(self).save_pretrained(save_directory)

    def merge_and_unload(self):
        r"""
        Adds the active adapter to the weights of the model and removes all adapters.

        The adapter's recipe becomes part of the model's.

        [`~transformers.PreTrainedModel.save_pretrained`] then writes a complete checkpoint, under the weight names of
        the published ones.

        Returns:
            The same model.

        Raises:
            ValueError: if no adapter is loaded.
        """
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils import ModulesToSaveWrapper

        if not getattr(self, "_hf_peft_config_loaded", False):
            raise ValueError("No adapter is loaded, so there is nothing to merge. Call `load_adapter` first.")
        active = self.active_adapters()
        self.generation_config = recipe_of(self)
        wrapped = [
            (name, module)
            for name, module in self.named_modules()
            if isinstance(module, BaseTunerLayer | ModulesToSaveWrapper)
        ]
        for name, module in wrapped:
            if isinstance(module, BaseTunerLayer):
                module.merge(safe_merge=True, adapter_names=active)
                merged = module.get_base_layer()
            else:
                merged = module.modules_to_save[active[0]]
            parent, _, child = name.rpartition(".")
            setattr(self.get_submodule(parent), child, merged)
        del self.peft_config
        self._hf_peft_config_loaded = False
        return self

    def _check_fit(self, info: Any, name: str, source: str, keep: bool) -> None:
        parameters = {path: weight for path, weight in self.named_parameters() if name in path.split(".")}
        # Weights of other adapters are reported as missing, too.
        missing = sorted(set(info.missing_keys) & set(parameters))
        # Where the model is offloaded to a disk, they cannot be brought there.
        offloaded = sorted(path for path, weight in parameters.items() if weight.is_meta)
        unexpected = sorted(info.unexpected_keys)
        parts = [
            (unexpected, "have no place in the model"),
            (missing, "are wanted by its configuration but missing"),
            (offloaded, "belong to offloaded layers; load the adapter with `from_pretrained(adapter)` instead"),
        ]
        problems = " and ".join(f"{len(keys)} weights {what} (such as {keys[0]!r})" for keys, what in parts if keys)
        if not problems:
            return
        if not keep:
            self.delete_adapter(name)
        raise ValueError(
            f"The adapter {source!r} does not fit {type(self).__name__}: {problems}. Was it trained on another "
            "architecture or size? In the names of this model, its `target_modules` must be the modules that its "
            "weights are for. (Adapters of DoRA and AdaLoRA are loaded by `PeftModel.from_pretrained` only.)"
        )


def check_not_repacked(model: nn.Module) -> None:
    """Raises a `ValueError` for 4-bit weights that bitsandbytes has packed anew when it ran them on the CPU.

    Its `state_dict` packs them back in place, with the scales of their blocks in another order.
    """
    for module in model.modules():
        quant_state = getattr(getattr(module, "weight", None), "quant_state", None)
        if getattr(quant_state, "packing_format_for_cpu", False):
            raise ValueError(
                "The 4-bit weights of the model have been repacked for a CPU kernel, because the model was run on the "
                "CPU: they have no gradients, and give wrong results after an adapter was loaded or they were saved. "
                "Load the model anew, and the adapter before it is run; or use a GPU."
            )


def _check_replacement(loaded: "PeftConfig", config: "PeftConfig") -> None:
    """Checks that an adapter can replace a loaded one in place, where its settings stay."""
    from peft.utils.hotswap import check_hotswap_configs_compatible

    check_hotswap_configs_compatible(loaded, config)
    differing = [name for name in ("r", "lora_alpha") if getattr(loaded, name) != getattr(config, name)]
    if differing:
        raise ValueError(
            f"The adapter cannot replace a loaded one in place: they differ in {', '.join(differing)}. Load it under "
            "another `adapter_name` and call `set_adapter`."
        )


@contextlib.contextmanager
def _without_load_report() -> Iterator[None]:
    """Silences the report of transformers, in which the weights of model and other adapters count as missing."""
    peft_logger = logging.getLogger("transformers.integrations.peft")
    level = peft_logger.level
    peft_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        peft_logger.setLevel(level)
