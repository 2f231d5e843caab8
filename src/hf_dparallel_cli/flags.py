# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The flags of the commands: a class for each group of them, and one for each command, which inherits its groups.

Help lists the groups from the last base to the first. No library is imported here. What the libraries decide, such as
the batch that suits the device, is `None` here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import copy
from functools import cache
from typing import Any

from .source import Row, field_rows, folder_of, setting_rows


_REWARDS = ("numeric", "math")
_RIGHT = (
    "What makes an answer right. 'numeric': its last number is the last one of the column 'answer'. 'math': it "
    "equals the column 'solution' (needs math-verify)."
)
_METHODS = (
    "With --preset, rows of its table: original, dual-cache, few-step, conf-threshold, consistency-distillation, "
    "dparallel."
)
# What help says about declared flags, in a sentence; the others it only names, as those with `brief=""`.
_DESCRIBED = (
    "max_new_tokens block_length temperature cache_implementation confidence_threshold denoising_steps "
    "entropy_threshold model_name_or_path learning_rate mask_ratio max_length certainty_temperature certainty_weight "
    "output_dir num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps bf16 use_cpu seed "
    "report_to eval_strategy save_steps resume_from_checkpoint push_to_hub dtype load_in_4bit use_peft lora_r"
)


def demo_rows() -> list[Row]:
    """What `DemoConfig` declares."""
    return field_rows(folder_of("hf_dparallel") / "demo" / "pipeline.py", "DemoConfig")


@cache
def training_rows() -> list[Row]:
    """The method's own: `CertaintyForcingConfig` with its bases and variants, and what `train` says of the model."""
    package = folder_of("hf_dparallel")
    paths = [package / "cli" / "train_command.py", *sorted((package / "training").rglob("*.py"))]
    return briefly({row.name: row for path in paths for row in field_rows(path)}.values())


def recipe_rows() -> list[Row]:
    """The settings of decoding."""
    return briefly(setting_rows())


def library_rows() -> list[Row]:
    """The others of `TrainingArguments` and of TRL's `ModelConfig`."""
    own = {row.name for row in training_rows()}
    rows = field_rows(folder_of("transformers") / "training_args.py", "TrainingArguments")
    rows += field_rows(folder_of("trl") / "trainer" / "model_config.py", "ModelConfig")
    return briefly(row for row in rows if row.name not in own)


def briefly(rows: Iterable[Row]) -> list[Row]:
    """Notes what help says about flags where it is not asked for all."""
    rows = list(rows)
    for row in rows:
        # Not at the dot of "Eq. 7".
        sentence = re.split(r"(?<=\.) (?=[A-Z`])", row.more["help"])[0]
        row.more["brief"] = sentence if row.name in _DESCRIBED.split() else ""
    return rows


def flag(help: str, default: Any = None, **more: Any) -> Any:
    """Returns a row with what it does and its default. Without one, and without `None` in its type, it is required.

    `more` is `choices`, `minimum`, `maximum`, `metavar`, `bundled` (names for a shell to complete), `needs` and
    `not_with` (a flag that it needs or excludes), and `brief`, what help says in short; `""` if it only names it.
    """
    return Row("", "", default, {"help": help} | more)


def declared(read: Callable[[], list[Row]], title: str) -> Any:
    """Returns a row that collects, by name, the flags that the package or its libraries declare."""
    return Row("", "dict", {}, {"declared": read}, title=title)


class Flags:
    """What all groups inherit. In a class, a flag is its row; in an instance, its value."""

    def __init__(self, **values: Any):
        for name, row in self.rows().items():
            setattr(self, name, copy(values.get(name, row.default)))

    @classmethod
    def rows(cls) -> dict[str, Row]:
        """The rows by name, beginning with its last base."""
        rows = {}
        for base in reversed(cls.__mro__):
            title = vars(base).get("title", "options")
            for name, row in vars(base).items():
                if isinstance(row, Row):
                    kind = base.__annotations__[name]
                    is_required = row.default is None and "None" not in kind
                    rows[name] = row._replace(name=name, type=kind, title=row.title or title, is_required=is_required)
        return rows


# A row a flag: its name and type, what it does, its default.
# fmt: off


class OutputFlags(Flags):
    title = "output"
    json: str | None = flag("File to write the figures of this command to.", metavar="FILE")
    quiet: bool = flag("Write nothing on stderr but errors.", False)


class EnvFlags(OutputFlags):
    pass


class DemoFlags(OutputFlags):
    config: dict[str, Any] = declared(demo_rows, "options")


class ModelFlags(Flags):
    title = "model"
    model: str = flag("Model or adapter: its name on the Hub, a folder, 'demo' (the bundled teacher) or "
        "'demo-student'.", metavar="MODEL", bundled=("demo", "demo-student"))
    dtype: str = flag("Type of the weights in memory; 'auto': as in the checkpoint.",
        "auto", choices=("auto", "bfloat16", "float16", "float32"))
    device: str | None = flag("Where the model runs: 'cpu', 'cuda', 'cuda:1' ... By default a GPU, if any.")
    load_in_4bit: bool = flag("Load the weights in 4 bits (needs bitsandbytes).", False, brief="")
    attn_implementation: str | None = flag("How attention is computed: 'sdpa', 'eager', 'flex_attention' ...",
        brief="")
    revision: str | None = flag("Branch, tag or commit of the model on the Hub. By default 'main'.", brief="")


class LoadingFlags(ModelFlags):
    title = "model"
    adapter: str | None = flag("Adapter to put on the model: its name on the Hub, or a folder. 'demo-student' is the "
        "bundled one.", metavar="ADAPTER", bundled=("demo-student",))


class DatasetFlags(Flags):
    title = "data"
    dataset: str = flag("Prompts: a Hub dataset, a folder, a .csv, .tsv, .txt, .json, .jsonl or .parquet file, or "
        "'demo' (word problems). It has a column 'prompt' or 'messages'; or see --prompt_column.", metavar="DATASET",
        bundled=("demo",))
    dataset_config: str | None = flag("Configuration (subset) of the dataset.", brief="")
    dataset_split: str | None = flag("Split of the dataset. By default 'test' to evaluate, 'train' for trajectories; "
        "a file has 'train' only.")
    prompt_column: str | None = flag("Column of texts to ask as a user's message, for instance 'question' in GSM8K.")
    answer_column: str | None = flag("Column of the right answers, for --reward. By default 'answer', for 'math' "
        "'solution'.", brief="")
    num_samples: int | None = flag("Use the first so many rows only.", minimum=1)
    raw: bool = flag("Continue texts of the column 'prompt' as they are, without the chat template.", False)
    # In another group of each command.
    model: str
    revision: str | None
    reward: Any


class PromptFlags(Flags):
    title = "prompt"
    prompt: str | None = flag("The prompt. By default it is read from stdin.", not_with="prompt_file")
    prompt_file: str | None = flag("File with the prompt.", metavar="FILE")
    raw: bool = flag("Continue the prompt as it is, without the chat template of the tokenizer.", False)


class RecipeFlags(Flags):
    settings: dict[str, Any] = declared(recipe_rows, "settings of decoding")


class DecodingFlags(RecipeFlags):
    title = "settings of decoding"
    seed: int = flag("Seed, where tokens are sampled.", 0)


class BatchSizeFlags(Flags):
    title = "batches"
    batch_size: int | None = flag("Prompts decoded together. By default on a GPU 16, on a CPU, where larger batches "
        "are no faster, 8. Does not change the answers.", minimum=1)


class BatchFlags(BatchSizeFlags):
    title = "batches"
    num_workers: int | None = flag("Threads that decode side by side, each batch_size prompts. By default on a GPU "
        "one, on a CPU one a core, at most 4. Does not change the answers.", minimum=1, brief="")


class RewardFlags(Flags):
    title = "data"
    reward: str = flag(_RIGHT, "numeric", choices=_REWARDS)


class GenerateFlags(OutputFlags, DecodingFlags, PromptFlags, LoadingFlags):
    stream: bool = flag("Show the text while it is decoded.", False)


class ChatFlags(OutputFlags, DecodingFlags, LoadingFlags):
    system_prompt: str | None = flag("What the conversation begins with, as the message of the system.")


class FolderFlags(Flags):
    output_dir: str | None = flag("Folder for report.json, which `hf-dparallel report` compares with others, "
        "report.md and, if several values were tried, curves.png.", metavar="DIR")


class EvaluateFlags(OutputFlags, FolderFlags, DecodingFlags, BatchFlags, RewardFlags, DatasetFlags, LoadingFlags):
    sweep: tuple[str, ...] = flag("Settings to try, each a curve of accuracy against speed: "
        "entropy_threshold=0.1:1.0:0.1 (with both ends) or denoising_steps=16,32,64.", (), metavar="SETTING=VALUES")
    name: str | None = flag("Name of the model in reports. Default: the adapter, or else the model.", brief="")


class EvaluateTasksFlags(OutputFlags, FolderFlags, DecodingFlags, BatchSizeFlags, LoadingFlags):
    title = "benchmarks of the lm-evaluation-harness"
    tasks: tuple[str, ...] = flag("Measure on these tasks of the lm-evaluation-harness instead of a dataset, with "
        "commas or spaces between. With --preset: only these of its tasks.", ())
    preset: str | None = flag("Measure on the benchmarks of the paper with its settings, for LLaDA or Dream.",
        choices=("paper-llada", "paper-dream"))
    methods: tuple[str, ...] = flag(f"{_METHODS} With commas or spaces between. By default dparallel, on the model as "
        "it is given.", (), needs="preset", brief=_METHODS)
    consistency_adapter: str | None = flag("Adapter of the method consistency-distillation (--adapter is for "
        "dparallel).", needs="preset", brief="")
    include_path: str | None = flag("Folder with more tasks, as YAML files.", metavar="DIR", brief="")
    num_fewshot: int | None = flag("Solved examples in each prompt.", minimum=0, not_with="preset", brief="")
    limit: float | None = flag("Only the first so many samples of each task; below 1, that share of them.", brief="")
    apply_chat_template: bool = flag("Ask in a chat. Presets always do.", False, brief="")
    system_instruction: str | None = flag("Text that begins each prompt.", brief="")
    fewshot_as_multiturn: bool | None = flag("Solved examples as turns of the chat. By default in a chat, without "
        "--preset.", brief="")
    gen_kwargs: str | None = flag("More decoding settings: name=value,... They win over tasks and flags.", brief="")
    mc_num: int = flag("Masked samples for each log-likelihood.", 128, minimum=1, brief="")
    check_greedy: bool = flag("Decode to see whether an answer is the greedy one, for log-likelihoods.", False,
        brief="")
    allow_code_execution: bool = flag("Let tasks run programs of the model, sandboxed.", False)


class InspectFlags(OutputFlags, DecodingFlags, BatchSizeFlags, DatasetFlags, PromptFlags, LoadingFlags):
    output_file: str | None = flag("HTML page to write, to step through the decode in a browser. Without it every "
        "pass is shown in the terminal.", metavar="FILE")
    compare: bool = flag("Show also what the model does without its adapter, in the same settings.", False)
    dataset: str | None = flag("Prompts for --figures, as for `hf-dparallel evaluate`.",  # type: ignore
        needs="figures", metavar="DATASET", bundled=("demo",))
    figures: str | None = flag("Folder for pictures of how certainty grows over a dataset.", metavar="DIR",
        needs="dataset")
    reward: str | None = flag("Also draw the accuracy of whole answers against their confidence, at the confidence "
        "thresholds 0.3, 0.5, 0.7, 0.9. What makes an answer right is as for `hf-dparallel evaluate`.",
        choices=_REWARDS, needs="figures")


class CalibrateFlags(OutputFlags, RecipeFlags, BatchFlags, RewardFlags, DatasetFlags, LoadingFlags):
    output_dir: str = flag("Folder for the recipe, generation_config.json: for instance the folder of the adapter.",
        metavar="DIR")
    max_accuracy_drop: float = flag("Accuracy that may be lost against one token per pass; 0.01 is one point.", 0.01)
    confidence: float = flag("Probability that no more is lost on all prompts of this kind.", 0.9)
    sweep: str = flag("Settings to try.", "entropy_threshold=0.1:1.0:0.1", metavar="SETTING=VALUES")
    block_lengths: tuple[int, ...] = flag("Block lengths to try them with; the reference has the first one. Default: "
        "the recipe's.", ())
    seed: int = flag("Seed of the split of the prompts into two halves.", 0, brief="")


class ReportFlags(OutputFlags):
    reports: tuple[str, ...] = flag("report.json of each evaluation, or its folder.", metavar="DIR")
    output_dir: str | None = flag("Folder for report.json, report.md and curves.png of all together.", metavar="DIR")


class TrainFlags(OutputFlags):
    title = "data"
    dataset_name: str = flag("Trajectories: a dataset on the Hub, a folder, or a .csv, .json, .jsonl or .parquet file."
        " Of a folder of `hf-dparallel trajectories` the kept rows are taken. It has columns 'prompt_ids' and "
        "'completion_ids', or 'prompt' and 'completion', or 'messages'.", metavar="DATASET", aliases=("--dataset",))
    dataset_config: str | None = flag("Configuration (subset) of the dataset.", brief="")
    dataset_train_split: str = flag("Split to train on.", "train")
    dataset_test_split: str = flag("Split to evaluate on, if `eval_strategy` is not 'no'.", "test", brief="")
    num_compared: int = flag("Rows that teacher and student answer after the training, side by side: of the split to "
        "evaluate on, or taken out of the one to train on, at most a tenth of it.", 32, minimum=0)
    drop_long_rows: bool = flag("Drop rows that are longer than max_length; without it they are an error.", False)
    training: dict[str, Any] = declared(training_rows, "training")
    library: dict[str, Any] = declared(library_rows, "of transformers and TRL")


class RayFlags(Flags):
    title = "cluster"
    ray_actors: int | None = flag("Decode on a Ray cluster (needs ray), with at most so many actors, each of which "
        "has a model and num_workers CPUs. Does not change the answers.", minimum=1)
    ray_gpus_per_actor: float | None = flag("GPUs of each actor. By default one if the cluster has any, else none.",
        minimum=0, needs="ray_actors", brief="")
    ray_address: str | None = flag("Address of the cluster. By default $RAY_ADDRESS, else a cluster on this machine, "
        "else one is started here.", needs="ray_actors", brief="")


class TrajectoriesFlags(OutputFlags, RayFlags, DecodingFlags, BatchFlags, DatasetFlags, LoadingFlags):
    output_dir: str = flag("Folder for the trajectories: shards of all, and filtered.parquet with the kept rows. A "
        "run that was killed goes on where it stopped when it is started again with the same folder.", metavar="DIR")
    reward: str = flag(f"{_RIGHT} 'none': keep all.", "numeric", choices=(*_REWARDS, "none"))
    min_reward: float = flag("Keep answers with at least this reward.", 1.0)
    overwrite: bool = flag("Delete the trajectories of another run that the folder holds.", False)


class ServerFlags(RecipeFlags, BatchSizeFlags, ModelFlags):
    title = "server"
    adapter: tuple[str, ...] = flag("Adapters, each [NAME=]ADAPTER: its name on the Hub, a folder, or 'demo-student'. "
        "Requests choose one, or the model itself, by its name as `model`; the first one answers requests that name "
        "none.", (), metavar="ADAPTER", bundled=("demo-student",))
    host: str = flag("Address to listen at. The default is reached from this machine only; 0.0.0.0 is all.",
        "127.0.0.1")
    port: int = flag("Port to listen at. 0 takes a free one.", 8000, minimum=0, maximum=2**16 - 1)
    api_key: str | None = flag("What clients must send as their API key. By default $HF_DPARALLEL_API_KEY, if any.")
    served_model_name: str | None = flag("What clients call the first model. By default as in --adapter, or in "
        "--model.")
    max_waiting: int = flag("Prompts that may wait for one of the batch_size slots; more are refused with status 429.",
        128, minimum=0, brief="")
    max_request_bytes: int = flag("Length of the longest request.", 2**20, minimum=1, brief="")
    grace_seconds: float = flag("Seconds that answers under way may take when the server is told to stop.",
        30.0, minimum=0, brief="")
    log_level: str = flag("'info' logs every request with its status and cost, 'debug' probes, too.",
        "info", choices=("debug", "info", "warning", "error"), brief="")


class ServeFlags(OutputFlags, ServerFlags):
    title = "server"
    forwarded_allow_ips: tuple[str, ...] = flag("Proxies whose X-Forwarded-For says who asks: addresses or networks. "
        "By default there is none.", (), metavar="IP", brief="")


class PlayFlags(OutputFlags):
    port: int = flag("Port of the page. 0 takes a free one.", 0, minimum=0, maximum=2**16 - 1)
    browser: bool = flag("Open the page in a browser; with --no_browser, only its address is printed.", True)


class RayServeFlags(ServerFlags):
    """The server, and how many replicas Ray Serve has of it and what each of them takes."""

    title = "replicas"
    min_replicas: int = flag("Replicas that are always there.", 1, minimum=1)
    max_replicas: int = flag("Replicas when there are many requests.", 1)
    cpus_per_replica: float = flag("CPUs of each replica.", 1)
    gpus_per_replica: float | None = flag("GPUs of each replica. By default one if there are any.")


class ExportFlags(OutputFlags, RecipeFlags):
    student: str = flag("Model or adapter: its name on the Hub, or a folder.", metavar="DIR")
    engine: str = flag("What is to load it: SGLang for SDAR and LLaDA2, LMDeploy for SDAR, or 'transformers', the "
        "published code of the family.",
        choices=("sglang", "lmdeploy", "transformers"))
    output_dir: str = flag("New folder for the merged weights, the tokenizer and the engine's settings.",
        metavar="DIR")
    base_model: str | None = flag("Base model, whose code is copied. By default what the student says.")


class PushFlags(OutputFlags, RecipeFlags):
    path: str = flag("Folder of the adapter or model; or, with --repo_type dataset, the output folder of "
        "`hf-dparallel trajectories` or a parquet file.", metavar="DIR")
    repo_id: str = flag("Name of the repository, such as 'user/llada-dparallel'.")
    repo_type: str = flag("What is published.", "model", choices=("model", "dataset"))
    base_model: str | None = flag("Name on the Hub of the base model (for trajectories: the teacher), if it was a "
        "folder.")
    report: str | None = flag("Measured figures for the card: what `hf-dparallel evaluate --json FILE` or `demo` "
        "(report.json) wrote.", metavar="FILE")
    example: str | None = flag("Answer for the card and its widget: what `hf-dparallel generate --json FILE` wrote.",
        metavar="FILE")
    dataset_name: str | None = flag("Name on the Hub of the training data, for the card.")
    license: str | None = flag("Identifier of the licence for the card, such as 'mit' or 'apache-2.0'.")
    private: bool = flag("Make the repository private if it is created now.", False)
    revision: str | None = flag("Branch to push to. It is created if there is none. By default 'main'.", brief="")
    create_pr: bool = flag("Open a pull request instead of pushing directly.", False, brief="")
    commit_message: str | None = flag("Message of the commit.", brief="")
    dry_run: bool = flag("Run the checks, show the card and the files, and send nothing.", False)
