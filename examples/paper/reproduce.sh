#!/usr/bin/env bash
# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
#
# The paper from its prompts to its tables: trajectories, filter, distillation, evaluation. docs/reproduce.md says what
# each table should show and what it costs.
#
#   examples/paper/reproduce.sh llada-8b OUTPUT_DIR             # Table 1; with dream-7b Table 2, with llada-1.5 Table 6
#   examples/paper/reproduce.sh llada-8b OUTPUT_DIR table3      # or table4: the ablations, on the same trajectories
#
# Variables:
#   DRY_RUN=1   print the commands instead of running them
#   LAUNCH      what starts each command, for several devices:
#               LAUNCH="accelerate launch --config_file examples/configs/accelerate/ddp.yaml -m"   (default: python -m)
#   PROCESSES   how many processes that starts, if neither LAUNCH nor its file has num_processes: the effective batch
#               is 64 on any number
#   SEED        of trainings and evaluations (default: 42)
#   LIMIT=8     so many prompts of each data set, and samples of each benchmark, to try it out
#   PYTHON      the interpreter (default: python)
#
# A run that was interrupted goes on where it stopped when it is started again with the same folder. The paper took its
# prompts from GSM8K, from the 12,000 problems of MATH that PRM800K trains on, and from "part of" NuminaMath without
# saying which: here the first 60,000. For Dream it added about 10,000 prompts for code from AceCode, which are not
# asked here: judging their answers needs the tests of that data set. Programs that the model writes for HumanEval and
# MBPP are executed in bubblewrap.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
    echo "reproduce.sh: $1" >&2
    exit 2
}

NAME=${1:?"usage: examples/paper/reproduce.sh llada-8b|llada-1.5|dream-7b OUTPUT_DIR [table3|table4]"}
OUTPUT=${2:?"usage: examples/paper/reproduce.sh llada-8b|llada-1.5|dream-7b OUTPUT_DIR [table3|table4]"}
TABLE=${3:-}
PYTHON=${PYTHON:-python}
LAUNCH=${LAUNCH:-$PYTHON -m}
SEED=${SEED:-42}

case $NAME in
    llada-8b) MODEL=GSAI-ML/LLaDA-8B-Instruct PRESET=paper-llada ;;
    llada-1.5) MODEL=GSAI-ML/LLaDA-1.5 PRESET=paper-llada ;;
    dream-7b) MODEL=Dream-org/Dream-v0-Instruct-7B PRESET=paper-dream ;;
    *) fail "unknown model '$NAME', choose llada-8b, llada-1.5 or dream-7b" ;;
esac
case $NAME/$TABLE in
    */ | llada-8b/table3 | llada-8b/table4) ;;
    *) fail "'$TABLE' of $NAME is no table of the paper, choose llada-8b with table3 or table4" ;;
esac

# The paper's batch: 64 sequences a step, one at a time in each process.
in_launch() { sed -nE "s/.*--$1[= ]+([^ ]+).*/\1/p" <<< "$LAUNCH"; }
CONFIG_FILE=$(in_launch config_file)
PROCESSES=${PROCESSES:-$(in_launch num_processes)}
PROCESSES=${PROCESSES:-$([ -z "$CONFIG_FILE" ] || sed -n "s/^num_processes: //p" "$CONFIG_FILE")}
if [ "$LAUNCH" = "$PYTHON -m" ]; then PROCESSES=1; fi
case ${PROCESSES:-none} in
    1 | 2 | 4 | 8 | 16 | 32 | 64) ;;
    none) fail "LAUNCH='$LAUNCH' does not say how many processes it starts: set PROCESSES, too" ;;
    *) fail "PROCESSES must be a number that divides 64, got '$PROCESSES'" ;;
esac

run() {
    if [ -n "${DRY_RUN:-}" ]; then printf '%q ' "$@"; echo; else "$@"; fi
}

# 1. The model answers, one token per pass; right answers are kept.
trajectories() {  # data set of the Hub, its configuration or "", column of the questions, reward, most prompts
    local folder=$OUTPUT/trajectories/${1##*/}
    # shellcheck disable=SC2086  # LAUNCH is several words
    run $LAUNCH hf_dparallel_cli trajectories "$MODEL" --dataset "$1" ${2:+--dataset_config "$2"} \
        --dataset_split train --prompt_column "$3" --reward "$4" ${5:+--num_samples "$5"} \
        --max_new_tokens 256 --block_length 32 --denoising_steps 256 --output_dir "$folder"
    FILTERED+=("$folder/filtered.parquet")
}
if [ ! -f "$OUTPUT/trajectories.parquet" ]; then
    FILTERED=()
    trajectories openai/gsm8k main question numeric "${LIMIT:-}"
    trajectories nlile/hendrycks-MATH-benchmark "" problem math "${LIMIT:-}"
    trajectories AI-MO/NuminaMath-CoT "" problem math "${LIMIT:-60000}"
    run "$PYTHON" -c '
import os, sys
from datasets import Dataset, concatenate_datasets
columns = ["prompt_ids", "completion_ids", "commit_step", "nfe"]
parts = [Dataset.from_parquet(path).select_columns(columns) for path in sys.argv[2:]]
concatenate_datasets(parts).to_parquet(sys.argv[1] + ".part")
os.replace(sys.argv[1] + ".part", sys.argv[1])
' "$OUTPUT/trajectories.parquet" "${FILTERED[@]}"
fi

# 2. Certainty-forcing distillation, with the settings of the paper.
train() {  # folder, further settings
    local folder=$1 resume=()
    if [ -f "$folder/adapter_config.json" ]; then return; fi  # it is done
    if compgen -G "$folder/checkpoint-*" > /dev/null; then resume=(--resume_from_checkpoint true); fi
    # shellcheck disable=SC2086
    run $LAUNCH hf_dparallel_cli train --config "examples/configs/$NAME.yaml" --seed "$SEED" \
        --gradient_accumulation_steps $((64 / PROCESSES)) \
        --dataset_name "$OUTPUT/trajectories.parquet" --output_dir "$folder" "${@:2}" "${resume[@]}"
}

# 3. The paper's benchmarks, one prompt at a time, as its latencies were measured.
evaluate() {  # adapter, folder, further settings
    # shellcheck disable=SC2086
    run $LAUNCH examples.paper --model "$MODEL" --preset "$PRESET" --batch_size 1 --seed "$SEED" \
        --adapter "$1" ${LIMIT:+--limit "$LIMIT"} --output_dir "$2" "${@:3}"
}

# A row of an ablation, in the paper's order.
ablate() {  # student, further settings of its training
    train "$OUTPUT/$1" "${@:2}"
    evaluate "$OUTPUT/$1" "$OUTPUT/$1/evaluation" --tasks "$TASKS" --methods dparallel
}

# Not in the paper: accuracy against passes over many thresholds, of the model and of its students.
curves() {  # NAME=FOLDER ...
    run "$PYTHON" benchmarks/certainty.py --model "$MODEL" --dataset gsm8k --seeds 0 --students --adapters "$@" \
        --max_new_tokens 256 --batch_size 16 --num_problems "${LIMIT:-400}" \
        --thresholds 0.1 0.2 0.3 0.45 0.6 0.8 1.0 --teacher_thresholds 0 0.1 0.2 0.3 0.45 0.6 0.8 \
        --output_dir "$OUTPUT/$TABLE/curves" --report "$OUTPUT/$TABLE/curves.json"
    run "$PYTHON" benchmarks/curves.py "$OUTPUT/$TABLE/curves.json"
}

case $TABLE in
    table3)
        TASKS=gsm8k_cot_zeroshot,humaneval
        ablate table3/consistency --certainty_weight 0
        ablate table3/certainty --consistency_weight 0
        ablate table3/random-masking --masking random
        ablate student
        curves consistency="$OUTPUT/table3/consistency" certainty="$OUTPUT/table3/certainty" \
            random-masking="$OUTPUT/table3/random-masking" both="$OUTPUT/student"
        ;;
    table4)
        TASKS=gsm8k_cot_zeroshot STUDENTS=()
        for ratio in random 0.25 0.75 1.0 0.5; do
            ablate table4/ratio-$ratio --mask_ratio $ratio --num_train_epochs 1
            STUDENTS+=("ratio-$ratio=$OUTPUT/table4/ratio-$ratio")
        done
        curves "${STUDENTS[@]}"
        ;;
    *)
        train "$OUTPUT/student"
        # Consistency distillation, the paper's baseline.
        train "$OUTPUT/consistency" --masking trajectory --mask_ratio random --block_length 256 \
            --complementary_masking false --certainty_weight 0
        evaluate "$OUTPUT/student" "$OUTPUT/evaluation" --consistency_adapter "$OUTPUT/consistency" \
            --methods original,few-step,conf-threshold,dual-cache,consistency-distillation,dparallel
        ;;
esac
