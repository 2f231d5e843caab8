# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters on the models: every weight must match the model, and the decoding recipe comes along."""

import contextlib
import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, WeightTransform
from transformers.utils.loading_report import LoadStateDictInfo
from transformers.utils.versions import require_version

from ..generation.compatibility import has_adapter, longest_sequence
from ..generation.configuration import recipe_of
from .adapter_files import AdapterFiles, are_names, config_problems, unfit_for_weights


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers.integrations import PeftAdapterMixin as _Mixed
    from transformers.modeling_utils import LoadStateDictConfig
else:
    # Every `PreTrainedModel` is one, and it must come after the mixin for `generate`.
    _Mixed = object

# Older PEFT fails later, and for other reasons.
require_version("peft>=0.21", "Upgrade PEFT with pip.")

_TWICE = re.compile(r"\.(modules_to_save|original_module)\.")
_LORA_A = re.compile(r"\.lora_(?:embedding_)?A\b")


class AdapterLoadingMixin(_Mixed):
    r"""
    PEFT adapters with their decoding recipes.

    The recipe beside an adapter (generation_config.json) holds while the adapter is active: [`resolve`] asks for it,
    before the recipe of the model, and `model.generation_config` stays as it is.
    """

    generation_config: GenerationConfig
    # By adapter; never written into, so that a copy of the model has its own.
    adapter_recipes: Mapping[str, GenerationConfig | None] = {}

    def load_adapter(
        self,
        peft_model_id: str | None = None,
        adapter_name: str | None = None,
        peft_config: "PeftConfig | None" = None,
        *,
        adapter_state_dict: Mapping[str, torch.Tensor] | None = None,
        is_trainable: bool = False,
        use_safetensors: bool | None = None,
        low_cpu_mem_usage: bool = True,
        hotswap: bool | Literal["auto"] = "auto",
        local_files_only: bool = False,
        adapter_kwargs: dict[str, Any] | None = None,
        load_config: "LoadStateDictConfig | None" = None,
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> LoadStateDictInfo:
        r"""
        Loads an adapter, with its recipe, and makes it the active one.

        Weights that are named as in the published files (an adapter that was trained with the published code) are
        translated, and a LoRA of LLaDA2's `query_key_value` becomes one for each of its three parts. With
        `hotswap=True` the adapter takes the place of a loaded one of that name. If it cannot be loaded, the model and
        its other adapters stay as they were.

        Args:
            peft_model_id (`str`, *optional*):
                The adapter: its name on the Hub, or its folder.
            adapter_name (`str`, *optional*, defaults to `"default"`):
                A name to call it by, in [`set_adapter`].
            peft_config ([`~peft.PeftConfig`], *optional*):
                Its configuration, by default the one beside its weights.
            adapter_state_dict (`dict[str, torch.Tensor]`, *optional*):
                Its weights, with `peft_config` and instead of `peft_model_id`.
            is_trainable (`bool`, *optional*, defaults to `False`):
                Whether to train it. If not, its weights are frozen.
            use_safetensors (`bool`, *optional*):
                `False` reads pickled weights, too.
            local_files_only (`bool`, *optional*, defaults to `False`):
                Whether to read the cache only.
            revision (`str`, *optional*):
                Branch, tag or commit of the repository.
            token (`str` or `bool`, *optional*):
                For a private repository. By default the token that is saved on this machine.
            hotswap, adapter_kwargs, load_config, low_cpu_mem_usage:
                As in [`~transformers.integrations.PeftAdapterMixin.load_adapter`]. Little memory is used in any case.

        Raises:
            ValueError: if the adapter has a weight too many or too few for the model, or a configuration that
                would change the model itself or take very long to apply.
            OSError: if there is no such adapter, or its weights are pickled (`use_safetensors=False` reads those).
        """
        name, recipe = adapter_name or "default", None
        check_not_repacked(self)
        if peft_model_id is not None:
            given = {"revision": revision, "token": token, "local_files_only": local_files_only}
            download = {**(load_config.download_kwargs if load_config else {}), **(adapter_kwargs or {})}
            files = AdapterFiles(peft_model_id, download | {key: value for key, value in given.items() if value})
            recipe = files.recipe(longest_sequence(self))
            if use_safetensors is None and load_config is not None:
                use_safetensors = load_config.use_safetensors
            peft_config = peft_config or files.config()
            adapter_state_dict = files.weights(allow_pickles=use_safetensors is False)
        if peft_config is None or adapter_state_dict is None:
            raise ValueError("Give `peft_model_id`, or both of `peft_config` and `adapter_state_dict`.")
        is_loaded = name in getattr(self, "peft_config", {})
        if hotswap == "auto":
            hotswap = getattr(self, "_hotswap_enabled", False) and is_loaded
        if hotswap != is_loaded:
            state = "already has" if is_loaded else "lacks"
            raise ValueError(f"The model {state} the adapter {name!r}. Leave this one out, or give an `adapter_name`.")
        config = copy.deepcopy(peft_config)
        config.inference_mode = not is_trainable
        # A complete checkpoint with its own adapter, such as the bundled student, is the base of what is saved.
        if str(peft_model_id) == self.name_or_path:
            config.base_model_name_or_path = self.name_or_path
        put_into(self, config, adapter_state_dict, name, str(peft_model_id or name))
        self.adapter_recipes = {**self.adapter_recipes, name: recipe}
        self.train(is_trainable and self.training)
        return LoadStateDictInfo(set(), set(), set(), [], {}, set())

    def state_dict(self, *args, **kwargs):
        """Returns torch's, but refuses 4-bit weights that ran on the CPU. Loading and saving call this."""
        check_not_repacked(self)
        return super().state_dict(*args, **kwargs)  # type: ignore[misc]

    def recipes(self) -> list[GenerationConfig | None]:
        """Returns the recipe of the active adapter (the first, if there are several), then the model's own."""
        if not has_adapter(self) or self._adapter_layers()[0].disable_adapters:
            return super().recipes()
        return [self.adapter_recipes.get(self.active_adapters()[0]), *super().recipes()]

    # The next seven call PEFT's public functions. Those of transformers ask for a release of PEFT that may not be
    # out (5.24 does), and overlook parts of an adapter: `enable_adapters` leaves its `modules_to_save` disabled.

    def active_adapters(self) -> list[str]:
        """Returns the names of the active adapters, even while they are disabled."""
        return self._adapter_layers()[0].active_adapters

    def set_adapter(self, adapter_name: list[str] | str) -> None:
        """Makes one or several adapters active."""
        from peft.functional import set_adapter

        self._check_names(adapter_name)
        is_disabled = self._adapter_layers()[0].disable_adapters
        set_adapter(self, adapter_name)
        if is_disabled:
            self.disable_adapters()

    def enable_adapters(self, enabled: bool = True) -> None:
        """Runs the model with its active adapters again."""
        for layer in self._adapter_layers():
            layer.enable_adapters(enabled)

    def disable_adapters(self) -> None:
        """Runs the model without its adapters, until [`enable_adapters`]."""
        self.enable_adapters(False)

    def add_adapter(self, adapter_config: "PeftConfig", adapter_name: str | None = None) -> None:
        """Adds a new adapter, to be trained, and makes it the active one."""
        from peft.functional import inject_adapter_in_model

        name = adapter_name or "default"
        if name in getattr(self, "peft_config", {}):
            raise ValueError(f"The model already has the adapter {name!r}. Give another `adapter_name`.")
        adapter_config.base_model_name_or_path = self.name_or_path
        inject_adapter_in_model(adapter_config, self, name)
        self._hf_peft_config_loaded = True
        self.set_adapter(name)

    def delete_adapter(self, adapter_names: list[str] | str) -> None:
        """Removes an adapter, or several, and their recipes."""
        from peft.functional import delete_adapter

        for name in self._check_names(adapter_names):
            delete_adapter(self, name, prefix=f"{self.peft_config.pop(name).peft_type.value.lower()}_")
            self.adapter_recipes = {other: it for other, it in self.adapter_recipes.items() if other != name}
        if not self.peft_config:
            del self.peft_config
            self._hf_peft_config_loaded = False

    def get_adapter_state_dict(self, adapter_name: str | None = None, state_dict: dict | None = None) -> dict:
        """Returns the weights of an adapter, by default of the active one."""
        from peft.functional import get_peft_model_state_dict

        (name,) = self._check_names(adapter_name or self.active_adapters()[0])
        return get_peft_model_state_dict(self, state_dict, name)

    def _adapter_layers(self) -> list[Any]:
        """Returns the modules that switch adapters: the layers that every adapter has, then its whole modules."""
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        if not has_adapter(self):
            raise ValueError("No adapter is loaded. Call `load_adapter` first.")
        kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper)
        return [module for kind in kinds for module in self.modules() if isinstance(module, kind)]

    def _check_names(self, names: list[str] | str) -> list[str]:
        names, loaded = [names] if isinstance(names, str) else names, list(getattr(self, "peft_config", {}))
        if not set(names) <= set(loaded):
            raise ValueError(f"`adapter_name` must be one of {loaded}, got {names}. Call `load_adapter` first.")
        return names

    def save_pretrained(self, save_directory: str | os.PathLike, *args, **kwargs) -> None:
        """Saves the model or, if it has adapters, the adapters and the active recipe."""
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if has_adapter(self) and kwargs.get("is_main_process", True):
            recipe_of(self).save_pretrained(save_directory)

    def merge_and_unload(self):
        r"""
        Adds the active adapter to the weights of the model and removes all adapters.

        The adapter's recipe becomes part of the model's.

        [`~transformers.PreTrainedModel.save_pretrained`] then writes a complete checkpoint, under the published
        weight names.

        Returns:
            The same model.

        Raises:
            ValueError: if no adapter is loaded.
        """
        from peft.tuners.tuners_utils import BaseTunerLayer

        how: dict[str, Any] = {"safe_merge": True, "adapter_names": self.active_adapters()}
        self.generation_config = recipe_of(self)
        replaced: list[str] = []
        for name, module in list(self.named_modules()):
            if name.startswith(tuple(replaced)):
                continue
            if hasattr(module, "unload_and_optionally_merge_module"):
                base = module.unload_and_optionally_merge_module(merge=True, **how)
            elif isinstance(module, BaseTunerLayer):
                module.merge(**how)
                base = module.get_base_layer()
            else:
                continue
            self.set_submodule(name, base)
            replaced.append(f"{name}.")
        del self.peft_config
        self.adapter_recipes = {}
        self._hf_peft_config_loaded = False
        return self


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


def put_into(
    model: PreTrainedModel, config: "PeftConfig", weights: Mapping[str, torch.Tensor], name: str, source: str
) -> None:
    """Adds an adapter to a model, or replaces the weights of the one of that name; `source` is for errors."""
    # PEFT's names. For a resized vocabulary, PEFT writes the embeddings twice more.
    weights = {
        key.removeprefix("base_model.model."): weight for key, weight in weights.items() if not _TWICE.search(key)
    }
    replaced = getattr(model, "peft_config", {}).get(name)
    try:
        problems = [*config_problems(config), *unfit_for_weights(model, config, weights)]
        for setting in ("peft_type", "lora_alpha", "alpha_pattern", "use_rslora", "use_dora") if replaced else ():
            if getattr(config, setting, None) != getattr(replaced, setting, None):
                problems.append(f"`hotswap=True` replaces weights only, and `{setting}` is another; load it beside")
        if not problems:
            config, weights = translated(model, config, weights)
            with unchanged_on_error(model):
                _inject(model, config, weights, name, is_new=replaced is None)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"The adapter {source!r} does not fit {type(model).__name__}: {' '.join(str(error).split())[:500]}. Was "
            "it trained on another architecture or size? In the names of this model, `target_modules` must be the "
            "modules that its weights are for."
        ) from error
    if problems:
        raise ValueError(f"The adapter_config.json of {source!r} is refused: {'; '.join(problems)}.")


def _inject(model: PreTrainedModel, config: "PeftConfig", weights: dict[str, torch.Tensor], name: str, is_new: bool):
    from peft import inject_adapter_in_model, set_peft_model_state_dict
    from peft.utils.other import AuxiliaryTrainingWrapper

    if is_new:
        # On no device at first: no memory goes to sizes that the weights do not have.
        inject_adapter_in_model(config, model, name, low_cpu_mem_usage=True)
        model._hf_peft_config_loaded = True
    result = set_peft_model_state_dict(model, weights, name, low_cpu_mem_usage=True)
    for module in model.modules():
        if isinstance(module, AuxiliaryTrainingWrapper):
            # To the device and the precision of what it wraps, as PEFT does with layers of its own.
            module.to(next(module.parameters()))
    places = {path: weight for path, weight in model.named_parameters() if name in path.split(".")}
    for weight in places.values():
        weight.requires_grad = weight.requires_grad and not config.inference_mode
    missing = places.keys() & result.missing_keys
    parts = {
        "have no place in the model": result.unexpected_keys,
        "are wanted by its configuration but missing": missing,
        # Where the model is offloaded to a disk, they cannot be brought there.
        "belong to offloaded layers; load the adapter with `from_pretrained(adapter)` instead": [
            path for path, weight in places.items() if weight.is_meta and path not in missing
        ],
    }
    problems = " and ".join(f"{len(k)} weights {what} (such as {min(k)!r})" for what, k in parts.items() if k)
    if problems:
        raise ValueError(problems)


@contextlib.contextmanager
def unchanged_on_error(model: nn.Module) -> Iterator[None]:
    """Restores all modules of a model after an error. (PEFT cannot undo its changes.)"""
    held = [each for module in model.modules() for each in (vars(module), *vars(module).values())]
    contents = [(each, dict(each)) for each in held if isinstance(each, dict)]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    except BaseException:
        for each, content in contents:
            each.clear()
            each.update(content)
        for parameter, requires_grad in trained:
            parameter.requires_grad = requires_grad
        raise


def translated(
    model: PreTrainedModel, config: "PeftConfig", weights: Mapping[str, torch.Tensor]
) -> tuple["PeftConfig", dict[str, torch.Tensor]]:
    """Returns the configuration and the weights of an adapter with the names of the modules of `model`.

    Names differ where an adapter was trained with the published code of LLaDA or LLaDA2. The configuration then names
    the modules that have weights and no others: PEFT is content if any name matches, so the lists of published
    adapters contain names that matched nothing where they were trained, but would match here. Names also replace
    regular expressions, which may take forever.
    """
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING
    from peft.utils.other import get_pattern_key

    marker = "." + PEFT_TYPE_TO_PREFIX_MAPPING.get(config.peft_type, "lora_")
    rules = get_model_conversion_mapping(model)
    own_weights = {name: weight for name, weight in weights.items() if marker not in name}
    published_of: dict[str, str] = {}
    for name in (name for name in weights if marker in name):
        published, _, rest = name.partition(marker)
        modules = _own_modules(published, rules, may_be_cut=config.peft_type == "LORA")
        published_of |= dict.fromkeys(modules, published)
        pieces = [weights[name]] if len(modules) == 1 else _cut(model, name, weights[name], modules)
        own_weights |= {f"{module}{marker}{rest}": piece for module, piece in zip(modules, pieces, strict=True)}
    chosen = [getattr(config, setting, None) for setting in ("target_modules", "exclude_modules", "layers_pattern")]
    if any(module != published for module, published in published_of.items()) or not all(map(are_names, chosen)):
        config = copy.deepcopy(config)
        config.target_modules = set(published_of)
        config.layers_to_transform = config.layers_pattern = config.exclude_modules = None
        for setting in ("rank_pattern", "alpha_pattern"):
            pattern = getattr(config, setting, None) or {}
            keys = {module: get_pattern_key(pattern, published) for module, published in published_of.items()}
            setattr(config, setting, {module: pattern[key] for module, key in keys.items() if key in pattern})
    return config, own_weights


def _own_modules(published: str, rules: Iterable[WeightTransform], may_be_cut: bool) -> list[str]:
    """Returns the model's names, maybe several, for one module name in the published files."""
    # With a dot at the end, as in the name of a weight.
    module = f"{published}."
    for rule in rules:
        if isinstance(rule, WeightRenaming):
            module, _ = rule.rename_source_key(module)
    parent, _, child = module[:-1].rpartition(".")
    for rule in rules:
        is_cut = isinstance(rule, WeightConverter) and len(rule.target_patterns) > 1
        if is_cut and may_be_cut and rule.source_patterns == [f"{child}.weight"]:
            return [f"{parent}.{target.removesuffix('.weight')}" for target in rule.target_patterns]
    return [module[:-1]]


def _cut(model: PreTrainedModel, name: str, weight: torch.Tensor, modules: list[str]) -> list[torch.Tensor]:
    """Splits a LoRA's weight between modules with the same input, each of which makes some output rows."""
    if _LORA_A.search(name):
        # Copies, because what shares memory cannot be saved.
        return [weight.clone() for _ in modules]
    sizes = [model.get_submodule(module).out_features for module in modules]
    if len(weight) != sum(sizes):  # type: ignore[arg-type]
        raise ValueError(f"{name!r} has {len(weight)} rows, and the modules that it is for have {sizes} outputs")
    return [piece.clone() for piece in weight.split(sizes)]
