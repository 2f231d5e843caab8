# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The flags that several commands share, in groups. What depends on the machine, as the batch size, is `None` here."""

from typing import Any

import click

from hf_dparallel_rules.settings import SETTINGS, Setting, SettingError

from .command import Choice, Flag, group


REWARDS = ("numeric", "math")
RIGHT = (
    "What makes an answer right. 'numeric': its last number is the last one of the column 'answer'. 'math': it "
    "equals the column 'solution' (needs math-verify)."
)
# The settings that `--help` describes; it only names the others.
_MAJOR = {
    *("max_new_tokens", "block_length", "temperature", "cache_implementation"),
    *("entropy_threshold", "confidence_threshold", "denoising_steps"),
}


def setting_flag(setting: Setting) -> Flag:
    """Returns the flag of a setting of decoding. If it is not given, the recipe has a value of its own."""

    def read(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            return setting.read(value)
        except SettingError as error:
            raise click.UsageError(str(error), ctx) from error

    kind = Choice(setting.choices) if setting.choices else setting.type
    is_minor = setting.name not in _MAJOR
    return Flag(setting.name, setting.help, kind, callback=read, is_setting=True, is_minor=is_minor)


# fmt: off
OUTPUT = group(
    "output",
    Flag("json", "File to write the figures of this command to.", metavar="FILE"),
    Flag("quiet", "Write nothing on stderr but errors.", bool),
)

MODEL = group(
    "model",
    Flag("model", "Model or adapter: its name on the Hub, a folder, 'demo' (the bundled teacher) or 'demo-student'.",
        is_required=True, metavar="MODEL", bundled=("demo", "demo-student")),
    Flag("dtype", "Type of the weights in memory; 'auto': as in the checkpoint.",
        Choice(("auto", "bfloat16", "float16", "float32")), default="auto"),
    Flag("device", "Where the model runs: 'cpu', 'cuda', 'cuda:1' ... By default a GPU, if any."),
    Flag("load_in_4bit", "Load the weights in 4 bits (needs bitsandbytes).", bool, is_minor=True),
    Flag("attn_implementation", "How attention is computed: 'sdpa', 'eager', 'flex_attention' ...", is_minor=True),
    Flag("revision", "Branch, tag or commit of the model on the Hub. By default 'main'.", is_minor=True),
)

LOADING = group(
    "model",
    *MODEL,
    Flag("adapter", "Adapter to put on the model: its name on the Hub, or a folder. 'demo-student' is the bundled "
        "one.", metavar="ADAPTER", bundled=("demo-student",)),
)

DATA = group(
    "data",
    Flag("dataset", "Prompts: a Hub dataset, a folder, a .csv, .tsv, .txt, .json, .jsonl or .parquet file, or 'demo' "
        "(word problems). It has a column 'prompt' or 'messages'; or see --prompt_column.", is_required=True,
        metavar="DATASET", bundled=("demo",)),
    Flag("dataset_config", "Configuration (subset) of the dataset.", is_minor=True),
    Flag("dataset_split", "Split of the dataset. By default 'test' to evaluate, 'train' for trajectories; a file has "
        "'train' only."),
    Flag("prompt_column", "Column of texts to ask as a user's message, for instance 'question' in GSM8K."),
    Flag("answer_column", "Column of the right answers, for --reward. By default 'answer', for 'math' 'solution'.",
        is_minor=True),
    Flag("num_samples", "Use only the first N rows.", click.IntRange(1)),
    Flag("raw", "Continue texts of the column 'prompt' as they are, without the chat template.", bool),
)

PROMPT = group(
    "prompt",
    Flag("prompt", "The prompt. By default it is read from stdin.", not_with="prompt_file"),
    Flag("prompt_file", "File with the prompt.", metavar="FILE"),
    Flag("raw", "Continue the prompt as it is, without the chat template of the tokenizer.", bool),
)

RECIPE = group(
    "settings of decoding",
    *(setting_flag(setting) for setting in SETTINGS.values() if setting.has_flag),
)

DECODING = group(
    "settings of decoding",
    *RECIPE,
    Flag("seed", "Seed, where tokens are sampled.", int, default=0),
)

BATCH_SIZE = group(
    "batches",
    Flag("batch_size", "Prompts decoded together. By default on a GPU 16, on a CPU, where larger batches are no "
        "faster, 8. Does not change the answers.", click.IntRange(1)),
)

BATCHES = group(
    "batches",
    *BATCH_SIZE,
    Flag("num_workers", "Threads that decode side by side, each batch_size prompts. By default on a GPU one, on a "
        "CPU one a core, at most 4. Does not change the answers.", click.IntRange(1), is_minor=True),
)

REWARD = group(
    "data",
    Flag("reward", RIGHT, Choice(REWARDS), default="numeric"),
)

FOLDER = group(
    "options",
    Flag("output_dir", "Folder for report.json, which `hf-dparallel report` compares with others, report.md and, if "
        "several values were tried, curves.png.", metavar="DIR"),
)

SERVER = (
    *MODEL,
    *BATCH_SIZE,
    *RECIPE,
    *group(
        "server",
        Flag("adapter", "Adapters, each [NAME=]ADAPTER: its name on the Hub, a folder, or 'demo-student'. Requests "
            "choose one, or the model itself, by its name as `model`; the first one answers requests that name none.",
            multiple=True, metavar="ADAPTER", bundled=("demo-student",)),
        Flag("host", "Address to listen at. The default is reached from this machine only; 0.0.0.0 is all.",
            default="127.0.0.1"),
        Flag("port", "Port to listen at. 0 takes a free one.", click.IntRange(0, 2 ** 16 - 1), default=8000),
        Flag("api_key", "What clients must send as their API key. By default $HF_DPARALLEL_API_KEY, if any."),
        Flag("served_model_name", "What clients call the first model. By default as in --adapter, or in --model."),
        Flag("max_waiting", "Prompts that may wait for one of the batch_size slots; more are refused with status 429.",
            click.IntRange(0), default=128, is_minor=True),
        Flag("max_request_bytes", "Length of the longest request.", click.IntRange(1), default=2 ** 20, is_minor=True),
        Flag("grace_seconds", "Seconds that answers under way may take when the server is told to stop.",
            click.FloatRange(0), default=30.0, is_minor=True),
        Flag("log_level", "'info' logs every request with its status and cost, 'debug' probes, too.",
            Choice(("debug", "info", "warning", "error")), default="info", is_minor=True),
    ),
)
# fmt: on
