# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The model `hf-dparallel` of the lm-evaluation-harness."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather, wait_for_everyone
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, postprocess_generated_text
from tqdm.auto import tqdm
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)

from hf_dparallel_rules.settings import Setting

from ...data.chats import encode_text
from ...data.texts import decode_without
from ...data.thoughts import ThoughtMarkers, hidden_tokens, split_thought
from ...environment import join_processes
from ...generation.answerer import Answerer
from ...generation.configuration import DiffusionGenerationConfig, check_chat, resolve
from ...generation.hooks.stopping import StopTextCriteria
from ...hashes import stable_hash
from ...models.adapters import merge_unrounded
from ..cost import DecodingCost, mean_cost
from .likelihood import estimate_log_likelihood
from .patched_tasks import patch_tasks


# lm-eval's names for the longest answer, which is the canvas. The first one given counts.
_LIMITS = ("max_gen_toks", "max_tokens", "max_completion_tokens")
# The cost of each answer by task, document and name of the request.
Costs = dict[tuple[str, int, str], DecodingCost]


@register_model("hf-dparallel")
class DiffusionHarnessLM(TemplateLM):
    r"""
    A masked diffusion language model in the
    [lm-evaluation-harness](https://github.com/EleutherAI/lm-evaluation-harness).

    Results are the same for every run and batch size (up to the rounding of sums in batches). Log-likelihoods of
    answers are bounds, and never said to be those of greedy answers; those of whole texts are not computed. Programs
    in answers run in a sandbox.

    Args:
        pretrained (`str` or [`~transformers.PreTrainedModel`]):
            Hub ID or folder of a model or an adapter, or a loaded model.
        adapter (`str`, *optional*):
            Adapter to put on the model. In float32, that of a model that is loaded here is merged.
        tokenizer, device, dtype, revision, trust_remote_code (*optional*):
            As in transformers.
        batch_size (`int`, *optional*, defaults to 1):
            Requests decoded together; a finished one makes room for the next.
        mc_num (`int`, *optional*, defaults to 128):
            Masked samples for a log-likelihood.
        seed (`int`, *optional*, defaults to 0):
            Seed of all draws.
        chat_template_args (`dict`, *optional*):
            The setting `chat_template_kwargs`, by the name of lm-eval's own models.
        settings:
            Settings of [`DiffusionGenerationConfig`] for all requests. The settings of a request (`gen_kwargs`) win.

    Raises:
        ValueError: for an unknown setting, or a model without `generate_many`.
    """

    # As for any model of transformers.
    tokenizer_name = HFLM.tokenizer_name
    gather_object = HFLM.gather_object

    def __init__(
        self,
        pretrained: str | PreTrainedModel,
        adapter: str | None = None,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        batch_size: int | str = 1,
        device: str | torch.device | None = None,
        dtype: str = "auto",
        revision: str = "main",
        trust_remote_code: bool = False,
        mc_num: int = 128,
        seed: int = 0,
        chat_template_args: dict[str, Any] | None = None,
        **settings,
    ):
        super().__init__()
        patch_tasks()
        read = DiffusionGenerationConfig(**settings)  # refuses what is unknown, before anything is loaded
        for name, number in (("batch_size", batch_size), ("mc_num", mc_num)):
            if not str(number).isdecimal() or int(number) < 1:
                raise ValueError(f"`{name}` must be a positive number, got {number!r}. ('auto' is not known here.)")

        self.settings = settings
        self.batch_size = int(batch_size)
        self.mc_num = int(mc_num)
        self.seed = seed

        state = join_processes()
        self._rank = state.process_index
        self._world_size = state.num_processes
        loading = {"revision": revision, "trust_remote_code": trust_remote_code}
        if isinstance(pretrained, str):
            # lm-eval's command asks for "cuda:0" by default. Each of several processes has a device of its own.
            asked = torch.device(device or state.device)
            is_there = asked.type != "cuda" or (torch.cuda.is_available() and state.num_processes == 1)
            self._device = asked if is_there else state.device
            self.model = AutoModelForMaskedLM.from_pretrained(
                pretrained, dtype=dtype, device_map=self._device, **loading
            )
        else:
            self.model = pretrained
            self._device = getattr(pretrained, "device", None)

        if not hasattr(self.model, "generate_many"):
            raise ValueError(
                f"The class {type(self.model).__name__} does not decode by diffusion. Load the model, give it to "
                "`enable_diffusion_generation` and pass it as `pretrained`."
            )
        if adapter is not None:
            self.model.load_adapter(adapter)
        self.model.eval()
        # A model that was passed stays as it is.
        if isinstance(pretrained, str):
            merge_unrounded(self.model)

        name = pretrained if isinstance(pretrained, str) else pretrained.name_or_path
        self.tokenizer = tokenizer or AutoTokenizer.from_pretrained(name, **loading)

        # Only its special tokens count: each request has settings of its own.
        given = {**(chat_template_args or {}), **(read.chat_template_kwargs or {})}
        check_chat(self.model, given)
        given = {**settings, "chat_template_kwargs": given or None}
        self._resolved = resolve(self.model, DiffusionGenerationConfig(**given), self.tokenizer)
        self.chat_template_args = self._resolved.chat_template_kwargs or {}
        markers = (self._resolved.thought_markers, self.chat_template_args)
        self._markers = ThoughtMarkers.of(self.tokenizer, *markers)

        self.costs: Costs = {}
        self._chats: set[str] = set()

    @property
    def eot_token_id(self) -> int:
        """Returns the token that ends an answer."""
        return self._resolved.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """Returns the context of a text without one."""
        bos = self.tokenizer.bos_token_id
        return bos if bos is not None else self.eot_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs) -> list[int]:
        """Encodes a text that is to be continued: as `generate` reads it, chats without more special tokens."""
        if add_special_tokens or (add_special_tokens is None and string not in self._chats):
            return encode_text(self.tokenizer, string)
        return self.tokenizer.encode(string, add_special_tokens=False)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Renders a chat, or its beginning up to the middle of an answer."""
        chat = HFLM.apply_chat_template(self, chat_history, add_generation_prompt)
        self._chats.add(chat)
        return chat

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        special = False if context in self._chats else None
        context_ids = self.tok_encode(context.rstrip(), special)
        ids = self.tok_encode(context + continuation, special)
        if (mask := self._resolved.mask_token_id) in ids:
            raise ValueError(f"A request contains the mask token ({mask}), which would be scored: {context[-99:]!r}.")
        return context_ids, ids[len(context_ids) :]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Decodes the answers to requests. Their costs are in `costs`."""
        names = _names_of(requests)
        groups: dict[str, dict[str, Instance]] = {}
        for name, request in zip(names, requests, strict=True):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), {})[name] = request

        # All requests are checked before any is decoded.
        asked = []
        for group in groups.values():
            gen_kwargs = next(iter(group.values())).args[1]
            config, until = read_gen_kwargs(gen_kwargs, self.settings, self.model, self.tokenizer)
            asked.append((config, until, {name: self.tok_encode(one.args[0]) for name, one in group.items()}))

        texts = {}
        costs = {}
        with tqdm(desc="generate_until", total=len(requests), disable=disable_tqdm or self.rank != 0) as bar:
            for config, until, prompts in asked:
                for name, text, cost in self._decode(config, until, prompts):
                    texts[name] = text
                    costs[name] = cost
                    bar.update()

        self.costs = {}
        for name, request in zip(names, requests, strict=True):
            self.costs[request.task_name, request.doc_id, name] = costs[name]
        return [texts[name] for name in names]

    def _decode(
        self, config: DiffusionGenerationConfig, until: Sequence[str], prompts: Mapping[str, list[int]]
    ) -> Iterator[tuple[str, str, DecodingCost]]:
        """Yields answers as they are finished, each cut at the first string that ends it, and what they cost.

        With `stop_at_eos=False` the whole canvas is decoded, as the published samplers do; what stands after the
        answer does not count.
        """
        answerer = Answerer(self.model, self.tokenizer, config, self.batch_size, self.seed)
        stop = StopTextCriteria(self.tokenizer, until)
        criteria = StoppingCriteriaList([stop] if until and config.stop_at_eos else [])

        # The longest first: a prompt too long for the memory shows at once.
        longest_first = sorted(prompts.items(), key=lambda prompt: len(prompt[1]), reverse=True)
        for name, row in answerer.rows(longest_first, criteria):
            tokens = row.tokens[: row.num_tokens].tolist()
            if until:
                tokens = stop.cut(tokens)

            cost = DecodingCost.of_tokens(tokens, row.nfe, config.eos_token_ids, row.seconds)
            markers = self._markers if self._chats else None
            hidden = hidden_tokens(self.tokenizer, markers)
            text = decode_without(self.tokenizer, tokens[: cost.num_answer_tokens], hidden)
            _, text = split_thought(markers, text)
            yield name, postprocess_generated_text(text, list(until), None), cost

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **kwargs
    ) -> list[tuple[float, bool]]:
        for texts, _, answer in requests:
            if not answer:
                raise ValueError(
                    f"The answer {texts[1]!r} has no tokens of its own after the end of its prompt "
                    f"{texts[0][-40:]!r}. Let the task put a space between them (`target_delimiter`)."
                )

        answers = []
        for _, context, answer in tqdm(requests, "loglikelihood", disable=disable_tqdm or self.rank != 0):
            generator = torch.Generator().manual_seed(stable_hash(self.seed, context, answer))
            settings = (self._resolved.mask_token_id, self.mc_num, self.batch_size, generator)
            # `False`: nothing is decoded that could be the greedy answer.
            answers.append((estimate_log_likelihood(self.model, context, answer, *settings), False))
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Refuses to score whole texts, as the published evaluations do."""
        raise NotImplementedError(
            f"`{requests[0].task_name}` measures the perplexity of texts, which `hf-dparallel` does not. Take a task "
            "with choices, or one that generates."
        )

    def get_model_info(self) -> dict[str, Any]:
        """Returns, for the harness's results, the model and the mean costs of this process's answers by task."""
        by_task: dict[str, list[DecodingCost]] = {}
        for (task, *_), cost in self.costs.items():
            by_task.setdefault(task, []).append(cost)
        return {
            "decoding_settings": self.settings,
            "decoding_cost": {task: mean_cost(costs) for task, costs in by_task.items()},
        }

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Joins the tensors of all processes."""
        return gather(tensor)

    def barrier(self) -> None:
        """Waits for the other processes."""
        wait_for_everyone()


def _names_of(requests: list[Instance]) -> list[str]:
    """Names requests, some of which are repeated. Draws depend on the names, and so on no process and no order."""
    seen: Counter[str] = Counter()
    names = []
    for request in requests:
        name = f"{request.task_name} {request.doc_id} {request.idx}"
        names.append(f"{name} {seen[name]}")
        seen[name] += 1
    return names


def read_gen_kwargs(
    gen_kwargs: Mapping[str, Any],
    defaults: Mapping[str, Any],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[DiffusionGenerationConfig, list[str]]:
    """Returns the resolved settings of a request and the strings that end its answer.

    `max_new_tokens` is the canvas as in `generate`. Where only `max_gen_toks` is given, as most tasks do, that is.
    Raises a `ValueError` for settings that are unknown, out of range, or contradict one another.
    """
    settings = dict(gen_kwargs)
    until = handle_stop_sequences(settings.pop("until", None), eos=None)
    limits = [Setting(name, "length", int, "", minimum=1).read(settings.pop(name, None)) for name in _LIMITS]
    if settings.get("max_new_tokens") is None:
        settings["max_new_tokens"] = next((limit for limit in limits if limit is not None), None)

    config = resolve(model, DiffusionGenerationConfig(**defaults), tokenizer, **settings)
    # Some tasks have empty strings, for tokenizers without an end token.
    until = [text for text in dict.fromkeys([*until, *config.stop_strings]) if text]

    # Text is decoded without special tokens, so strings that are one would not be found in it.
    special = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = [special[text] for text in until if text in special]
    return config.updated(stop_strings=[], eos_token_id=list(dict.fromkeys(config.eos_token_ids + ends))), until
