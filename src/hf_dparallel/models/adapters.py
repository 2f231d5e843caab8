# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters on LLaDA and Dream: every weight finds its place or it is an error, and the decoding recipe comes along."""

import copy
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers.integrations import PeftAdapterMixin

from ..generation.configuration import DiffusionGenerationConfig
from .adapter_files import AdapterFiles, adapted_modules, check_ranks, translate_config


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers.modeling_utils import LoadStateDictConfig

_DEFAULT_NAME = "default"


class AdapterLoadingMixin(PeftAdapterMixin):
    r"""
    PEFT adapters with their decoding recipes.

    The recipe beside an adapter (generation_config.json) holds while the adapter is active: loading, setting and
    disabling adapters changes `model.generation_config`. What the recipe leaves open is as it was before the first
    adapter.
    """

    _own_recipe: DiffusionGenerationConfig | None = None
    _recipes: dict[str, DiffusionGenerationConfig | None]

    def load_adapter(
        self,
        peft_model_id: str | None = None,
        adapter_name: str | None = None,
        peft_config: "PeftConfig | None" = None,
        adapter_state_dict: dict[str, torch.Tensor] | None = None,
        low_cpu_mem_usage: bool = False,
        is_trainable: bool = False,
        hotswap: bool | Literal["auto"] = "auto",
        local_files_only: bool = False,
        adapter_kwargs: dict[str, Any] | None = None,
        load_config: "LoadStateDictConfig | None" = None,
        revision: str | None = None,
        token: str | bool | None = None,
        **kwargs,
    ):
        r"""
        Loads an adapter, makes it the active one, and applies its recipe.

        Weights that are named as in the published LLaDA files (an adapter that was trained with the published code)
        are translated. With `hotswap=True` the adapter takes the place of a loaded one of that name.

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
            adapter_state_dict, low_cpu_mem_usage, is_trainable, hotswap, adapter_kwargs, load_config, kwargs:
                As in [`~transformers.integrations.PeftAdapterMixin.load_adapter`].

        Raises:
            ValueError: if a weight of the adapter has no place in the model, or a place no weight.
            OSError: if there is no such adapter, or its weights are pickled (`use_safetensors=False` reads those).
        """
        name = adapter_name or _DEFAULT_NAME
        kwargs |= {
            "adapter_state_dict": adapter_state_dict,
            "low_cpu_mem_usage": low_cpu_mem_usage,
            "is_trainable": is_trainable,
            "hotswap": hotswap,
            "load_config": load_config,
        }
        if peft_model_id is None:
            info = super().load_adapter(None, name, peft_config, adapter_kwargs=adapter_kwargs, **kwargs)
            self._keep_recipe(name, None)
            return info
        given = {"revision": revision, "token": token, "local_files_only": local_files_only or None}
        download = {**(load_config.download_kwargs if load_config else {}), **(adapter_kwargs or {})}
        files = AdapterFiles(peft_model_id, download | {key: value for key, value in given.items() if value})
        use_safetensors = kwargs.get("use_safetensors", load_config.use_safetensors if load_config else None)
        is_loaded = name in self._adapter_names()
        swaps = is_loaded and (getattr(self, "_hotswap_enabled", False) if hotswap == "auto" else hotswap)
        if use_safetensors is not False:
            peft_config = self._checked_config(peft_config or files.config(), files, replaced=name if swaps else None)
        recipe = files.recipe(self.config.max_position_embeddings)
        conversions = getattr(self, "_weight_conversions", None)
        info = super().load_adapter(peft_model_id, name, peft_config, download_kwargs=files.download, **kwargs)
        # transformers would write the merged model under the names that it has just read the adapter with.
        self._weight_conversions = conversions
        self._check_fit(info, name, files.name, keep=swaps)
        self._keep_recipe(name, recipe)
        return info

    def set_adapter(self, adapter_name: list[str] | str) -> None:
        """Makes a loaded adapter the active one, and applies its recipe (of several, that of the first)."""
        super().set_adapter(adapter_name)
        self._follow_active_adapter()

    def enable_adapters(self) -> None:
        """Undoes [`disable_adapters`]."""
        super().enable_adapters()
        self._follow_active_adapter()

    def disable_adapters(self) -> None:
        """Runs the model without its adapters, with its own recipe."""
        super().disable_adapters()
        self._follow_active_adapter()

    def delete_adapter(self, adapter_names: list[str] | str) -> None:
        """Removes adapters; when there is none left, the model has its own recipe again."""
        super().delete_adapter(adapter_names)
        if self._own_recipe is not None:
            # Another adapter may get the name.
            self._recipes = {name: recipe for name, recipe in self._recipes.items() if name in self._adapter_names()}
        self._follow_active_adapter()

    def merge_and_unload(self):
        r"""
        Adds the active adapter to the weights of the model and removes all adapters; the recipe stays.

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
        self._own_recipe = None
        return self

    def _checked_config(self, config: "PeftConfig", files: AdapterFiles, replaced: str | None) -> "PeftConfig":
        """The configuration of an adapter, in the model's names; checked against the adapter that it is to replace."""
        from peft.utils.hotswap import check_hotswap_configs_compatible

        config = copy.deepcopy(config)
        weight_shapes = files.weight_shapes()
        check_ranks(config, weight_shapes)
        modules = adapted_modules(self, config, weight_shapes)
        translate_config(config, modules)
        if replaced is not None:
            loaded = self.peft_config[replaced]
            # What is not replaced would go on with the settings, and the weights, of the adapter before.
            check_hotswap_configs_compatible(loaded, config)
            differing = [name for name in ("r", "lora_alpha") if getattr(loaded, name) != getattr(config, name)]
            if set(modules.values()) != set(
                adapted_modules(self, config, self._adapter_parameters(replaced)).values()
            ):
                differing.append("target_modules")
            if differing:
                raise ValueError(
                    f"The adapter {files.name!r} cannot replace {replaced!r} in place: they differ in "
                    f"{', '.join(differing)}. Load it under another `adapter_name` and call `set_adapter`."
                )
        return config

    def _adapter_parameters(self, name: str) -> list[str]:
        return [parameter for parameter, _ in self.named_parameters() if name in parameter.split(".")]

    def _check_fit(self, info: Any, name: str, source: str, keep: bool) -> None:
        # Those of other adapters are reported as missing, too.
        missing = sorted(set(info.missing_keys) & set(self._adapter_parameters(name)))
        unexpected = sorted(info.unexpected_keys)
        if not missing and not unexpected:
            return
        if not keep:
            self.delete_adapter(name)
        parts = [(unexpected, "have no place in the model"), (missing, "are wanted by its configuration but missing")]
        problems = " and ".join(f"{len(keys)} weights {what} (such as {keys[0]!r})" for keys, what in parts if keys)
        raise ValueError(
            f"The adapter {source!r} does not fit {type(self).__name__}: {problems}. Was it trained on another "
            "architecture or size? In the names of this model, its `target_modules` must be the modules that its "
            "weights are for."
        )

    def _adapter_names(self) -> list[str]:
        return list(getattr(self, "peft_config", {}))

    def _keep_recipe(self, name: str, recipe: DiffusionGenerationConfig | None) -> None:
        if self._own_recipe is None:
            self._own_recipe = DiffusionGenerationConfig.from_generation_config(self.generation_config)
            self._recipes = {}
        self._recipes[name] = recipe
        self._follow_active_adapter()

    def _follow_active_adapter(self) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        if self._own_recipe is None:
            return
        # A layer that is disabled stays so when another adapter is set.
        layers = [module for module in self.modules() if isinstance(module, BaseTunerLayer)]
        is_enabled = any(not layer.disable_adapters for layer in layers) and self._adapter_names()
        active = self.active_adapters() if is_enabled else []
        recipe = self._recipes.get(active[0]) if active else None
        self.generation_config = self._own_recipe.updated(**(recipe.settings() if recipe else {}))
