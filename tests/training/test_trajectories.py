# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Teacher trajectories: what they hold, restarts, several processes, filters."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl.rewards import accuracy_reward

from hf_dparallel import (
    DiffusionGenerationConfig,
    filter_trajectories,
    generate_trajectories,
    numeric_answer_reward,
)
from hf_dparallel.training import trajectories

from ..conftest import make_llada


RECIPE = DiffusionGenerationConfig(max_new_tokens=8, block_length=4, entropy_threshold=1.0)


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = {"<s>": 0, "</s>": 1, **{str(number): number + 2 for number in range(60)}, r"\boxed{4}": 62, "<mask>": 63}
    backend = Tokenizer(models.WordLevel(words, unk_token="0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        mask_token="<mask>",
        chat_template="{% for m in messages %}<s> {{ m['content'] }} {% endfor %}",
    )


def make_prompts(count: int) -> Dataset:
    texts = [" ".join(str((7 * row + k) % 60) for k in range(1 + row % 5)) for row in range(count)]
    return Dataset.from_dict({"prompt": texts, "answer": [str(row) for row in range(count)]})


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(trajectories, "SHARD_SIZE", 4)


def test_columns_hold_what_generate_gives_for_each_row_alone(small_shards):
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(10)
    rows = generate_trajectories(model, tokenizer, prompts, RECIPE, batch_size=3)
    assert rows.column_names == ["prompt", "answer", "prompt_ids", "completion_ids", "commit_step", "nfe"]
    assert rows["prompt"][:] == prompts["prompt"][:] and rows["answer"][:] == prompts["answer"][:]
    for row in rows:
        ids = torch.tensor([tokenizer(row["prompt"])["input_ids"]])
        out = model.generate(ids, generation_config=RECIPE, return_dict_in_generate=True)
        length = len(row["completion_ids"])
        assert row["prompt_ids"] == ids[0].tolist()
        assert out.sequences[0, ids.shape[1] :].tolist() == row["completion_ids"] + [1] * (8 - length)
        assert out.commit_step[0, :length].tolist() == row["commit_step"]
        assert length == 8 or row["completion_ids"].index(1) == length - 1
        assert out.nfe.item() == row["nfe"]


def test_prompts_in_chat_format():
    tokenizer = make_tokenizer()
    user, assistant = {"role": "user", "content": "5 6"}, {"role": "assistant", "content": "7"}
    expected = tokenizer("<s> 5 6")["input_ids"]
    for columns in ({"prompt": [[user]]}, {"messages": [[user, assistant]]}):
        rows = generate_trajectories(make_llada(), tokenizer, Dataset.from_dict(columns), RECIPE)
        assert rows[0]["prompt_ids"] == expected


def test_training_mode_is_restored():
    model = make_llada().train()
    generate_trajectories(model, make_tokenizer(), make_prompts(1), RECIPE)
    assert model.training


def test_restart_neither_loses_nor_repeats_a_row(small_shards, tmp_path):
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(14)
    recipe = DiffusionGenerationConfig(max_new_tokens=8, block_length=4, temperature=1.0)
    expected = generate_trajectories(model, tokenizer, prompts, recipe)

    decoded = []
    original = model.generate

    def interrupted(*args, **kwargs):
        decoded.append(len(kwargs["input_ids"]))
        if len(decoded) == 4:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    model.generate = interrupted
    with pytest.raises(KeyboardInterrupt):
        generate_trajectories(model, tokenizer, prompts, recipe, batch_size=2, output_dir=tmp_path)
    assert len(list(tmp_path.glob("shard-*.parquet"))) == 1
    rows = generate_trajectories(model, tokenizer, prompts, recipe, batch_size=2, output_dir=tmp_path)
    assert rows[:] == expected[:]
    # Four rows were on disk; ten were left, and those of the broken shard were done again.
    assert sum(decoded[4:]) == 10
    assert generate_trajectories(model, tokenizer, prompts, recipe, output_dir=tmp_path)[:] == expected[:]
    assert sum(decoded[4:]) == 10


def test_another_run_in_the_folder_is_refused(tmp_path):
    model, tokenizer = make_llada(), make_tokenizer()
    generate_trajectories(model, tokenizer, make_prompts(2), RECIPE, output_dir=tmp_path)
    other = RECIPE.updated(entropy_threshold=0.1)
    with pytest.raises(
        ValueError, match="holds trajectories of another run, which differs in settings. Choose another"
    ):
        generate_trajectories(model, tokenizer, make_prompts(2), other, output_dir=tmp_path)
    with pytest.raises(ValueError, match="differs in num_rows, prompts"):
        generate_trajectories(model, tokenizer, make_prompts(3), RECIPE, output_dir=tmp_path)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Dataset.from_dict({"question": ["1 2"]}), r"needs a column `prompt`.*it has \['question'\].*rename_column"),
        (Dataset.from_dict({"prompt": []}), "`dataset` has no rows"),
    ],
)
def test_bad_datasets(dataset, message):
    with pytest.raises(ValueError, match=message):
        generate_trajectories(make_llada(), make_tokenizer(), dataset, RECIPE)


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.training.test_trajectories import *
trajectories.SHARD_SIZE = 4
rows = generate_trajectories(make_llada(), make_tokenizer(), make_prompts({count}), RECIPE, 2, sys.argv[1])
print("rows", len(rows))
"""


def script(count: int) -> str:
    return SCRIPT.format(root=os.getcwd(), count=count)


def test_processes_under_torchrun_share_the_rows(tmp_path):
    (tmp_path / "script.py").write_text(script(18))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0"]
    run = subprocess.run(
        [
            *command,
            "--rdzv_backend=c10d",
            "--rdzv_endpoint=localhost:0",
            str(tmp_path / "script.py"),
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("rows 18") == 2
    # A single process finds the whole run in the folder.
    expected = generate_trajectories(make_llada(), make_tokenizer(), make_prompts(18), RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trajectories, "SHARD_SIZE", 4)
        rows = generate_trajectories(
            make_llada(), make_tokenizer(), make_prompts(18), RECIPE, output_dir=tmp_path / "out"
        )
    assert rows[:] == expected[:]


def test_a_killed_process_leaves_only_whole_shards(small_shards, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", script(400), str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.time() + 120
    while len(list(tmp_path.glob("shard-*"))) < 3 and time.time() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(tmp_path.glob("shard-*")))
    assert 3 <= done < 100
    expected = generate_trajectories(make_llada(), make_tokenizer(), make_prompts(400), RECIPE, batch_size=16)
    rows = generate_trajectories(make_llada(), make_tokenizer(), make_prompts(400), RECIPE, 16, tmp_path)
    assert rows[:] == expected[:]


def trajectories_with(completions: list[str], **columns) -> Dataset:
    tokenizer = make_tokenizer()
    ids = [tokenizer(text)["input_ids"] for text in completions]
    return Dataset.from_dict({"prompt": ["1"] * len(ids), "completion_ids": ids, **columns})


def test_filter_keeps_right_answers():
    rows = trajectories_with(["3 4", "3 5", "4"], answer=["#### 4", "4", "4"])
    kept = filter_trajectories(rows, make_tokenizer(), numeric_answer_reward)
    assert [row["completion_ids"] for row in kept] == [rows[0]["completion_ids"], rows[2]["completion_ids"]]


def test_filter_passes_what_trl_passes_and_needs_every_function():
    rows = trajectories_with(["3 4", "3 5"], answer=["4", "5"], messages=[[{"role": "user", "content": "1"}]] * 2)
    rows = rows.remove_columns("prompt")
    seen = {}

    def reward(prompts, completions, completion_ids, answer, **kwargs):
        seen.update(prompts=prompts, completions=completions)
        return [0.4, None]

    kept = filter_trajectories(rows, make_tokenizer(), [reward, numeric_answer_reward], min_reward=0.5)
    assert kept["answer"][:] == ["5"]
    assert seen["completions"][0] == [{"role": "assistant", "content": "3 4"}]
    assert seen["prompts"][0] == [{"role": "user", "content": "1"}]


def test_filter_with_the_math_reward_of_trl():
    tokenizer = make_tokenizer()
    rows = trajectories_with([r"\boxed{4}", "4", "5"], solution=["$4$", "$4$", "$4$"])
    rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    assert len(filter_trajectories(rows, tokenizer, accuracy_reward)) == 1


def test_filter_that_leaves_nothing_says_what_the_completions_look_like():
    rows = trajectories_with(["3 4"], answer=["9"])
    with pytest.raises(ValueError, match=r"None of 1 trajectories has `min_reward=1.0` or more.*'3 4'"):
        filter_trajectories(rows, make_tokenizer(), numeric_answer_reward)


def test_filter_needs_completions():
    with pytest.raises(ValueError, match=r"needs the column `completion_ids`, it has \['prompt', 'answer'\]"):
        filter_trajectories(make_prompts(1), make_tokenizer(), numeric_answer_reward)


def test_numeric_answer_reward_reads_numbers_as_people_write_them():
    completions = [
        "so $1,250.",
        "-3",
        "it is 2.50 now",
        "none",
        [{"role": "assistant", "content": "The answer is 7 ."}],
    ]
    assert numeric_answer_reward(completions, answer=["#### 1250", -3, "2.5", "4", 7]) == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert numeric_answer_reward(["4"], answer=["unknown"]) == [None]
