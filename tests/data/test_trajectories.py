# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Teacher trajectories: what they hold, restarts, several processes."""

import json

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import CompileConfig
from transformers.utils import logging

from hf_dparallel import DiffusionGenerationConfig, generate_trajectories
from hf_dparallel.data import folder
from hf_dparallel.generation.answerer import Answerer, evaluation_mode

from ..helpers import make_dream, make_llada, make_prompts, make_tokenizer
from ..processes import run_in_two_processes
from ..recipes import RECIPE


NUM_THREADS = torch.get_num_threads()


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(folder, "SHARD_SIZE", 4)


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


def test_training_mode_is_restored_in_every_module_whatever_happens():
    model = make_llada().train()
    frozen = next(model.children()).eval()
    generate_trajectories(model, make_tokenizer(), make_prompts(1), RECIPE)
    assert model.training and not frozen.training
    with pytest.raises(KeyboardInterrupt):
        with evaluation_mode(model):
            assert not any(module.training for module in model.modules())
            raise KeyboardInterrupt
    assert model.training and not any(module.training for module in frozen.modules())


@pytest.mark.parametrize("stop_at_eos", [True, False])
def test_an_answer_ends_with_its_first_eos(stop_at_eos):
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(10)
    recipe = RECIPE.updated(stop_at_eos=stop_at_eos, eos_token_id=[1, *range(2, 20)])
    rows = generate_trajectories(model, tokenizer, prompts, recipe)
    for row in rows:
        ends = [index for index, token in enumerate(row["completion_ids"]) if token in recipe.eos_token_id]
        assert ends == [len(row["completion_ids"]) - 1] or (not ends and len(row["completion_ids"]) == 8)
        assert len(row["commit_step"]) == len(row["completion_ids"]) and min(row["commit_step"]) >= 0
    assert any(len(row["completion_ids"]) < 8 for row in rows)


def test_batches_may_be_larger_than_a_shard(small_shards, tmp_path):
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(14)
    sizes = []
    model.lm_head.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    rows = generate_trajectories(model, tokenizer, prompts, RECIPE, batch_size=8, output_dir=tmp_path)
    assert max(sizes) == 8 and len(list(tmp_path.glob("shard-*"))) == 4
    assert rows[:] == generate_trajectories(make_llada(), tokenizer, prompts, RECIPE, batch_size=3)[:]


ROWS = Answerer.rows


def recording(decoded):
    """Decodes rows, and notes which."""

    def rows(answerer, prompts, **kwargs):
        for row, answer in ROWS(answerer, prompts, **kwargs):
            decoded.append(row)
            yield row, answer

    return rows


def no_rows(answerer, prompts, **kwargs):
    """Decodes nothing."""
    yield from ()


def test_restart_neither_loses_nor_repeats_a_row(small_shards, monkeypatch, tmp_path):
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(14)
    recipe = DiffusionGenerationConfig(max_new_tokens=8, block_length=4, temperature=1.0)
    expected = generate_trajectories(model, tokenizer, prompts, recipe)

    def interrupt(module, args, output):
        if list(tmp_path.glob("shard-*.parquet")):
            raise KeyboardInterrupt

    hook = model.lm_head.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        generate_trajectories(model, tokenizer, prompts, recipe, batch_size=2, output_dir=tmp_path)
    hook.remove()
    (shard,) = tmp_path.glob("shard-*.parquet")
    decoded = []
    monkeypatch.setattr(Answerer, "rows", recording(decoded))
    rows = generate_trajectories(model, tokenizer, prompts, recipe, batch_size=2, output_dir=tmp_path)
    assert rows[:] == expected[:]
    # The rows of the shard that was being decoded are decoded again.
    first = 4 * int(shard.name.split("-")[1])
    assert sorted(decoded) == [row for row in range(14) if not first <= row < first + 4]
    assert generate_trajectories(model, tokenizer, prompts, recipe, output_dir=tmp_path)[:] == expected[:]
    assert len(decoded) == 10


def test_rows_that_fail_are_left_out_and_not_tried_again(small_shards, monkeypatch, tmp_path, caplog):
    def broken_model():
        model = make_llada()
        with torch.no_grad():
            model.get_input_embeddings().weight[9] = torch.nan
        return model

    tokenizer, prompts = make_tokenizer(), make_prompts(14)
    failing = [row for row, text in enumerate(prompts["prompt"][:]) if 9 in tokenizer(text)["input_ids"]]
    assert 0 < len(failing) < 8
    expected = generate_trajectories(make_llada(), tokenizer, prompts, RECIPE)
    monkeypatch.setattr(logging.get_logger("hf_dparallel"), "propagate", True)
    for _ in range(2):
        rows = generate_trajectories(broken_model(), tokenizer, prompts, RECIPE, batch_size=3, output_dir=tmp_path)
        assert rows["answer"][:] == [str(row) for row in range(14) if row not in failing]
        assert rows[:] == expected.select([row for row in range(14) if row not in failing])[:]
        assert f"{len(failing)} of 14 rows are left out: their logits were NaN." in caplog.text
        caplog.clear()
        monkeypatch.setattr(Answerer, "rows", no_rows)


def test_rows_that_all_fail_end_the_run_unless_they_are_a_rest(small_shards):
    """A whole shard tells of the weights, a short one at the end of its prompts, and the others are done."""
    model, tokenizer = make_llada(), make_tokenizer()
    with torch.no_grad():
        model.get_input_embeddings().weight[9] = torch.nan
    rows = Dataset.from_dict({"prompt": ["5 6"] * 4 + ["7"] * 2})
    assert len(generate_trajectories(model, tokenizer, rows, RECIPE)) == 4
    with pytest.raises(FloatingPointError, match="NaN in all rows from 0 to 1"):
        generate_trajectories(model, tokenizer, rows.select([4, 5]), RECIPE)


def other_weights():
    model = make_llada()
    with torch.no_grad():
        model.get_input_embeddings().weight[0, 0] += 1
    return model


def other_generation_config():
    model = make_llada()
    model.generation_config = DiffusionGenerationConfig(top_k=3)
    return model


def with_adapter():
    return get_peft_model(make_llada(), LoraConfig(target_modules=["q_proj"]), adapter_name="student")


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"model": make_dream}, "weights and adapters"),
        ({"model": other_weights}, "weights and adapters"),
        ({"model": other_generation_config}, "generation_config.top_k"),
        ({"model": with_adapter}, "weights and adapters"),
        ({"model": lambda: make_llada().double()}, "dtype, weights and adapters"),
        ({"data": lambda: make_prompts(3)}, "prompts"),
        ({"recipe": RECIPE.updated(entropy_threshold=0.1)}, "generation_config.entropy_threshold. Choose another"),
        ({"seed": 1}, "seed"),
    ],
)
def test_stale_rows_are_never_returned(tmp_path, changed, difference):
    def run(model=make_llada, data=lambda: make_prompts(2), recipe=RECIPE, seed=0):
        return generate_trajectories(model(), make_tokenizer(), data(), recipe, 2, output_dir=tmp_path, seed=seed)

    rows = run()
    with pytest.raises(ValueError, match=f"of another run, which differs in {difference}"):
        run(**changed)
    assert run()[:] == rows[:]


def test_other_columns_are_those_of_the_given_rows(tmp_path):
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(2)
    rows = generate_trajectories(model, tokenizer, prompts, RECIPE, output_dir=tmp_path)
    changed = prompts.map(lambda row: {"answer": row["answer"] + "0"}).rename_column("answer", "solution")
    again = generate_trajectories(model, tokenizer, changed, RECIPE, output_dir=tmp_path)
    assert again["solution"][:] == [answer + "0" for answer in rows["answer"]]
    assert again["completion_ids"][:] == rows["completion_ids"][:]


def test_settings_of_the_output_do_not_make_another_run(tmp_path):
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(2)
    rows = generate_trajectories(model, tokenizer, prompts, RECIPE, output_dir=tmp_path)
    model.generation_config = RECIPE.updated(return_dict_in_generate=True, compile_config=CompileConfig())
    assert generate_trajectories(model, tokenizer, prompts, output_dir=tmp_path)[:] == rows[:]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Dataset.from_dict({"prompt": []}), "`dataset` has no rows"),
        (Dataset.from_dict({"prompt": [None, "1"]}), "Row 0 of `dataset`: `prompt` has an empty prompt"),
        (
            Dataset.from_dict({"prompt": ["1", "2", "3 <mask>"]}),
            r"Row 2 of `dataset`: Its prompt contains the mask token .<mask>. \(63\)",
        ),
        (
            make_prompts(1).add_column("nfe", [1]).add_column("prompt_ids", [[1]]),
            r"already has the columns \['prompt_ids', 'nfe'\].*remove_columns\(\['prompt_ids', 'nfe'\]\)",
        ),
    ],
)
def test_bad_datasets(dataset, message):
    tokenizer = make_tokenizer()
    tokenizer.mask_token = None  # that of the model counts
    with pytest.raises(ValueError, match=message):
        generate_trajectories(make_llada(), tokenizer, dataset, RECIPE)


SCRIPT = """
import os, sys, time
from pathlib import Path
from accelerate import PartialState
from tests.data.test_trajectories import *
folder.SHARD_SIZE = 4
decoded = []
decode = recording(decoded)
rank = os.environ.get("RANK", "0")
def slow(answerer, prompts, **kwargs):
    # A collective operation from here on would wait for the slow process.
    PartialState.wait_for_everyone = torch.distributed.barrier = torch.distributed.all_reduce = None
    for row, answer in decode(answerer, prompts, **kwargs):
        time.sleep(0.05 * (rank == "1"))
        yield row, answer
Answerer.rows = slow
rows = generate_trajectories(make_llada(), make_tokenizer(), make_prompts(18), RECIPE, 2, sys.argv[1])
report = {"decoded": sorted(decoded), "returned": len(rows)}
Path(sys.argv[1], "process-" + rank + ".json").write_text(json.dumps(report))
PartialState().destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_share_the_rows(small_shards, monkeypatch, tmp_path):
    run_in_two_processes(SCRIPT, tmp_path / "out")
    reports = [json.loads((tmp_path / "out" / f"process-{rank}.json").read_text()) for rank in range(2)]
    assert [report["returned"] for report in reports] == [18, 18]
    # No row twice: each process has every other shard.
    shards = [range(row, min(row + 4, 18)) for row in range(0, 18, 4)]
    for rank, report in enumerate(reports):
        assert report["decoded"] == [row for shard in shards[rank::2] for row in shard]
    assert not list((tmp_path / "out").glob(".*"))
    # A single process finds the whole run in the folder.
    expected = generate_trajectories(make_llada(), make_tokenizer(), make_prompts(18), RECIPE)
    monkeypatch.setattr(Answerer, "rows", no_rows)
    model = make_llada()
    rows = generate_trajectories(model, make_tokenizer(), make_prompts(18), RECIPE, output_dir=tmp_path / "out")
    assert rows[:] == expected[:]
