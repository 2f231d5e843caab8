# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Adapters on the models: loaded by PEFT with a recipe, published names, and an error for weights that do not fit."""

import copy
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from transformers import GenerationConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, WeightTransform
from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_SAFE_WEIGHTS_NAME,
    GENERATION_CONFIG_NAME,
    cached_file,
    logging,
)
from transformers.utils.hub import extract_commit_hash
from transformers.utils.loading_report import LoadStateDictInfo

from hf_dparallel_rules.settings import SETTINGS

from ..exact.gate import acts_on_masks
from ..generation.adapters import has_adapter
from ..generation.configuration import DiffusionGenerationConfig, recipe_of
from ..reports import write_json


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers.integrations import PeftAdapterMixin as _Mixed
    from transformers.modeling_utils import LoadStateDictConfig
else:
    # Every `PreTrainedModel` is one, and it must come after the mixin for `generate`.
    _Mixed = object

logger = logging.get_logger(__name__)

SUMMARY_NAME = "training_summary.json"
_TWICE = re.compile(r"\.(modules_to_save|original_module)\.")
_WRAPPED = re.compile(r"\.(base_layer|original_module)(?=\.)")
# `init_lora_weights` values that do not modify the base weights.
_HARMLESS_STARTS = (True, False, "gaussian", "eva", "orthogonal", "mica")


class AdapterLoadingMixin(_Mixed):
    r"""
    PEFT adapters with their decoding recipes.

    The recipe beside an adapter (generation_config.json) holds while the adapter is active: [`resolve`] asks for it,
    before the recipe of the model, and `model.generation_config` stays as it is.
    """

    generation_config: GenerationConfig
    name_or_path: str
    # By adapter; never written into, so that a copy of the model has its own.
    adapter_recipes: Mapping[str, GenerationConfig | None] = {}
    _merge_rounded = False

    def load_adapter(
        self,
        peft_model_id: str | None = None,
        adapter_name: str | None = None,
        peft_config: "PeftConfig | None" = None,
        adapter_state_dict: Mapping[str, torch.Tensor] | None = None,
        *,
        is_trainable: bool = False,
        local_files_only: bool = False,
        adapter_kwargs: dict[str, Any] | None = None,
        load_config: "LoadStateDictConfig | None" = None,
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> LoadStateDictInfo:
        r"""
        Loads an adapter by PEFT, with its recipe, and makes it the active one.

        Weights that are named as in the published files (an adapter that was trained with the published code) are
        translated, and a LoRA of LLaDA2's `query_key_value` becomes one for each of its three parts.

        Args:
            peft_model_id (`str`, *optional*):
                The adapter: its name on the Hub, or its folder. Only safetensors are read.
            adapter_name (`str`, *optional*, defaults to `"default"`):
                A name to call it by, in [`set_adapter`].
            peft_config ([`~peft.PeftConfig`], *optional*):
                Its configuration, by default the one beside its weights.
            adapter_state_dict (`dict[str, torch.Tensor]`, *optional*):
                Its weights, with `peft_config` and instead of `peft_model_id`.
            is_trainable (`bool`, *optional*, defaults to `False`):
                Whether to train it. If not, its weights are frozen.
            revision, token, local_files_only:
                As in `from_pretrained`.
            adapter_kwargs, load_config:
                As in [`~transformers.integrations.PeftAdapterMixin.load_adapter`].

        Raises:
            ValueError: if the adapter has a weight too many or too few for the model. The model is then to be loaded
                anew.
            OSError: if there is no such adapter, or it has no safetensors.
        """
        name = adapter_name or "default"
        recipe = None
        if peft_model_id is not None:
            download = dict(load_config.download_kwargs) if load_config else {}
            download |= adapter_kwargs or {}
            given = {"revision": revision, "token": token, "local_files_only": local_files_only}
            download |= {key: value for key, value in given.items() if value}

            config, adapter_state_dict, recipe = _read(str(peft_model_id), download)
            peft_config = peft_config or config
            _load_as_trained(self, read_summary(str(peft_model_id), download), str(peft_model_id))
        if peft_config is None or adapter_state_dict is None:
            raise ValueError("Give `peft_model_id`, or both of `peft_config` and `adapter_state_dict`.")

        self._check_name(name)
        check_start(peft_config)
        self.unmerge_adapter()
        peft_config, adapter_state_dict = translated(self, peft_config, adapter_state_dict)
        # A complete checkpoint with its own adapter, such as the bundled student, is the base of what is saved.
        if str(peft_model_id) == self.name_or_path:
            peft_config.base_model_name_or_path = self.name_or_path
        peft_config.inference_mode = not is_trainable

        self._inject(peft_config, name)
        self._fill(name, adapter_state_dict, str(peft_model_id or name))
        self.set_adapter(name)
        for weight in self._weights_of(name).values():
            weight.requires_grad = is_trainable
        self.train(is_trainable and self.training)
        self.adapter_recipes = {**self.adapter_recipes, name: recipe}
        return LoadStateDictInfo(set(), set(), set(), [], {}, set())

    def _check_name(self, name: str) -> None:
        if name in getattr(self, "peft_config", {}):
            raise ValueError(f"The model already has the adapter {name!r}. Give another `adapter_name`.")

    def _inject(self, config: "PeftConfig", name: str) -> None:
        """Adds the layers of an adapter, by PEFT."""
        from peft.functional import inject_adapter_in_model

        inject_adapter_in_model(config, self, name)
        # What `PreTrainedModel.save_pretrained` and the Trainer read.
        self._hf_peft_config_loaded = True

    def _fill(self, name: str, state_dict: Mapping[str, torch.Tensor], source: str) -> None:
        """Sets the weights of an adapter, and raises a `ValueError` if some are missing or left over."""
        from peft.functional import set_peft_model_state_dict

        misfit = f"The adapter {source!r} does not fit {type(self).__name__}"
        try:
            found = set_peft_model_state_dict(self, state_dict, name)
        except RuntimeError as error:
            remedy = "If its vocabulary was resized, call `model.resize_token_embeddings` first."
            raise ValueError(f"{misfit}: {' '.join(str(error).split())}. {remedy}") from error

        missing = self._weights_of(name).keys() & set(found.missing_keys)
        problems = []
        for keys, what in ((missing, "few"), (found.unexpected_keys, "many")):
            if keys:
                problems.append(f"{len(keys)} weights too {what} (such as {min(keys)!r})")
        if problems:
            raise ValueError(
                f"{misfit}: {' and '.join(problems)}. Was it trained on another architecture? Load the model anew."
            )

    def _weights_of(self, name: str) -> dict[str, torch.nn.Parameter]:
        return {path: weight for path, weight in self.named_parameters() if name in path.split(".")}

    def recipes(self) -> list[GenerationConfig | None]:
        """Returns the recipe of the active adapter (the first, if there are several), then the model's own."""
        if not has_adapter(self) or self._adapter_layers()[0].disable_adapters:
            return super().recipes()
        return [*map(self.adapter_recipes.get, self.active_adapters()[:1]), *super().recipes()]

    # The next seven call PEFT. Those of transformers ask for a release of it that may not be out (5.24 for 0.22), and
    # `enable_adapters` leaves `modules_to_save` disabled.

    def add_adapter(self, adapter_config: "PeftConfig", adapter_name: str | None = None) -> None:
        """Adds a new adapter to train, and makes it the active one."""
        from peft import PeftConfig

        if not isinstance(adapter_config, PeftConfig):
            raise TypeError(f"`adapter_config` must be a `PeftConfig`, got {type(adapter_config).__name__}.")

        name = adapter_name or "default"
        self._check_name(name)
        self.unmerge_adapter()
        adapter_config.base_model_name_or_path = self.name_or_path
        self._inject(adapter_config, name)
        self.set_adapter(name)

    def active_adapters(self) -> list[str]:
        """Returns the names of the active adapters, even while they are disabled."""
        # Modules that some adapters save whole, and trained tokens, name theirs only.
        return max((layer.active_adapters for layer in self._adapter_layers()), key=len)

    def set_adapter(self, adapter_name: list[str] | str) -> None:
        """Makes one or several adapters active. While they are disabled, they stay so."""
        from peft.functional import set_adapter
        from peft.tuners.trainable_tokens import TrainableTokensLayer

        names = [adapter_name] if isinstance(adapter_name, str) else adapter_name
        layers = self._adapter_layers()
        if not set(names) <= set(self.peft_config):
            raise ValueError(f"`adapter_name` must be one of {list(self.peft_config)}, got {names}.")

        if names == self.active_adapters() and self._merged_layers():
            return
        self.unmerge_adapter()
        is_disabled = any(layer.disable_adapters for layer in layers)
        set_adapter(self, adapter_name)
        for layer in layers:
            if isinstance(layer, TrainableTokensLayer):
                # PEFT also gives it adapters that train no token, and fails in the next pass.
                layer.set_adapter([name for name in names if name in layer.trainable_tokens_delta])
        self.enable_adapters(not is_disabled)

    def enable_adapters(self, enabled: bool = True) -> None:
        """Runs the model with its active adapters again."""
        if not enabled:
            self.unmerge_adapter()
        for layer in self._adapter_layers():
            layer.enable_adapters(enabled)

    def disable_adapters(self) -> None:
        """Runs the model without its adapters, until [`enable_adapters`]."""
        self.enable_adapters(False)

    def get_adapter_state_dict(self, adapter_name: str | None = None, state_dict: dict | None = None) -> dict:
        """Returns the weights of an adapter, by default of the active one."""
        from peft.functional import get_peft_model_state_dict

        weights = get_peft_model_state_dict(self, state_dict, adapter_name or self.active_adapters()[0])
        if self._merged_layers() and any(".base_layer." in name for name in weights):
            raise ValueError(
                "PEFT saves the embeddings under this adapter, too, and now it is merged into them. Call "
                "`unmerge_adapter` first, or save the whole model after `merge_and_unload`."
            )
        return weights

    def delete_adapter(self, adapter_names: list[str] | str) -> None:
        """Removes an adapter, or several, and their recipes."""
        from peft.functional import delete_adapter

        self.unmerge_adapter()
        names = [adapter_names] if isinstance(adapter_names, str) else adapter_names
        for name in names:
            config = self.peft_config.pop(name)
            delete_adapter(self, name, prefix=f"{config.peft_type.value.lower()}_")
            self.adapter_recipes = {other: it for other, it in self.adapter_recipes.items() if other != name}
        if not self.peft_config:
            # What is loaded next is not disabled.
            self.enable_adapters()
            del self.peft_config
            self._hf_peft_config_loaded = False

    def _adapter_layers(self) -> list[Any]:
        """Returns the modules that switch adapters."""
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        if not has_adapter(self):
            raise ValueError("No adapter is loaded. Call `load_adapter` first.")
        return [module for module in self.modules() if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))]

    def save_pretrained(self, save_directory: str | os.PathLike, *args, **kwargs) -> None:
        """Saves the model or, if it has adapters, the adapters and the active recipe."""
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]

        if has_adapter(self) and kwargs.get("is_main_process", True):
            recipe_of(self).save_pretrained(save_directory)
            if remembered := self.config.loaded_with():
                summary = read_summary(str(save_directory), {}) | {"loaded_with": remembered}
                write_json(summary, Path(save_directory, SUMMARY_NAME))

    def merge_adapter(self, adapter_names: list[str] | None = None, safe_merge: bool = True) -> None:
        r"""
        Adds the active adapter to the weights of the model, which then computes as many products as without it.

        As [`~peft.LoraModel.merge_adapter`]. [`unmerge_adapter`] takes it out again, and so does whatever needs the
        base: another adapter, [`disable_adapters`], `train`. Half precision rounds the sums, so that some answers
        change, and it cannot be taken out. [`merge_unrounded`] merges where neither happens.

        Args:
            adapter_names (`list[str]`, *optional*):
                Adapters to make active and merge, by default the active ones.
            safe_merge (`bool`, *optional*, defaults to `True`):
                Whether to refuse sums that are not finite.

        Raises:
            ValueError: if no adapter is loaded or adapters are disabled, or if one cannot be merged: it acts on masks
                only, changes embeddings that are tied to the head, or weights that are quantized or offloaded.
        """
        self._check_mergeable(adapter_names)
        if adapter_names:
            self.set_adapter(adapter_names)

        self._merge_rounded |= self._rounds()
        for layer in self._tuner_layers():
            # PEFT warns of what is merged already.
            if not layer.merged:
                layer.merge(safe_merge=safe_merge)

    def unmerge_adapter(self) -> None:
        r"""
        Takes merged adapters out of the weights, by subtraction: they are those of before, up to rounding.

        Raises:
            ValueError: in half precision, where the weights would be others.
        """
        layers = self._merged_layers()
        if layers and (self._merge_rounded or self._rounds()):
            raise ValueError(
                "The adapter was merged in half precision, so that the weights of the base cannot be had back. Load "
                "the model anew by `from_pretrained`."
            )
        for layer in layers:
            layer.unmerge()

    def train(self, mode: bool = True):
        """Sets the module to training or not, and takes merged adapters out to train them."""
        if mode:
            self.unmerge_adapter()
        return super().train(mode)

    def _tuner_layers(self) -> list[Any]:
        """Returns the layers of adapters that PEFT can merge."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        return [layer for layer in self._adapter_layers() if isinstance(layer, BaseTunerLayer)]

    def _merged_layers(self) -> list[Any]:
        return [layer for layer in self._tuner_layers() if layer.merged] if has_adapter(self) else []

    def _rounds(self) -> bool:
        """Returns whether weights under the adapters have fewer bits than float32."""
        weights = [weight for layer in self._tuner_layers() for weight in layer.get_base_layer().parameters()]
        return any(weight.dtype not in (torch.float32, torch.float64) for weight in weights)

    def _check_mergeable(self, names: list[str] | None = None) -> None:
        if self._tuner_layers()[0].disable_adapters:
            raise ValueError("The adapters are disabled. Call `enable_adapters` first.")

        for name in names or self.active_adapters():
            if acts_on_masks(self.peft_config.get(name)):
                raise ValueError(
                    f"The adapter {name!r} acts on masks only, so it cannot be merged. Load it beside its base."
                )

        if getattr(self, "hf_quantizer", None) is not None or any(weight.is_meta for weight in self.parameters()):
            raise ValueError(
                "The model is quantized, or some of its weights are offloaded, so that nothing can be merged into it. "
                "Load all of it on a device, in its own dtype."
            )

        embeddings = self.get_input_embeddings()
        head = self.get_output_embeddings()
        if embeddings.weight is head.weight and {embeddings, head} & {*self._tuner_layers()}:
            raise ValueError(
                "The adapter changes the embeddings or the head, which are tied: merged, it would change both. Use it "
                "unmerged."
            )

    def merge_and_unload(self):
        r"""
        Adds the active adapter to the weights of the model and removes all adapters.

        The adapter's recipe becomes part of the model's.

        [`~transformers.PreTrainedModel.save_pretrained`] then writes a complete checkpoint, under the published
        weight names.

        Returns:
            The same model.

        Raises:
            ValueError: if no adapter is loaded or adapters are disabled, or if one cannot be merged (see
                [`merge_adapter`]).
        """
        from peft.tuners.tuners_utils import BaseTunerLayer

        self.merge_adapter()
        self.generation_config = recipe_of(self)

        replaced: list[str] = []
        for name, module in list(self.named_modules()):
            if name.startswith(tuple(replaced)):
                continue
            if hasattr(module, "unload_and_optionally_merge_module"):
                base = module.unload_and_optionally_merge_module(merge=False, safe_merge=True, adapter_names=None)
            elif isinstance(module, BaseTunerLayer):
                base = module.get_base_layer()
            else:
                continue
            self.set_submodule(name, base)
            replaced.append(f"{name}.")

        del self.peft_config
        self.adapter_recipes = {}
        self._merge_rounded = False
        self._hf_peft_config_loaded = False
        # The checkpoint of that name has other weights.
        self.config.name_or_path = self.name_or_path = ""
        return self


def merge_unrounded(model: PreTrainedModel) -> bool:
    """Merges the active adapter of a model if the dtype keeps its answers, and returns whether it did.

    In float32 that is up to rounding. In half precision, for an adapter that cannot be merged, and for models of other
    classes, nothing is done.
    """
    if not isinstance(model, AdapterLoadingMixin) or not has_adapter(model) or model._rounds():
        return False

    try:
        model.merge_adapter()
    except (ValueError, RuntimeError) as error:
        # Layers that are merged already give the same answers.
        logger.info(f"The adapter stays unmerged: {error}")
        return False
    return True


def read_summary(name: str, download: dict[str, Any]) -> dict[str, Any]:
    """Returns what the trainer wrote beside the weights, or nothing if another one did."""
    try:
        path = cached_file(name, SUMMARY_NAME, _raise_exceptions_for_missing_entries=False, **download)
        return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except OSError:
        return {}


def _load_as_trained(model: PreTrainedModel, summary: dict[str, Any], source: str) -> None:
    """Gives a model what the base of an adapter was loaded with; raises a `ValueError` if it was told otherwise."""
    for name, value in summary.get("loaded_with", {}).items():
        own = getattr(model.config, name, None)
        if own == value:
            continue
        if own or has_adapter(model):
            raise ValueError(
                f"The adapter {source!r} was trained on a model that was loaded with `{name}={value!r}`, and this one "
                f"has {own!r}. Load the base with `from_pretrained(..., {name}={value!r})`."
            )
        setattr(model.config, name, value)
    model.shift_logits = getattr(model.config, "shift_logits", model.shift_logits)


def check_start(config: "PeftConfig") -> None:
    """Raises a `ValueError` for an adapter that changes the weights of the model when it is made."""
    start = getattr(config, "init_lora_weights", True)
    if start not in _HARMLESS_STARTS:
        raise ValueError(
            f"With `init_lora_weights={start!r}` PEFT changes the weights of the model, for other adapters, too. "
            "Convert it with `save_pretrained(..., path_initial_model_for_weight_conversion=...)`."
        )


def _read(
    name: str, download: dict[str, Any]
) -> tuple["PeftConfig", dict[str, torch.Tensor], DiffusionGenerationConfig | None]:
    """Returns the configuration, the weights and the recipe of an adapter, all of the same commit.

    The recipe is without the special tokens, which are the model's, and without what `generate` returns and compiles,
    which the caller decides.
    """
    from peft import PeftConfig

    # First, because its errors say why a file cannot be had.
    weights_file = cached_file(name, ADAPTER_SAFE_WEIGHTS_NAME, **download)
    weights = load_file(weights_file)
    download = {**download, "revision": extract_commit_hash(weights_file, None) or download.get("revision")}

    config = PeftConfig.from_pretrained(name, **download)
    saved = Path(cached_file(name, ADAPTER_CONFIG_NAME, **download)).read_text(encoding="utf-8")
    for key, value in json.loads(saved).items():
        if value and not hasattr(config, key):
            raise ValueError(
                f"The adapter {name!r} has `{key}={value!r}`, which PEFT would ignore. Install the PEFT that it was "
                "trained with."
            )

    recipe = None
    if cached_file(name, GENERATION_CONFIG_NAME, _raise_exceptions_for_missing_entries=False, **download):
        recipe = DiffusionGenerationConfig.from_pretrained(name, **download)
        recipe = recipe.updated(**{name: None for name in SETTINGS if not SETTINGS[name].changes_answer})
    return config, weights, recipe


def translated(
    model: PreTrainedModel, config: "PeftConfig", weights: Mapping[str, torch.Tensor]
) -> tuple["PeftConfig", dict[str, torch.Tensor]]:
    """Returns the configuration and the weights of an adapter with the names of the modules of `model`.

    Names differ where an adapter was trained with the published code of LLaDA or LLaDA2.
    """
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING
    from peft.utils.other import get_pattern_key

    config = copy.deepcopy(config)
    marker = "." + PEFT_TYPE_TO_PREFIX_MAPPING.get(config.peft_type, "lora_")
    rules = get_model_conversion_mapping(model)
    adapted: dict[str, torch.Tensor] = {}
    whole: dict[str, torch.Tensor] = {}
    published_of: dict[str, str] = {}

    for name, weight in weights.items():
        # For a resized vocabulary, PEFT writes the embeddings twice more.
        if _TWICE.search(name):
            continue

        published, found, rest = name.removeprefix("base_model.model.").partition(marker)
        modules = _own_modules(published, rules)
        if not found:
            whole[modules[0]] = weight
            continue

        published_of |= dict.fromkeys(modules, published)
        pieces = [weight] if len(modules) == 1 else _cut(model, name, weight, modules)
        adapted |= {f"{module}{marker}{rest}": piece for module, piece in zip(modules, pieces, strict=True)}

    if any(module != published for module, published in published_of.items()):
        # The lists of published adapters contain names that matched nothing where they were trained, and would here.
        config.target_modules = set(published_of)
        config.layers_to_transform = config.layers_pattern = config.exclude_modules = None
        for setting in ("rank_pattern", "alpha_pattern"):
            pattern = getattr(config, setting, None) or {}
            keys = {module: get_pattern_key(pattern, published) for module, published in published_of.items()}
            setattr(config, setting, {module: pattern[key] for module, key in keys.items() if key in pattern})

    _own_copies(model, config, whole, published_of)
    return config, adapted | whole


def _own_copies(
    model: PreTrainedModel, config: "PeftConfig", whole: dict[str, torch.Tensor], adapted: Iterable[str]
) -> None:
    """Has an adapter save the modules whose weights it has whole, so that the model's stay as they are.

    PEFT writes the embeddings of a resized vocabulary, too, whatever the configuration says.
    """
    base = {_WRAPPED.sub("", name): weight for name, weight in model.state_dict().items()}
    copied = set()
    for name, weight in list(whole.items()):
        plain = _WRAPPED.sub("", name)
        module = plain.rpartition(".")[0]
        if plain not in base:
            continue  # Such as trained tokens.

        if module not in adapted:
            copied.add(module)
            whole[plain] = whole.pop(name)
        elif not torch.equal(base[plain].to(weight), whole.pop(name)):
            raise ValueError(
                f"The adapter has {name!r}, which would change the weights of the model, for other adapters, too. "
                "Merge it into its base by PEFT, and load that."
            )
    if copied:
        config.modules_to_save = sorted(copied)


def _own_modules(published: str, rules: Iterable[WeightTransform]) -> list[str]:
    """Returns the model's names, maybe several, for one module name in the published files."""
    # With a dot at the end, as in the name of a weight.
    module = f"{published}."
    for rule in rules:
        if isinstance(rule, WeightRenaming):
            module, _ = rule.rename_source_key(module)

    parent, _, child = module[:-1].rpartition(".")
    for rule in rules:
        is_cut = isinstance(rule, WeightConverter) and len(rule.target_patterns) > 1
        if is_cut and rule.source_patterns == [f"{child}.weight"]:
            return [f"{parent}.{target.removesuffix('.weight')}" for target in rule.target_patterns]
    return [module[:-1]]


def _cut(model: PreTrainedModel, name: str, weight: torch.Tensor, modules: list[str]) -> list[torch.Tensor]:
    """Splits a LoRA's weight between modules with the same input, each of which makes some output rows."""
    # Copies, because what shares memory cannot be saved.
    if ".lora_A" in name:
        return [weight.clone() for _ in modules]
    sizes = [model.get_submodule(module).out_features for module in modules]
    return [piece.clone() for piece in weight.split(sizes)]
