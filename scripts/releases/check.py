# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs, in the environment that it is started in, what a newcomer does first, and prints the result as JSON.

    python scripts/releases/check.py

Four checks on tiny models, each by itself, so that the first that fails hides no other: the block of the README, two
steps of training a LoRA, exact decoding of a converted Llama, and a request to the server.
"""

import json
import platform
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path


PACKAGES = ("torch", "transformers", "peft", "trl", "datasets", "accelerate", "huggingface-hub")
QUESTION = "Mia has 14 pens. Then she finds 6 more. How many pens does she have now?"
ANSWER = "We start with 14. Then we add 6: 14 + 6 = 20. The answer is 20."
README = Path(__file__).parents[2] / "README.md"
SECONDS_TO_START = 300


def check_readme(folder: Path) -> None:
    """Runs the first Python block of the README, and compares what it prints with what is said there."""
    blocks = README.read_text(encoding="utf-8").split("```")
    program = next(block.removeprefix("python\n") for block in blocks if block.startswith("python\n"))
    expected = next(block.removeprefix("text\n") for block in blocks if block.startswith("text\n"))
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, text=True, capture_output=True, check=True)
    if done.stdout != expected:
        raise RuntimeError(f"The README promises {expected!r}, got {done.stdout!r}.")


def check_training(folder: Path) -> None:
    """Trains a LoRA on the bundled teacher for two steps, and loads it back."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    import hf_dparallel

    tokenizer = AutoTokenizer.from_pretrained(hf_dparallel.demo.TEACHER)
    model = AutoModelForMaskedLM.from_pretrained(hf_dparallel.demo.TEACHER)
    rows = [{"prompt_ids": tokenizer(QUESTION)["input_ids"], "completion_ids": tokenizer(ANSWER)["input_ids"]}] * 4
    args = hf_dparallel.CertaintyForcingConfig(
        output_dir=str(folder / "student"),
        max_steps=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = hf_dparallel.CertaintyForcingTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules=model.target_modules),
    )
    trainer.train()
    trainer.save_model()

    student = AutoModelForMaskedLM.from_pretrained(folder / "student")
    student.add_adapter(LoraConfig(target_modules=["q_proj"]), "another")
    student.set_adapter("default")
    student.merge_and_unload()


def check_exact(folder: Path) -> None:
    """Converts a random Llama, and compares its exact answer with the greedy one of transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import hf_dparallel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
        eos_token_id=1,
        pad_token_id=1,
        bos_token_id=1,
    )
    llama = LlamaForCausalLM(config).eval()
    llama.save_pretrained(folder / "llama")
    model = hf_dparallel.A2DLlamaForMaskedDiffusion.from_pretrained(
        folder / "llama", causal_past=True, shift_logits=True, block_length=4, mask_token_id=63
    ).eval()

    prompt = torch.tensor([[7, 8, 9, 10]])
    settings = {"max_new_tokens": 24, "suppress_tokens": [63]}
    expected = llama.generate(prompt, do_sample=False, attention_mask=torch.ones_like(prompt), **settings)
    exact = model.generate(prompt, confidence_threshold=0.1, **settings)
    length = expected.shape[1]
    if exact[0, :length].tolist() != expected[0].tolist():
        raise RuntimeError(f"Exact decoding gave {exact.tolist()}, transformers {expected.tolist()}.")


def check_server(folder: Path) -> None:
    """Starts `hf-dparallel serve`, and asks it a question."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hf_dparallel_cli", "serve", "demo", "--adapter", "demo-student", "--port"]
    server = subprocess.Popen([*command, str(port)], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        wait_for(server, port)
        body = {"messages": [{"role": "user", "content": QUESTION}]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS_TO_START) as response:
            message = json.load(response)["choices"][0]["message"]
    finally:
        server.kill()
        server.wait()
    if message["content"] != ANSWER:
        raise RuntimeError(f"The server answered {message}.")


def wait_for(server: subprocess.Popen, port: int) -> None:
    """Waits until a server listens.

    Raises:
        RuntimeError: if it ends, or takes too long.
    """
    end = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < end and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    server.kill()
    raise RuntimeError(f"The server did not start: {server.stderr.read().decode()[-2000:]}")


CHECKS: dict[str, Callable[[Path], None]] = {
    "first answer": check_readme,
    "LoRA, 2 steps": check_training,
    "exact": check_exact,
    "server": check_server,
}


def main() -> None:
    results = {}
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(Path(folder))
                results[name] = "passes"
            except Exception as error:  # noqa: BLE001 - each check is by itself
                traceback.print_exc()
                print(getattr(error, "stderr", "") or "", file=sys.stderr)
                results[name] = "fails"
    versions = {name: version(name) for name in PACKAGES}
    print(json.dumps({"python": platform.python_version(), **versions, "checks": results}))
    sys.exit("fails" in results.values())


if __name__ == "__main__":
    main()
