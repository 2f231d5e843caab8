#!/usr/bin/env bash
# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
#
# The paper from its prompts to its tables: trajectories, filter, distillation, evaluation.
#
#   benchmarks/reproduce.sh llada-8b OUTPUT_DIR          # or llada-1.5, dream-7b
#
# Variables:
#   DRY_RUN=1   print the commands instead of running them
#   LAUNCH      what starts each command, for several devices:
#               LAUNCH="accelerate launch --config_file examples/configs/accelerate/ddp.yaml -m"   (default: python -m)
#   LIMIT=8     so many prompts of each data set, and samples of each benchmark, to try it out
#   PYTHON      the interpreter (default: python)
#
# A run that was interrupted goes on where it stopped when it is started again with the same folder. The paper took its
# prompts from GSM8K, from the 12,000 problems of MATH that PRM800K trains on, and from "part of" NuminaMath without
# saying which: here the first 60,000. For Dream it added about 10,000 prompts for code from AceCode, which are not
# asked here: judging their answers needs the tests of that data set. Programs that the model writes for HumanEval and
# MBPP are executed, each in a sandbox.
set -euo pipefail
cd "$(dirname "$0")/.."

NAME=${1:?"usage: benchmarks/reproduce.sh llada-8b|llada-1.5|dream-7b OUTPUT_DIR"}
OUTPUT=${2:?"usage: benchmarks/reproduce.sh llada-8b|llada-1.5|dream-7b OUTPUT_DIR"}
PYTHON=${PYTHON:-python}
LAUNCH=${LAUNCH:-$PYTHON -m}

case $NAME in
    llada-8b) MODEL=GSAI-ML/LLaDA-8B-Instruct PRESET=paper-llada ;;
    llada-1.5) MODEL=GSAI-ML/LLaDA-1.5 PRESET=paper-llada ;;
    dream-7b) MODEL=Dream-org/Dream-v0-Instruct-7B PRESET=paper-dream ;;
    *) echo "reproduce.sh: unknown model '$NAME', choose llada-8b, llada-1.5 or dream-7b" >&2; exit 2 ;;
esac

run() {
    if [ -n "${DRY_RUN:-}" ]; then printf '%q ' "$@"; echo; else "$@"; fi
}

# 1. The model answers, one token per pass; right answers are kept.
trajectories() {  # data set of the Hub, its configuration or "", column of the questions, reward, most prompts
    local folder=$OUTPUT/trajectories/${1##*/}
    # shellcheck disable=SC2086  # LAUNCH is several words
    run $LAUNCH hf_dparallel.cli trajectories --model "$MODEL" --dataset "$1" ${2:+--dataset_config "$2"} \
        --dataset_split train --prompt_column "$3" --reward "$4" ${5:+--num_samples "$5"} \
        --max_new_tokens 256 --block_length 32 --denoising_steps 256 --output_dir "$folder" --json "$folder.json"
    FILTERED+=("$folder/filtered.parquet")
}
FILTERED=()
trajectories openai/gsm8k main question numeric "${LIMIT:-}"
trajectories nlile/hendrycks-MATH-benchmark "" problem math "${LIMIT:-}"
trajectories AI-MO/NuminaMath-CoT "" problem math "${LIMIT:-60000}"
run "$PYTHON" -c '
import sys
from datasets import Dataset, concatenate_datasets
columns = ["prompt_ids", "completion_ids", "commit_step", "nfe"]
parts = [Dataset.from_parquet(path).select_columns(columns) for path in sys.argv[2:]]
concatenate_datasets(parts).to_parquet(sys.argv[1])
' "$OUTPUT/trajectories.parquet" "${FILTERED[@]}"

# 2. Certainty-forcing distillation, with the settings of the paper; and its baseline, consistency distillation.
train() {  # folder, further settings
    local folder=$1 resume=()
    if compgen -G "$folder/checkpoint-*" > /dev/null; then resume=(--resume_from_checkpoint true); fi
    # shellcheck disable=SC2086
    run $LAUNCH hf_dparallel.cli train --config "examples/configs/$NAME.yaml" \
        --dataset_name "$OUTPUT/trajectories.parquet" --output_dir "$folder" "${@:2}" "${resume[@]}"
}
train "$OUTPUT/student"
train "$OUTPUT/consistency" --masking trajectory --mask_ratio random --block_length 256 \
    --complementary_masking false --certainty_weight 0

# 3. The paper's benchmarks and the rows of its tables, one prompt at a time, as its latencies were measured.
# shellcheck disable=SC2086
run $LAUNCH hf_dparallel.cli evaluate --model "$MODEL" --preset "$PRESET" --batch_size 1 \
    --adapter "$OUTPUT/student" --consistency_adapter "$OUTPUT/consistency" \
    --methods original,few-step,conf-threshold,dual-cache,consistency-distillation,dparallel \
    ${LIMIT:+--limit "$LIMIT"} --allow_code_execution --output_dir "$OUTPUT/evaluation"
