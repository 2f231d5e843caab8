# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel trajectories --ray_actors`: what it asks of the cluster."""

import datasets
import pytest

from hf_dparallel.cli import trajectories_command
from hf_dparallel.data.trajectories import generate_trajectories

from ..helpers import make_prompts


def test_the_cluster_loads_the_model_and_this_process_filters(hf, checkpoint, monkeypatch, tmp_path):
    asked = {}

    def on_ray(load, dataset, generation_config, batch_size, output_dir, seed, num_workers, **of_cluster):
        asked.update(of_cluster)
        return generate_trajectories(*load(), dataset, generation_config, batch_size, output_dir, seed, num_workers)

    monkeypatch.setattr(trajectories_command, "generate_trajectories_on_ray", on_ray)
    make_prompts(3).to_parquet(tmp_path / "prompts.parquet")
    command = ["trajectories", checkpoint, "--dataset", "prompts.parquet", "--output_dir", "out", "--reward", "none"]
    command += ["--max_new_tokens", "8", "--block_length", "4"]
    code, out, _ = hf(*command, "--ray_actors", "5", "--ray_address", "head:6379", "--ray_gpus_per_actor", "0.5")
    assert code == 0 and "num_kept            3" in out
    assert asked == {"max_actors": 5, "gpus_per_actor": 0.5, "address": "head:6379"}
    assert len(datasets.Dataset.from_parquet("out/filtered.parquet")) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ray_actors", "0"], "'--ray_actors': 0 is not in the range x>="),
        (["--ray_actors", "1", "--ray_gpus_per_actor", "-1"], "'--ray_gpus_per_actor': -1.0 is not in the range x>="),
        (["--ray_address", "auto"], "`ray_address` needs `ray_actors`. Add --ray_actors."),
    ],
)
def test_wrong_flags(hf, flags, message):
    code, _, err = hf("trajectories", "demo", "--dataset", "demo", "--output_dir", "out", *flags)
    assert code == 2 and message in err
