# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The commands and their flags, a line each: name and type, what it does, its default. No library is imported here."""

from typing import Any

import click

from .command import Choice, Command, Flag, TrainCommand, group
from .flags import (
    BATCH_SIZE,
    BATCHES,
    DATA,
    DECODING,
    FOLDER,
    LOADING,
    OUTPUT,
    PROMPT,
    RECIPE,
    REWARD,
    REWARDS,
    RIGHT,
    SERVER,
)


# fmt: off
_BENCHMARKS = Command("evaluate_tasks", "measure accuracy and cost of decoding on benchmarks", [
    *LOADING, *BATCH_SIZE, *DECODING, *FOLDER, *OUTPUT,
    *group("benchmarks of the lm-evaluation-harness",
        Flag("tasks", "Measure on these tasks of the lm-evaluation-harness instead of a dataset, with commas "
            "between. With --preset: only these of its tasks.", multiple=True),
        Flag("preset", "Measure on the benchmarks of the paper with its settings, for LLaDA or Dream.",
            Choice(("paper-llada", "paper-dream"))),
        Flag("methods", "With --preset, rows of its table: original, dual-cache, few-step, conf-threshold, "
            "consistency-distillation, dparallel. By default dparallel, on the model as it is given.",
            multiple=True, needs="preset"),
        Flag("consistency_adapter", "Adapter of the method consistency-distillation (--adapter is for dparallel).",
            needs="preset", is_minor=True),
        Flag("include_path", "Folder with more tasks, as YAML files.", metavar="DIR", is_minor=True),
        Flag("num_fewshot", "Solved examples in each prompt.", click.IntRange(0), not_with="preset", is_minor=True),
        Flag("limit", "Only the first so many samples of each task; below 1, that share of them.",
            float, is_minor=True),
        Flag("apply_chat_template", "Ask in a chat. Presets always do.", bool, is_minor=True),
        Flag("system_instruction", "Text that begins each prompt.", is_minor=True),
        Flag("fewshot_as_multiturn", "Solved examples as turns of the chat. By default in a chat, without --preset.",
            bool, is_minor=True),
        Flag("gen_kwargs", "More decoding settings: name=value,... They win over tasks and flags.", is_minor=True),
        Flag("mc_num", "Masked samples for each log-likelihood.", click.IntRange(1), default=128, is_minor=True),
        Flag("check_greedy", "Decode to see whether an answer is the greedy one, for log-likelihoods.",
            bool, is_minor=True),
        Flag("allow_code_execution", "Let tasks run programs of the model, sandboxed.", bool),
    ),
])
_TABLE: list[click.Command] = [
    Command("play", "watch the bundled teacher and its student race, in the browser", [
        *OUTPUT,
        Flag("port", "Port of the page. 0 takes a free one.", click.IntRange(0, 2 ** 16 - 1), default=0),
        Flag("browser", "Open the page in a browser; with --no_browser, only its address is printed.",
            bool, default=True),
    ], "--port 8000"),
    Command("demo", "distil the bundled teacher and compare it with its student", [
        *OUTPUT,
        Flag("output_dir", "Where report, picture and adapter go.", default="demo_output", metavar="DIR"),
        Flag("teacher", "Folder of the teacher. Default: the bundled one.", metavar="DIR"),
        Flag("seed", "Seed of problems, masks and initialization.", int, default=0),
        Flag("num_trajectories", "Problems that the teacher answers for training.", int, default=640),
        Flag("num_train_steps", "Optimizer steps of the distillation.", int, default=100),
        Flag("num_tuning_problems", "Problems on which thresholds are chosen.", int, default=128),
        Flag("num_problems", "Held-out problems of the comparison.", int, default=400),
        Flag("batch_size", "Problems decoded together by each worker.", int, default=16),
        Flag("num_workers", "Threads that decode side by side. Default: one a core, at most 4.", int),
    ], "--output_dir demo_output"),
    Command("trajectories", "let a teacher answer the prompts of a dataset, and keep the right answers", [
        *LOADING, *DATA, *BATCHES, *DECODING, *OUTPUT,
        *group("cluster",
            Flag("ray_actors", "Decode on a Ray cluster (needs ray), with at most so many actors, each of which has a "
                "model and num_workers CPUs. Does not change the answers.", click.IntRange(1)),
            Flag("ray_gpus_per_actor", "GPUs of each actor. By default one if the cluster has any, else none.",
                click.FloatRange(0), needs="ray_actors", is_minor=True),
            Flag("ray_address", "Address of the cluster. By default $RAY_ADDRESS, else a cluster on this machine, "
                "else one is started here.", needs="ray_actors", is_minor=True),
    ),
        Flag("output_dir", "Folder for the trajectories: shards of all, and filtered.parquet with the kept rows. A "
            "run that was killed goes on where it stopped when it is started again with the same folder.",
            is_required=True, metavar="DIR"),
        Flag("reward", f"{RIGHT} 'none': keep all.", Choice((*REWARDS, "none")), default="numeric"),
        Flag("min_reward", "Keep answers with at least this reward.", float, default=1.0),
        Flag("overwrite", "Delete the trajectories of another run that the folder holds.", bool),
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
    Command("evaluate", "measure accuracy and cost of decoding on a dataset, or with --tasks or --preset on "
            "benchmarks", [
        *LOADING, *DATA, *REWARD, *BATCHES, *DECODING, *FOLDER, *OUTPUT,
        Flag("sweep", "Settings to try, each a curve of accuracy against speed: entropy_threshold=0.1:1.0:0.1 (with "
            "both ends) or denoising_steps=16,32,64.", multiple=True, metavar="SETTING=VALUES"),
        Flag("name", "Name of the model in reports. Default: the adapter, or else the model.", is_minor=True),
    ], "demo-student --dataset demo --num_samples 64", ["model"], _BENCHMARKS, ["tasks", "preset"]),
    Command("inspect", "step through a decode, in the terminal or on a page, and draw how certainty grows", [
        *LOADING, *DATA, *PROMPT, *BATCH_SIZE, *DECODING, *OUTPUT,
        Flag("output_file", "HTML page to write, to step through the decode in a browser. Without it every pass is "
            "shown in the terminal.", metavar="FILE"),
        Flag("compare", "Show also what the model does without its adapter, in the same settings.", bool),
        Flag("dataset", "Prompts for --figures, as for `hf-dparallel evaluate`.",
            needs="figures", metavar="DATASET", bundled=("demo",)),
        Flag("figures", "Folder for pictures of how certainty grows over a dataset.", metavar="DIR", needs="dataset"),
        Flag("reward", "Also draw accuracy against tokens per forward pass, at the confidence thresholds 0.3, 0.5, "
            "0.7, 0.9. What makes an answer right is as for `hf-dparallel evaluate`.",
            Choice(REWARDS), needs="figures"),
    ], "demo-student 'Mia has 14 pens and finds 6. How many?' --output_file page.html", ["model", "prompt"]),
    Command("calibrate", "find the fastest decoding settings that keep the accuracy", [
        *LOADING, *DATA, *REWARD, *BATCHES, *RECIPE, *OUTPUT,
        Flag("output_dir", "Folder for the recipe, generation_config.json: for instance the folder of the adapter.",
            is_required=True, metavar="DIR"),
        Flag("max_accuracy_drop", "Accuracy that may be lost against one token per pass; 0.01 is one point.",
            float, default=0.01),
        Flag("confidence", "Probability that no more is lost on all prompts of this kind.", float, default=0.9),
        Flag("sweep", "Settings to try.", default="entropy_threshold=0.1:1.0:0.1", metavar="SETTING=VALUES"),
        Flag("block_lengths", "Block lengths to try them with; the reference has the first one. Default: the "
            "recipe's.", int, multiple=True),
        Flag("seed", "Seed of the split of the prompts into two halves.", int, default=0, is_minor=True),
    ], "demo-student --dataset demo --max_accuracy_drop 0.02 --output_dir runs/recipe", ["model"]),
    Command("report", "compare evaluations, if they can be compared", [
        *OUTPUT,
        Flag("reports", "report.json of each evaluation, or its folder.",
            multiple=True, is_required=True, metavar="DIR"),
        Flag("output_dir", "Folder for report.json, report.md and curves.png of all together.", metavar="DIR"),
    ], "runs/a runs/b", ["reports"]),
    Command("export", "write a student for a serving engine, or for the published code of its family", [
        *RECIPE, *OUTPUT,
        Flag("student", "Model or adapter: its name on the Hub, or a folder.", is_required=True, metavar="DIR"),
        Flag("engine", "What is to load it: SGLang for SDAR and LLaDA2, LMDeploy for SDAR, or 'transformers', the "
            "published code of the family.", Choice(("sglang", "lmdeploy", "transformers")), is_required=True),
        Flag("output_dir", "New folder for the merged weights, the tokenizer and the engine's settings.",
            is_required=True, metavar="DIR"),
        Flag("base_model", "Base model, whose code is copied. By default what the student says."),
    ], "user/sdar-student --engine sglang --output_dir runs/exported", ["student"]),
    Command("push", "publish an adapter, a model or trajectories on the Hub, with a card", [
        *RECIPE, *OUTPUT,
        Flag("path", "Folder of the adapter or model; or, with --repo_type dataset, the output folder of "
            "`hf-dparallel trajectories` or a parquet file.", is_required=True, metavar="DIR"),
        Flag("repo_id", "Name of the repository, such as 'user/llada-dparallel'.", is_required=True),
        Flag("repo_type", "What is published.", Choice(("model", "dataset")), default="model"),
        Flag("base_model", "Name on the Hub of the base model (for trajectories: the teacher), if it was a folder."),
        Flag("report", "Measured figures for the card: what `hf-dparallel evaluate --json FILE` or `demo` "
            "(report.json) wrote.", metavar="FILE"),
        Flag("example", "Answer for the card and its widget: what `hf-dparallel generate --json FILE` wrote.",
            metavar="FILE"),
        Flag("dataset_name", "Name on the Hub of the training data, for the card."),
        Flag("license", "Identifier of the licence for the card, such as 'mit' or 'apache-2.0'."),
        Flag("private", "Make the repository private if it is created now.", bool),
        Flag("revision", "Branch to push to. It is created if there is none. By default 'main'.", is_minor=True),
        Flag("create_pr", "Open a pull request instead of pushing directly.", bool, is_minor=True),
        Flag("commit_message", "Message of the commit.", is_minor=True),
        Flag("dry_run", "Run the checks, show the card and the files, and send nothing.", bool),
    ], "runs/student user/my-student --dry_run", ["path", "repo_id"]),
    Command("env", "show versions and devices, for bug reports", OUTPUT, "--json env.json"),
]
# fmt: on
COMMANDS: dict[str, Any] = {str(command.name): command for command in _TABLE}
