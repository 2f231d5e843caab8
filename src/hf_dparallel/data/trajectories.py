# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The teacher's own answers, which are what the student is trained on.

Certainty-forcing distillation changes how early a model is certain, not what it says: the training data are the
decoding trajectories of the model itself, filtered by their answers
(https://huggingface.co/papers/2509.26488, "Teacher Trajectory Generation").
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..generation.configuration import DiffusionGenerationConfig
from ..generation.decoder import DecodedRow
from ..generation.inputs import resolve_generation_config
from ..generation.rows import check_batch_size, decode_rows, evaluation_mode
from ..hashes import dataset_hash, model_hash, stable_hash
from ..training.checkpoints import explained_write_errors
from .prompts import check_new_columns, tokenize_prompts
from .rewards import RewardFunction, score_completions


if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.get_logger(__name__)

# Whatever the number of processes, so that a restart with another number finds the same shards.
SHARD_SIZE = 64
_MANIFEST = "trajectories.json"
_NEW_COLUMNS = ("prompt_ids", "completion_ids", "commit_step", "nfe")
# They do not change an answer.
_OUTPUT_SETTINGS = ("output_certainty", "return_dict_in_generate")


def generate_trajectories(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: "Dataset",
    generation_config: DiffusionGenerationConfig | None = None,
    batch_size: int = 8,
    output_dir: str | os.PathLike | None = None,
    seed: int = 0,
    num_workers: int = 1,
) -> "Dataset":
    r"""
    Lets a model answer the prompts of a dataset.

    With `output_dir`, rows are written in parquet shards of 64 as they are done, each shard whole or not at all. A
    run that was killed goes on where it stopped when it is called again with the same arguments. Under `torchrun`
    every process takes its share of the shards, and all return the whole dataset.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The teacher, with [`~DiffusionGenerationMixin.generate`]. It is used in evaluation mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        dataset (`datasets.Dataset`):
            Prompts in one of TRL's formats: a column `prompt` of texts or of lists of messages, or a column
            `messages`, whose trailing assistant messages are left out. Texts are tokenized as they are; messages go
            through the chat template.
        generation_config ([`DiffusionGenerationConfig`], *optional*):
            Settings of the decoding. By default the model's own.
        batch_size (`int`, *optional*, defaults to 8):
            Prompts decoded together. Does not change the answers (up to the rounding of sums in batches).
        output_dir (`str` or `os.PathLike`, *optional*):
            Where to keep the shards. Needed with more than one process.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws with `temperature > 0`; each row has its own, so that they are the same after a restart.

        num_workers (`int`, *optional*, defaults to 1):
            Threads that decode side by side, each `batch_size` prompts: on a CPU faster for small models.

    Returns:
        `datasets.Dataset`: the columns of `dataset` and

        - `prompt_ids` (`list[int]`): the prompt.
        - `completion_ids` (`list[int]`): the answer, up to and including its end-of-sequence token.
        - `commit_step` (`list[int]`): the pass at which each token of the answer was committed.
        - `nfe` (`int`): the number of passes.

    Raises:
        ValueError: if the dataset is empty, has no prompt column, or has a prompt that is empty or contains the mask
            token; or if `output_dir` holds another run: of another model, dataset, tokenizer, recipe or seed.
    """
    from accelerate import PartialState
    from tqdm.auto import tqdm

    # Without `cpu`, processes under `torchrun` on a machine without accelerator would not know of one another.
    state = PartialState(cpu=model.device.type == "cpu")
    if output_dir is None:
        if state.num_processes > 1:
            raise ValueError(
                f"`output_dir` is needed with {state.num_processes} processes: they share their rows through it."
            )
        with tempfile.TemporaryDirectory() as folder:
            return generate_trajectories(
                model, tokenizer, dataset, generation_config, batch_size, folder, seed, num_workers
            )

    check_batch_size(batch_size)
    check_new_columns(dataset, _NEW_COLUMNS)
    recipe = resolve_generation_config(model, generation_config, tokenizer)
    prompt_ids = tokenize_prompts(dataset, tokenizer, recipe.mask_token_id)
    store = _ShardStore(Path(output_dir), len(dataset))
    run = {"seed": seed, **_describe_model(model), **_describe_recipe(recipe), **_describe_data(dataset, prompt_ids)}
    store.claim(run, state.is_main_process)
    mine = store.missing(state.process_index, state.num_processes)
    with (
        evaluation_mode(model),
        tqdm(total=store.count(mine), desc="Trajectories", disable=not state.is_main_process) as progress,
    ):
        # Shard after shard, prompts of similar length next to one another.
        rows = [row for shard in mine for row in sorted(store.rows(shard), key=lambda row: len(prompt_ids[row]))]
        answers: dict[int, dict[str, Any]] = {}
        prompts = [(row, prompt_ids[row]) for row in rows]
        shares = [prompts[worker::num_workers] for worker in range(num_workers)]
        for row, answer in decode_rows(model, tokenizer, shares, recipe, batch_size, seed):
            answers[row] = _columns(prompt_ids[row], answer)
            progress.update()
            shard = store.shard(row)
            if all(other in answers for other in store.rows(shard)):
                store.write(shard, _with_answers(dataset, store.rows(shard), answers))
                answers = {other: answers[other] for other in answers if store.shard(other) != shard}
    state.wait_for_everyone()
    return store.read()


def filter_trajectories(
    dataset: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    reward_funcs: RewardFunction | list[RewardFunction],
    min_reward: float = 1.0,
) -> "Dataset":
    r"""
    Keeps the trajectories that every reward function gives at least `min_reward`, and logs how many those are.

    Args:
        dataset (`datasets.Dataset`):
            What [`generate_trajectories`] returned.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Decodes `completion_ids`.
        reward_funcs (`Callable` or `list[Callable]`):
            Functions with TRL's signature: called with `prompts`, `completions`, `completion_ids` and all other
            columns as keyword arguments, they return one reward per row, `None` where they have nothing to say. For
            instance [`numeric_answer_reward`] or `trl.rewards.accuracy_reward`. Completions are texts if the prompts
            are, else lists with one assistant message.
        min_reward (`float`, *optional*, defaults to 1.0):
            The least reward to keep a row. A row for which all functions return `None` is dropped.

    Returns:
        `datasets.Dataset`: the kept rows, unchanged. Its `info.description` says how many there are of how many.

    Raises:
        ValueError: if no row is left, or `dataset` has no `completion_ids` or lacks a column of a reward function.
    """
    if "completion_ids" not in dataset.column_names:
        raise ValueError(
            f"`dataset` needs the column `completion_ids`, it has {dataset.column_names}. "
            "Make it with `generate_trajectories`."
        )
    rewards = score_completions(dataset, tokenizer, reward_funcs)
    kept = [row for row, reward in enumerate(rewards) if reward is not None and reward >= min_reward]
    logger.info(f"Kept {len(kept)} of {len(dataset)} trajectories, dropped {len(dataset) - len(kept)}.")
    if not kept:
        first = tokenizer.decode(dataset[0]["completion_ids"], skip_special_tokens=True)
        raise ValueError(
            f"None of {len(dataset)} trajectories has `min_reward={min_reward}` or more. Look at a few completions "
            f"(the first one is {first[:200]!r}): is the answer in the form that the reward function reads?"
        )
    kept_rows = dataset.select(kept)
    # Cards of the data and of what is trained on them say it.
    functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    names = " and ".join(getattr(function, "__name__", type(function).__name__) for function in functions)
    counts = f"{len(kept)} of {len(dataset)} trajectories were kept"
    kept_rows.info.description = f"{counts}: those with a reward of at least {min_reward:g} from {names}."
    return kept_rows


def _columns(prompt: list[int], answer: DecodedRow) -> dict[str, Any]:
    # With `stop_at_eos=False` decoding goes on beyond the first end token.
    completion = slice(answer.num_tokens)
    return {
        "prompt_ids": prompt,
        "completion_ids": answer.tokens[completion].tolist(),
        "commit_step": answer.commit_step[completion].tolist(),
        "nfe": answer.nfe,
    }


def _with_answers(dataset: "Dataset", rows: range, answers: dict[int, dict[str, Any]]) -> "Dataset":
    from datasets import Dataset, concatenate_datasets

    new = Dataset.from_dict({name: [answers[row][name] for row in rows] for name in _NEW_COLUMNS})
    return concatenate_datasets([dataset.select(rows), new], axis=1)


def _describe_model(model: PreTrainedModel) -> dict[str, Any]:
    """Tells a model apart from others, with names for people and a hash of all weights for certainty."""
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapters = {
        name
        for module in model.modules()
        if isinstance(module, BaseTunerLayer) and not module.disable_adapters
        for name in module.active_adapters
    }
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    return {
        "model class": type(base).__name__,
        "model name": base.config._name_or_path,
        "dtype": str(model.dtype),
        "adapters": sorted(adapters),
        "weights": model_hash(model),
    }


def _describe_recipe(recipe: DiffusionGenerationConfig) -> dict[str, Any]:
    settings = recipe.settings().items()
    return {f"generation_config.{name}": value for name, value in settings if name not in _OUTPUT_SETTINGS}


def _describe_data(dataset: "Dataset", prompt_ids: list[list[int]]) -> dict[str, Any]:
    return {
        "num_rows": len(dataset),
        "columns": dataset.column_names,
        "rows": dataset_hash(dataset),
        "tokenized prompts": stable_hash(prompt_ids),
    }


class _ShardStore:
    """A folder of parquet shards of one run."""

    def __init__(self, folder: Path, num_rows: int):
        self.folder = folder
        self.num_rows = num_rows
        self.num_shards = -(-num_rows // SHARD_SIZE)

    def claim(self, run: dict[str, Any], is_main_process: bool) -> None:
        """Notes which run the folder belongs to, or checks that it is this one."""
        run = json.loads(json.dumps({"shard_size": SHARD_SIZE, **run}))
        path = self.folder / _MANIFEST
        previous = json.loads(path.read_text()) if path.exists() else run
        changed = [name for name in previous | run if previous.get(name) != run.get(name)]
        if changed:
            raise ValueError(
                f"`output_dir={str(self.folder)!r}` holds trajectories of another run, which differs in "
                f"{', '.join(changed)}. Choose another folder, or delete that one to start over."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        if is_main_process:
            _write_atomically(path, lambda temporary: temporary.write_text(json.dumps(run)))

    def rows(self, shard: int) -> range:
        return range(shard * SHARD_SIZE, min((shard + 1) * SHARD_SIZE, self.num_rows))

    def shard(self, row: int) -> int:
        return row // SHARD_SIZE

    def count(self, shards: list[int]) -> int:
        return sum(len(self.rows(shard)) for shard in shards)

    def missing(self, process_index: int, num_processes: int) -> list[int]:
        """Shards that a process has to make. Its share is fixed: others may write theirs while it looks."""
        share = range(self.num_shards)[process_index::num_processes]
        return [shard for shard in share if not self._path(shard).exists()]

    def write(self, shard: int, rows: "Dataset") -> None:
        kept = "The shards before it are intact, and the run goes on where it stopped."
        with explained_write_errors(self._path(shard), kept):
            _write_atomically(self._path(shard), rows.to_parquet)

    def read(self) -> "Dataset":
        from datasets import Dataset, concatenate_datasets
        from pyarrow.parquet import read_table

        return concatenate_datasets([Dataset(read_table(self._path(shard))) for shard in range(self.num_shards)])

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}-of-{self.num_shards:05d}.parquet"


def _write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes a file whole or not at all, whenever the process is killed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write(temporary)
    os.replace(temporary, path)
