# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The flags, in groups that commands share, and the commands. No library is imported here.

A row is a flag: its name, what it does, its type, its default. What depends on the machine is `None` here.
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

    default = "" if setting.default is None else f" (default: {setting.default})"
    about = re.sub(r"\.(?= |$)", f"{default}.", setting.help, count=1)  # in the first sentence
    kind = Choice(setting.choices) if setting.choices else setting.type
    is_minor = setting.name not in _MAJOR
    return Flag(setting.name, about, kind, callback=read, default=None, is_setting=True, is_minor=is_minor)


# fmt: off
OUTPUT = group("output",
    Flag("json", "File to write the figures of this command to.", FILE),
    Flag("quiet", "Write nothing on stderr but errors.", bool),
)
MODEL = group("model",
    Flag("model", "Model or adapter: its name on the Hub, a folder, 'demo' (the bundled teacher) or 'demo-student'.",
        MODEL_NAME, is_required=True),
    Flag("dtype", "Type of the weights in memory; 'auto': as in the checkpoint.",
        Choice(("auto", "bfloat16", "float16", "float32")), default="auto"),
    Flag("device", "Where the model runs: 'cpu', 'cuda', 'cuda:1' ... By default a GPU, if any."),
    Flag("load_in_4bit", "Load the weights in 4 bits (needs bitsandbytes).", bool, is_minor=True),
    Flag("attn_implementation", "How attention is computed: 'sdpa', 'eager', 'flex_attention' ...", is_minor=True),
    Flag("revision", "Branch, tag or commit of the model on the Hub. By default 'main'.", is_minor=True),
)
LOADING = group("model", *MODEL,
    Flag("adapter", "Adapter to put on the model: its name on the Hub, or a folder. 'demo-student' is the bundled "
        "one.", ADAPTER),
)
DATA = group("data",
    Flag("dataset", "Prompts: a Hub dataset, a folder, a .csv, .tsv, .txt, .json, .jsonl or .parquet file, or 'demo' "
        "(word problems). It has a column 'prompt' or 'messages'; or see --prompt_column.", DATASET, is_required=True),
    Flag("dataset_config", "Configuration (subset) of the dataset.", is_minor=True),
    Flag("dataset_split", "Split of the dataset. By default 'test' to evaluate, 'train' for trajectories; a file has "
        "'train' only."),
    Flag("prompt_column", "Column of texts to ask as a user's message, for instance 'question' in GSM8K."),
    Flag("answer_column", "Column of the right answers, for --reward. By default 'answer', for 'math' 'solution'.",
        is_minor=True),
    Flag("num_samples", "Use only the first N rows.", COUNT),
    Flag("raw", "Continue texts of the column 'prompt' as they are, without the chat template.", bool),
)
REWARD = group("data", Flag("reward", RIGHT, Choice(REWARDS), default="numeric"))
PROMPT = group("prompt",
    Flag("prompt", "The prompt. By default it is read from stdin.", not_with=("prompt_file",)),
    Flag("prompt_file", "File with the prompt.", FILE),
    Flag("raw", "Continue the prompt as it is, without the chat template of the tokenizer.", bool),
)
RECIPE = group("settings of decoding", *(setting_flag(setting) for setting in SETTINGS.values() if setting.has_flag))
DECODING = group("settings of decoding", *RECIPE, Flag("seed", "Seed, where tokens are sampled.", int, default=0))
BATCH_SIZE = group("batches",
    Flag("batch_size", "Prompts decoded together. Does not change the answers. By default 16 on a GPU, 8 on a CPU.",
        COUNT),
)
WORKERS = group("batches",
    Flag("num_workers", "Threads that decode side by side, each batch_size prompts. By default on a GPU one, on a "
        "CPU one a core, at most 4. Does not change the answers.", COUNT, is_minor=True),
)
SERVER = [*MODEL, *BATCH_SIZE, *RECIPE, *group("server",
    Flag("adapter", "Adapters, each [NAME=]ADAPTER: its name on the Hub, a folder, or 'demo-student'. Requests "
        "choose one, or the model itself, by its name as `model`; the first one answers requests that name none.",
        ADAPTER, multiple=True),
    Flag("host", "Address to listen at. The default is reached from this machine only; 0.0.0.0 is all.",
        default="127.0.0.1"),
    Flag("port", "Port to listen at. 0 takes a free one.", PORT, default=8000),
    Flag("api_key", "What clients must send as their API key. By default $HF_DPARALLEL_API_KEY, if any."),
    Flag("served_model_name", "What clients call the first model. By default as in --adapter, or in --model."),
    Flag("max_waiting", "Prompts that may wait for one of the batch_size slots; more are refused with status 429.",
        click.IntRange(0), default=128, is_minor=True),
    Flag("max_request_bytes", "Length of the longest request.", COUNT, default=2 ** 20, is_minor=True),
    Flag("grace_seconds", "Seconds that answers under way may take when the server is told to stop.",
        click.FloatRange(0), default=30.0, is_minor=True),
    Flag("log_level", "'info' logs every request with its status and cost, 'debug' probes, too.",
        Choice(("debug", "info", "warning", "error")), default="info", is_minor=True),
)]
_COMMANDS: list[click.Command] = [
    Command("play", "watch the bundled teacher and its student race, in the browser", [
        *OUTPUT,
        Flag("port", "Port of the page. 0 takes a free one.", PORT, default=0),
        Flag("browser", "Open the page in a browser; with --no_browser, only its address is printed.",
            bool, default=True),
    ], "--port 8000"),
    Command("demo", "distil the bundled teacher and compare it with its student", [
        *OUTPUT,
        Flag("output_dir", "Where report, picture and adapter go.", DIR, default="demo_output"),
        Flag("teacher", "Folder of the teacher. Default: the bundled one.", DIR),
        Flag("seed", "Seed of problems, masks and initialization.", int, default=0),
        Flag("num_trajectories", "Problems that the teacher answers for training.", int, default=640),
        Flag("num_train_steps", "Optimizer steps of the distillation.", int, default=100),
        Flag("num_tuning_problems", "Problems on which thresholds are chosen.", int, default=128),
        Flag("num_problems", "Held-out problems of the comparison.", int, default=400),
        Flag("batch_size", "Problems decoded together by each worker.", int, default=16),
        Flag("num_workers", "Threads that decode side by side. Default: one a core, at most 4.", int),
    ], "--output_dir demo_output"),
    Command("trajectories", "let a teacher answer the prompts of a dataset, and keep the right answers", [
        *LOADING, *DATA,
        Flag("output_dir", "Folder for the trajectories: shards of all, and filtered.parquet with the kept rows. The "
            "same command continues a run that was killed.", DIR, is_required=True),
        Flag("reward", f"{RIGHT} 'none': keep all.", Choice((*REWARDS, "none")), default="numeric"),
        Flag("min_reward", "Keep answers with at least this reward.", float, default=1.0),
        Flag("overwrite", "Delete the trajectories of another run that the folder holds.", bool),
        *BATCH_SIZE, *WORKERS, *DECODING, *OUTPUT,
        *group("cluster",
            Flag("ray_actors", "Decode on a Ray cluster (needs ray), with at most this many actors, each with a model "
                "and num_workers CPUs.", COUNT),
            Flag("ray_gpus_per_actor", "GPUs of each actor. By default one if the cluster has any, else none.",
                click.FloatRange(0), needs=("ray_actors",), is_minor=True),
            Flag("ray_address", "Address of the cluster. By default $RAY_ADDRESS, else a cluster on this machine, "
                "else one is started here.", needs=("ray_actors",), is_minor=True),
        ),
    ], "demo --dataset demo --num_samples 64 --output_dir runs/data", ["model"]),
    TrainCommand("train", "certainty-forcing distillation on trajectories"),
    Command("generate", "answer one prompt", [
        *LOADING, *PROMPT, *DECODING, *OUTPUT,
        Flag("stream", "Show the text while it is decoded.", bool),
    ], "demo-student 'Mia has 14 pens, finds 6. How many?'", ["model", "prompt"]),
    Command("chat", "talk to a model in the terminal", [
        *LOADING, *DECODING, *OUTPUT,
        Flag("system_prompt", "What the conversation begins with, as the message of the system."),
    ], "demo-student", ["model"]),
    Command("serve", "answer requests of OpenAI clients over HTTP", [
        *SERVER, *OUTPUT,
        Flag("forwarded_allow_ips", "Proxies whose X-Forwarded-For says who asks: addresses or networks. By default "
            "there is none.", multiple=True, metavar="IP", is_minor=True),
    ], "demo --adapter demo-student", ["model"]),
    Command("evaluate", "measure accuracy and cost of decoding, on a dataset or on benchmarks", [
        *LOADING, *group("data", *DATA, *REWARD, not_with=("tasks",)), *BATCH_SIZE,
        *group("batches", *WORKERS, not_with=("tasks",)), *DECODING, *OUTPUT,
        Flag("output_dir", "Folder for report.json, which `hf-dparallel report` compares with others, report.md and, "
            "with --sweep, curves.png.", DIR),
        Flag("sweep", "Settings to try, each a curve of accuracy against speed: entropy_threshold=0.1:1.0:0.1 (with "
            "both ends) or denoising_steps=16,32,64.", multiple=True, metavar="SETTING=VALUES", not_with=("tasks",)),
        Flag("name", "Name of the model in reports. Default: the adapter, or else the model.", not_with=("tasks",),
            is_minor=True),
        *group("benchmarks of the lm-evaluation-harness",
            Flag("tasks", "Measure on these tasks of the lm-evaluation-harness instead of a dataset, with commas "
                "between.", multiple=True),
            Flag("include_path", "Folder with more tasks, as YAML files.", DIR, is_minor=True),
            Flag("num_fewshot", "Solved examples in each prompt.", click.IntRange(0), is_minor=True),
            Flag("limit", "Only the first so many samples of each task; below 1, that share of them.",
                float, is_minor=True),
            Flag("apply_chat_template", "Ask in a chat.", bool, is_minor=True),
            Flag("system_instruction", "Text that begins each prompt.", is_minor=True),
            Flag("fewshot_as_multiturn", "Solved examples as turns of the chat. By default in a chat.",
                bool, default=None, is_minor=True),
            Flag("gen_kwargs", "More decoding settings: name=value,... They win over tasks and flags.", is_minor=True),
            Flag("mc_num", "Masked samples for each log-likelihood.", COUNT, default=128, is_minor=True),
            Flag("check_greedy", "Decode to see whether an answer is the greedy one, for log-likelihoods.",
                bool, is_minor=True),
            Flag("allow_code_execution", "Let tasks run programs of the model, sandboxed.", bool),
        needs=("tasks",)),
    ], "demo-student --dataset demo --num_samples 64", ["model"]),
    Command("inspect", "step through a decode, in the terminal or on a page, and draw how certainty grows", [
        *LOADING, *DATA, *PROMPT, *BATCH_SIZE, *DECODING, *OUTPUT,
        Flag("output_file", "HTML page to write, to step through the decode in a browser. Without it every pass is "
            "shown in the terminal.", FILE),
        Flag("compare", "Show also what the model does without its adapter, in the same settings.", bool),
        Flag("dataset", "Prompts for --figures, as for `hf-dparallel evaluate`.", DATASET, needs=("figures",)),
        Flag("figures", "Folder for pictures of how certainty grows over a dataset.", DIR, needs=("dataset",)),
        Flag("reward", "Also draw accuracy against tokens per forward pass, at the confidence thresholds 0.3, 0.5, "
            "0.7, 0.9. What makes an answer right is as for `hf-dparallel evaluate`.",
            Choice(REWARDS), needs=("figures",)),
    ], "demo-student 'Mia has 14 pens and finds 6. How many?' --output_file page.html", ["model", "prompt"]),
    Command("calibrate", "find the fastest decoding settings that keep the accuracy", [
        *LOADING, *DATA, *REWARD,
        Flag("output_dir", "Folder for the recipe, generation_config.json: for instance the folder of the adapter.",
            DIR, is_required=True),
        Flag("max_accuracy_drop", "Accuracy that may be lost against one token per pass; 0.01 is one point.",
            float, default=0.01),
        Flag("confidence", "Probability that no more is lost on all prompts of this kind.", float, default=0.9),
        Flag("sweep", "Settings to try.", default="entropy_threshold=0.1:1.0:0.1", metavar="SETTING=VALUES"),
        Flag("block_lengths", "Block lengths to try them with; the reference has the first one. Default: the "
            "recipe's.", int, multiple=True),
        Flag("seed", "Seed of the split of the prompts into two halves.", int, default=0, is_minor=True),
        *BATCH_SIZE, *WORKERS, *RECIPE, *OUTPUT,
    ], "demo-student --dataset demo --max_accuracy_drop 0.02 --output_dir runs/recipe", ["model"]),
    Command("report", "compare evaluations, if they can be compared", [
        Flag("reports", "report.json of each evaluation, or its folder.", DIR, multiple=True, is_required=True),
        Flag("output_dir", "Folder for report.json, report.md and curves.png of all together.", DIR),
        *OUTPUT,
    ], "runs/a runs/b", ["reports"]),
    Command("export", "write a student for a serving engine, or for the published code of its family", [
        Flag("student", "Model or adapter: its name on the Hub, or a folder.", DIR, is_required=True),
        Flag("engine", "What is to load it: SGLang for SDAR and LLaDA2, LMDeploy for SDAR, or 'transformers', the "
            "published code of the family.", Choice(("sglang", "lmdeploy", "transformers")), is_required=True),
        Flag("output_dir", "New folder for the merged weights, the tokenizer and the engine's settings.",
            DIR, is_required=True),
        Flag("base_model", "Base model, whose code is copied. By default what the student says."),
        *(flag for flag in RECIPE if flag.name != "engine"), *OUTPUT,
    ], "user/sdar-student --engine sglang --output_dir runs/exported", ["student"]),
    Command("convert", "make a masked diffusion model of an autoregressive one, to be trained", [
        Flag("model", "A Llama, Mistral, Qwen2 or Qwen3: its name on the Hub, or a folder.", DIR, is_required=True),
        Flag("output_dir", "New folder for the model, its tokenizer and card.", DIR, is_required=True),
        Flag("block_length", "Tokens of a block, for attention that is causal across blocks. By default every token "
            "sees every other one.", COUNT),
        Flag("gguf_file", "GGUF file in that folder or repository to read instead (needs gguf)."),
        *OUTPUT,
    ], "Qwen/Qwen3-0.6B --output_dir runs/qwen3-diffusion --block_length 32", ["model"]),
    Command("push", "publish an adapter, a model or trajectories on the Hub, with a card", [
        Flag("path", "Folder of the adapter or model; or, with --repo_type dataset, the output folder of "
            "`hf-dparallel trajectories` or a parquet file.", DIR, is_required=True),
        Flag("repo_id", "Name of the repository, such as 'user/llada-dparallel'.", is_required=True),
        Flag("repo_type", "What is published.", Choice(("model", "dataset")), default="model"),
        Flag("base_model", "Name on the Hub of the base model (for trajectories: the teacher), if it was a folder."),
        Flag("report", "Measured figures for the card: what `hf-dparallel evaluate --json FILE` or `demo` "
            "(report.json) wrote.", FILE),
        Flag("example", "Answer for the card and its widget: what `hf-dparallel generate --json FILE` wrote.", FILE),
        Flag("dataset_name", "Name on the Hub of the training data, for the card."),
        Flag("license", "Identifier of the licence for the card, such as 'mit' or 'apache-2.0'."),
        Flag("private", "Make the repository private if it is created now.", bool),
        Flag("revision", "Branch to push to. It is created if there is none. By default 'main'.", is_minor=True),
        Flag("create_pr", "Open a pull request instead of pushing directly.", bool, is_minor=True),
        Flag("commit_message", "Message of the commit.", is_minor=True),
        Flag("dry_run", "Run the checks, show the card and the files, and send nothing.", bool),
        *RECIPE, *OUTPUT,
    ], "runs/student user/my-student --dry_run", ["path", "repo_id"]),
    Command("models", "list the published checkpoints that load by their names", OUTPUT, "--json models.json"),
    Command("fit", "say whether a model fits into the memory, before it is downloaded", [
        Flag("model", "Its name on the Hub, or a folder. Only its config.json is read.", MODEL_NAME, is_required=True),
        *(flag for flag in MODEL if flag.name not in ("model", "attn_implementation")),
        *group("memory",
            Flag("memory", "What there is, such as 24GB. By default what is free on the device."),
            Flag("batch_size", "Prompts decoded together.", COUNT, default=1, not_with=("train",)),
            Flag("prompt_length", "Tokens of a prompt.", COUNT, default=256, not_with=("train",)),
            *(flag for flag in RECIPE if flag.name in ("max_new_tokens", "block_length", "cache_implementation")),
            Flag("train", "Train the model. The flags below are those of `hf-dparallel train`.", bool)),
        *group("training",
            Flag("per_device_train_batch_size", "Sequences of a step.", COUNT, default=1),
            Flag("max_length", "Tokens of a prompt and its answer.", COUNT, default=384),
            Flag("use_peft", "Train an adapter; with --no_use_peft, all weights.", bool, default=True),
            Flag("lora_r", "Rank of the adapter.", COUNT, default=32),
            Flag("bf16", "Compute in bfloat16.", bool, default=True),
            Flag("activation_checkpointing", "Compute activations again in the backward pass.", bool, default=True),
        needs=("train",)),
        *OUTPUT,
    ], "GSAI-ML/LLaDA-8B-Instruct --train --memory 24GB", ["model"]),
    Command("env", "show versions and devices, for bug reports", OUTPUT, "--json env.json"),
]
# fmt: on
COMMANDS: dict[str, Any] = {str(command.name): command for command in _COMMANDS}
