# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The flags, in groups that commands share, and the commands. Imports no library.

A row is a flag: its name, its help, its type and its default. Defaults that depend on the machine are `None` here.
"""

import re
from typing import Any

import click

from hf_dparallel_rules.settings import SETTINGS, Setting, SettingError

from .command import DIR, FILE, Choice, Command, Flag, Place, TrainCommand, group


MODEL_NAME, ADAPTER = Place("MODEL", "dir", "demo", "demo-student"), Place("ADAPTER", "dir", "demo-student")
DATASET = Place("DATASET", "file", "demo")
COUNT, PORT = click.IntRange(1), click.IntRange(0, 2**16 - 1)
REWARDS = ("numeric", "math")
RIGHT = (
    "When an answer is correct. 'numeric': its last number equals the last number of the column 'answer'. 'math': it "
    "equals the column 'solution' (needs math-verify)."
)
# The settings that `--help` describes; it only names the others.
_MAJOR = {
    *("max_new_tokens", "block_length", "temperature", "cache_implementation"),
    *("entropy_threshold", "confidence_threshold", "denoising_steps"),
}


def setting_flag(setting: Setting) -> Flag:
    """Returns the flag of a generation setting. The recipe has its default."""

    def read(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            return setting.read(value)
        except SettingError as error:
            raise click.UsageError(str(error), ctx) from error

    default = "" if setting.default is None else f" (default: {setting.default})"
    about = re.sub(r"\.(?= |$)", f"{default}.", setting.help, count=1)  # in the first sentence
    kind = Choice(setting.choices) if setting.choices else setting.type
    is_minor = setting.name not in _MAJOR
    return Flag(setting.name, about, kind, callback=read, default=None, is_setting=True, is_minor=is_minor)


# fmt: off
OUTPUT = group("output",
    Flag("json", "Write the results to this JSON file.", FILE),
    Flag("quiet", "Write only errors to stderr.", bool),
)
MODEL = group("model",
    Flag("model", "Model or adapter: its name on the Hub, a folder, 'demo' (the bundled teacher) or 'demo-student'.",
        MODEL_NAME, is_required=True),
    Flag("dtype", "Data type of the weights. 'auto' is the one of the checkpoint.",
        Choice(("auto", "bfloat16", "float16", "float32")), default="auto"),
    Flag("device", "Device to run on: 'cpu', 'cuda', 'cuda:1' ... By default a GPU if there is one."),
    Flag("load_in_4bit", "Load the weights in 4 bits (needs bitsandbytes).", bool, is_minor=True),
    Flag("attn_implementation", "Attention implementation: 'sdpa', 'eager', 'flex_attention' ...", is_minor=True),
    Flag("revision", "Branch, tag or commit of the model on the Hub. By default 'main'.", is_minor=True),
)
LOADING = group("model", *MODEL,
    Flag("adapter", "Adapter to load into the model: its name on the Hub, a folder, or 'demo-student' (bundled).",
        ADAPTER),
)
DATA = group("data",
    Flag("dataset", "Prompts: a Hub dataset, a folder, a .csv, .tsv, .txt, .json, .jsonl or .parquet file, or 'demo' "
        "(word problems). It must have a column 'prompt' or 'messages', or use --prompt_column.",
        DATASET, is_required=True),
    Flag("dataset_config", "Configuration (subset) of the dataset.", is_minor=True),
    Flag("dataset_split", "Split of the dataset. By default 'test' to evaluate, 'train' for trajectories; a file has "
        "'train' only."),
    Flag("prompt_column", "Column of texts to send as a user's message, for instance 'question' in GSM8K."),
    Flag("answer_column", "Column of the correct answers for --reward. By default 'answer', for 'math' 'solution'.",
        is_minor=True),
    Flag("num_samples", "Use only the first N rows.", COUNT),
    Flag("raw", "Continue the texts of the column 'prompt' without the chat template.", bool),
)
REWARD = group("data", Flag("reward", RIGHT, Choice(REWARDS), default="numeric"))
PROMPT = group("prompt",
    Flag("prompt", "The prompt. By default it is read from stdin.", not_with=("prompt_file",)),
    Flag("prompt_file", "Read the prompt from this file.", FILE),
    Flag("raw", "Continue the prompt without the chat template.", bool),
)
RECIPE = group("generation settings", *(setting_flag(setting) for setting in SETTINGS.values() if setting.has_flag))
DECODING = group("generation settings", *RECIPE, Flag("seed", "Seed for sampling.", int, default=0))
BATCH_SIZE = group("batches",
    Flag("batch_size", "Prompts decoded together. Does not change the answers. By default 16 on a GPU, 8 on a CPU.",
        COUNT),
)
WORKERS = group("batches",
    Flag("num_workers", "Threads that decode in parallel, each batch_size prompts. By default one on a GPU, and on a "
        "CPU one per core, at most 4. Does not change the answers.", COUNT, is_minor=True),
)
SERVER = [*MODEL, *BATCH_SIZE, *RECIPE, *group("server",
    Flag("adapter", "Adapters, each [NAME=]ADAPTER: its name on the Hub, a folder, or 'demo-student'. The field "
        "`model` of a request names one of them, or the base model. Without it, the first adapter answers.",
        ADAPTER, multiple=True),
    Flag("host", "Address to listen on. The default accepts connections from this machine only, 0.0.0.0 from all.",
        default="127.0.0.1"),
    Flag("port", "Port to listen on. 0 chooses a free port.", PORT, default=8000),
    Flag("api_key", "API key that clients must send. By default $HF_DPARALLEL_API_KEY, if it is set."),
    Flag("served_model_name", "Model name in the API. By default the adapter, or else the model."),
    Flag("max_waiting", "Prompts that may wait for one of the batch_size slots. More are refused with status 429.",
        click.IntRange(0), default=128, is_minor=True),
    Flag("max_request_bytes", "Size limit of a request.", COUNT, default=2 ** 20, is_minor=True),
    Flag("grace_seconds", "Seconds that requests in flight may take to finish when the server stops.",
        click.FloatRange(0), default=30.0, is_minor=True),
    Flag("log_level", "'info' logs each request with its status.",
        Choice(("debug", "info", "warning", "error")), default="info", is_minor=True),
)]
_COMMANDS: list[click.Command] = [
    Command("play", "watch the bundled teacher and its student answer, in the browser", [
        *OUTPUT,
        Flag("port", "Port of the page. By default the first free one from 7860 on.", PORT, default=0),
        Flag("browser", "Open the page in a browser. --no_browser only prints its address.", bool, default=True),
    ], "--port 8000"),
    Command("demo", "distil the bundled teacher and compare it with its student", [
        *OUTPUT,
        Flag("output_dir", "Folder for the report, the figure and the adapter.", DIR, default="demo_output"),
        Flag("teacher", "Folder of the teacher. By default the bundled one.", DIR),
        Flag("seed", "Seed of problems, masks and initialization.", int, default=0),
        Flag("num_trajectories", "Problems that the teacher answers for training.", int, default=640),
        Flag("num_train_steps", "Optimizer steps of the distillation.", int, default=100),
        Flag("num_tuning_problems", "Problems for choosing the thresholds.", int, default=128),
        Flag("num_problems", "Held-out problems of the comparison.", int, default=400),
        Flag("batch_size", "Problems that each worker decodes together.", int, default=16),
        Flag("num_workers", "Threads that decode in parallel. By default one per core, at most 4.", int),
    ], "--output_dir demo_output"),
    Command("trajectories", "let a teacher answer the prompts of a dataset, and keep the correct answers", [
        *LOADING, *DATA,
        Flag("output_dir", "Folder for the trajectories: shards with all rows, and filtered.parquet with the kept "
            "rows. The same command continues a run that was killed.", DIR, is_required=True),
        Flag("reward", f"{RIGHT} 'none': keep all.", Choice((*REWARDS, "none")), default="numeric"),
        Flag("min_reward", "Keep answers with at least this reward.", float, default=1.0),
        *BATCH_SIZE, *WORKERS, *DECODING, *OUTPUT,
        *group("cluster",
            Flag("ray_actors", "Decode on a Ray cluster (needs ray) with up to this many actors, each with a "
                "model.", COUNT),
            Flag("ray_gpus_per_actor", "GPUs of each actor. By default one if the cluster has any, else none.",
                click.FloatRange(0), needs=("ray_actors",), is_minor=True),
        ),
    ], "demo --dataset demo --num_samples 64 --output_dir runs/data", ["model"]),
    TrainCommand("train", "certainty-forcing distillation on trajectories"),
    Command("generate", "answer one prompt", [
        *LOADING, *PROMPT, *DECODING, *OUTPUT,
        Flag("stream", "Print the text while it is decoded.", bool),
    ], "demo-student 'Mia has 14 pens, finds 6. How many?'", ["model", "prompt"]),
    Command("chat", "talk to a model in the terminal", [
        *LOADING, *DECODING, *OUTPUT,
        Flag("system_prompt", "System message at the beginning of the conversation."),
    ], "demo-student", ["model"]),
    Command("serve", "answer requests of OpenAI clients over HTTP", [
        *SERVER, *OUTPUT,
    ], "demo --adapter demo-student", ["model"]),
    Command("evaluate", "measure accuracy and cost of decoding, on a dataset or on benchmarks", [
        *LOADING, *group("data", *DATA, *REWARD, not_with=("tasks",)), *BATCH_SIZE,
        *group("batches", *WORKERS, not_with=("tasks",)), *DECODING, *OUTPUT,
        Flag("output_dir", "Folder for report.json, report.md and, with --sweep, "
            "curves.png.", DIR),
        Flag("sweep", "Settings to try, each a curve of accuracy against speed: entropy_threshold=0.1:1.0:0.1 (from, "
            "to, step) or denoising_steps=16,32,64.", multiple=True, metavar="SETTING=VALUES", not_with=("tasks",)),
        *group("benchmarks of the lm-evaluation-harness",
            Flag("tasks", "Evaluate on these tasks of the lm-evaluation-harness, separated by commas, instead of on a "
                "dataset.", multiple=True),
            Flag("include_path", "Folder with more tasks, as YAML files.", DIR, is_minor=True),
            Flag("num_fewshot", "Solved examples in each prompt.", click.IntRange(0), is_minor=True),
            Flag("limit", "Use only the first N samples of each task; below 1, this fraction of them.",
                float, is_minor=True),
            Flag("apply_chat_template", "Apply the chat template to prompts.", bool, is_minor=True),
            Flag("system_instruction", "Text at the beginning of each prompt.", is_minor=True),
            Flag("fewshot_as_multiturn", "Give solved examples as turns of the chat. By default with a chat template.",
                bool, default=None, is_minor=True),
            Flag("gen_kwargs", "More generation settings: name=value,... They override tasks and flags.",
                is_minor=True),
            Flag("mc_num", "Masked samples for each log-likelihood.", COUNT, default=128, is_minor=True),
            Flag("check_greedy", "For log-likelihoods, decode to find out whether an answer is the greedy one.",
                bool, is_minor=True),
            Flag("confirm_run_unsafe_code", "Let tasks run programs that the model writes without bubblewrap, too.",
                bool),
        needs=("tasks",)),
    ], "demo-student --dataset demo --num_samples 64", ["model"]),
    Command("inspect", "step through a decode, in the terminal or on a page, and draw how certainty grows", [
        *LOADING, *DATA, *PROMPT, *BATCH_SIZE, *DECODING, *OUTPUT,
        Flag("output_file", "Write an HTML page to step through the decode in a browser. Without it, every pass is "
            "printed in the terminal.", FILE),
        Flag("compare", "Also show the model without its adapter, with the same settings.", bool),
        Flag("dataset", "Prompts for --figures, as for `hf-dparallel evaluate`.", DATASET, needs=("figures",)),
        Flag("figures", "Draw how certainty grows over a dataset, into this folder.", DIR, needs=("dataset",)),
        Flag("reward", "Also draw accuracy against tokens per forward pass, at the confidence thresholds 0.3, 0.5, "
            "0.7 and 0.9. `hf-dparallel evaluate --help` describes the choices.",
            Choice(REWARDS), needs=("figures",)),
    ], "demo-student 'Mia has 14 pens and finds 6. How many?' --output_file page.html", ["model", "prompt"]),
    Command("calibrate", "find the fastest decoding settings that keep the accuracy", [
        *LOADING, *DATA, *REWARD,
        Flag("output_dir", "Folder for the recipe, generation_config.json, for instance the folder of the adapter.",
            DIR, is_required=True),
        Flag("max_accuracy_drop", "Largest acceptable loss of accuracy against one token per pass; 0.01 is one point.",
            float, default=0.01),
        Flag("confidence", "Probability of staying within that loss, on prompts of this kind.", float, default=0.9),
        Flag("sweep", "Settings to try.", default="entropy_threshold=0.1:1.0:0.1", metavar="SETTING=VALUES"),
        Flag("block_lengths", "Block lengths to try the settings with. The reference, one token per pass, uses the "
            "first. By default the recipe's.", int, multiple=True),
        Flag("seed", "Seed for splitting the prompts into two halves.", int, default=0, is_minor=True),
        *BATCH_SIZE, *WORKERS, *RECIPE, *OUTPUT,
    ], "demo-student --dataset demo --max_accuracy_drop 0.02 --output_dir runs/recipe", ["model"]),
    Command("export", "write a student for a serving engine, or for the published code of its family", [
        Flag("student", "Model or adapter: its name on the Hub, or a folder.", DIR, is_required=True),
        Flag("engine", "Engine to export for: SGLang for SDAR and LLaDA2, LMDeploy for SDAR, or 'transformers' for "
            "the published code of the family.", Choice(("sglang", "lmdeploy", "transformers")), is_required=True),
        Flag("output_dir", "New folder for the merged weights, the tokenizer and the engine's settings.",
            DIR, is_required=True),
        Flag("base_model", "Base model, whose code is copied. By default the one that the student names."),
        *RECIPE, *OUTPUT,
    ], "user/sdar-student --engine sglang --output_dir runs/exported", ["student"]),
    Command("convert", "turn an autoregressive model into a masked diffusion model to train", [
        Flag("model", "A Llama, Mistral, Qwen2 or Qwen3: its name on the Hub, or a folder.", DIR, is_required=True),
        Flag("output_dir", "New folder for the model, its tokenizer and card.", DIR, is_required=True),
        Flag("block_length", "Tokens of a block, for block-causal attention. By default attention is full.", COUNT),
        *OUTPUT,
    ], "Qwen/Qwen3-0.6B --output_dir runs/qwen3-diffusion --block_length 32", ["model"]),
    Command("push", "publish an adapter or a model on the Hub, with a card", [
        Flag("path", "Folder of the adapter or model.", DIR, is_required=True),
        Flag("repo_id", "Name of the repository, such as 'user/llada-dparallel'.", is_required=True),
        Flag("base_model", "Hub name of the base model, if it was a folder."),
        Flag("report", "Results for the card: the file of `hf-dparallel evaluate --json FILE`, or report.json of "
            "`hf-dparallel demo`.", FILE),
        Flag("example", "Example for the card and its widget: the file of `hf-dparallel generate --json FILE`.", FILE),
        Flag("dataset_name", "Hub name of the training data, for the card."),
        Flag("license", "Identifier of the licence for the card, such as 'mit' or 'apache-2.0'."),
        Flag("private", "Make a new repository private.", bool),
        Flag("revision", "Branch to push to, which is created if necessary. By default 'main'.", is_minor=True),
        Flag("create_pr", "Open a pull request instead of pushing directly.", bool, is_minor=True),
        Flag("commit_message", "Message of the commit.", is_minor=True),
        Flag("dry_run", "Run the checks, and show the card and the files, without uploading.", bool),
        *RECIPE, *OUTPUT,
    ], "runs/student user/my-student --dry_run", ["path", "repo_id"]),
    Command("models", "list published checkpoints that load by name", OUTPUT, "--json models.json"),
    Command("env", "show versions and devices, for bug reports", OUTPUT, "--json env.json"),
]
# fmt: on
COMMANDS: dict[str, Any] = {str(command.name): command for command in _COMMANDS}
