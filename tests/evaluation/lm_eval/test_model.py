# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Requests to the model of the harness: answers, costs, prompts, restarts."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import postprocess_generated_text
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tokenizers.processors import TemplateProcessing

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.evaluation.cost import DecodingCost, mean_cost
from hf_dparallel.evaluation.lm_eval import DiffusionHarnessLM
from hf_dparallel.evaluation.lm_eval import model as harness_model

from ...helpers import make_llada, make_tokenizer, read_json, read_jsonl, save_two_students, write_jsonl
from ...processes import run_in_two_processes
from .helpers import CANVAS, DATASETS, make_lm, make_requests


TEXTS = ["3 4 5", "7", "9 8 7 6 5 4", "<s> 20 21", "3 4 5", "16 35"]


def decode_alone(text, **settings):
    """The oracle: `generate` on one prompt."""
    model, tokenizer = make_llada(), make_tokenizer()
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    out = model.generate(ids, return_dict_in_generate=True, **(CANVAS | {"entropy_threshold": 1.0} | settings))
    new = out.sequences[0, ids.shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True), out


def cost_of(lm, request) -> DecodingCost:
    """The cost of a request that was made once."""
    (cost,) = (lm.costs[key] for key in lm.costs if key[:2] == (request.task_name, request.doc_id))
    return cost


@pytest.mark.parametrize("batch_size", [1, 4])
def test_answers_and_costs_are_those_of_each_prompt_alone(batch_size):
    requests = make_requests(TEXTS)
    # A token in the middle of the first answer ends answers.
    eos = decode_alone(TEXTS[0])[1].sequences[0, -8].item()
    lm = make_lm(batch_size=batch_size, eos_token_id=eos)
    texts = lm.generate_until(requests, disable_tqdm=True)
    for request, text in zip(requests, texts, strict=True):
        _, out = decode_alone(request.args[0], eos_token_id=eos)
        new = out.sequences[0, -16:].tolist()
        cost = cost_of(lm, request)
        assert text == lm.tokenizer.decode(new[: cost.num_answer_tokens], skip_special_tokens=True)
        assert request.args == (request.args[0], {})
        assert cost == DecodingCost.of_tokens(new, out.nfe.item(), eos, cost.seconds)
        assert cost.seconds > 0
    first = cost_of(lm, requests[0])
    assert first.num_answer_tokens + 1 == first.num_tokens < 16
    costs = mean_cost([cost_of(lm, request) for request in requests])
    assert lm.get_model_info()["decoding_cost"] == {"task": costs}


def test_requests_have_their_own_settings():
    requests = [make_requests(["3 4 5"], {"denoising_steps": steps}, f"task{steps}")[0] for steps in (16, 4)]
    lm = make_lm(entropy_threshold=None)
    lm.generate_until(requests)
    assert [cost_of(lm, request).nfe for request in requests] == [16, 4]
    with pytest.raises(ValueError, match="Unknown .*entropy_treshold"):
        model = make_llada()
        model.generate_many = None  # all requests are checked before any is decoded
        make_lm(model).generate_until(make_requests(["3 4 5"]) + make_requests(["6"], {"entropy_treshold": 0.5}))
    with pytest.raises(ValueError, match="Unknown .*entropy_treshold"):
        make_lm(entropy_treshold=0.5)


def test_a_default_that_is_asked_for_wins_over_the_recipe_of_the_model():
    model = make_llada()
    model.generation_config = DiffusionGenerationConfig(max_active_blocks=2, stop_at_eos=False)
    asked = {"max_active_blocks": 1, "stop_at_eos": True}
    of_request, of_run = make_requests(TEXTS, asked), make_requests(TEXTS)
    lms = make_lm(model), make_lm(model, **asked)
    for lm, requests in zip(lms, (of_request, of_run), strict=True):
        lm.generate_until(requests)
        for request in requests:
            assert cost_of(lm, request).nfe == decode_alone(request.args[0])[1].nfe.item()


def test_answers_are_cut_at_stop_strings_and_decoding_ends_there():
    plain, out = decode_alone("3 4 5")
    words = plain.split()
    assert len(words) > 10
    stop = f"{words[3]} {words[4]}"
    requests = make_requests(["3 4 5"], {"until": [stop, "nowhere"]})
    lm = make_lm()
    (text,) = lm.generate_until(requests)
    assert text == postprocess_generated_text(plain, [stop, "nowhere"], None) and len(text) < len(plain)
    assert cost_of(lm, requests[0]).num_answer_tokens == len(plain[: plain.index(stop)].split()) + 2
    assert cost_of(lm, requests[0]).nfe < out.nfe.item()
    # The published samplers decode on.
    requests = make_requests(["3 4 5"], {"until": stop, "stop_at_eos": False})
    assert lm.generate_until(requests) == [text]
    assert cost_of(lm, requests[0]).nfe >= out.nfe.item()


@pytest.mark.parametrize("until", [["27", "nowhere"], ["51 27", "58 58"], ["</s>"], ["nowhere"]])
def test_the_same_tokens_count_whether_or_not_decoding_ends_there(until):
    stopped, whole = make_lm(), make_lm(stop_at_eos=False)
    requests = make_requests(TEXTS, {"until": until})
    assert stopped.generate_until(requests) == whole.generate_until(requests)
    for request in requests:
        assert cost_of(stopped, request).num_answer_tokens == cost_of(whole, request).num_answer_tokens


@pytest.mark.parametrize("stop_at_eos", [True, False])
def test_a_special_token_ends_the_answer(stop_at_eos):
    plain, _ = decode_alone("3 4 5")
    stop = plain.split()[4]
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [stop]})
    before = " ".join(plain.split()[: plain.split().index(stop)])
    requests = make_requests(["3 4 5"], {"until": [stop], "stop_at_eos": stop_at_eos})
    lm = make_lm(tokenizer=tokenizer)
    assert lm.generate_until(requests) == [before]
    assert cost_of(lm, requests[0]).num_answer_tokens == len(before.split())


def test_a_stop_string_is_looked_for_in_the_answer_only():
    plain, _ = decode_alone("3 4 5")
    across, of_prompt = f" 4 5 {plain.split()[0]}", "3 4 5"
    assert across not in plain and of_prompt not in plain
    assert make_lm().generate_until(make_requests(["3 4 5"], {"until": [across, of_prompt]})) == [plain]


def test_the_longest_answer_is_the_canvas():
    plain, out = decode_alone("3 4 5", max_new_tokens=11)
    requests = make_requests(["3 4 5"], {"max_gen_toks": 11, "block_length": 8})
    lm = make_lm(max_new_tokens=None)
    assert lm.generate_until(requests) == [plain]
    assert cost_of(lm, requests[0]).nfe == out.nfe.item()


def test_draws_depend_on_the_seed_and_the_request_only():
    def draw(requests, seed=0, batch_size=1):
        return make_lm(seed=seed, batch_size=batch_size).generate_until(requests)

    requests = make_requests(TEXTS, {"do_sample": True, "temperature": 2.0})
    first = draw(requests)
    assert draw(requests, batch_size=4) == first
    assert draw(requests[::-1], batch_size=3)[::-1] == first
    assert draw(requests[1:2]) == first[1:2]
    assert draw(requests, seed=1) != first
    assert first[0] != first[4]  # the same text in two documents
    twice = draw([requests[0], requests[0]])
    assert twice[0] == first[0] != twice[1]


def test_prompts_are_made_as_the_harness_makes_them():
    lm = make_lm()
    stand_in = SimpleNamespace(tokenizer=lm.tokenizer, chat_template_args={})
    chat = [{"role": role, "content": str(turn)} for turn, role in enumerate(("system", "user", "assistant"))]
    for history, prompt in ((chat[:2], True), (chat, False)):
        assert lm.apply_chat_template(history, prompt) == HFLM.apply_chat_template(stand_in, history, prompt)
    lm.tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m['content'] }} {% endfor %}"
    )
    assert lm.apply_chat_template(chat[:2]) == HFLM.apply_chat_template(stand_in, chat[:2]) == "1 "
    assert lm.chat_template(True) == lm.tokenizer.chat_template
    lm.chat_template_args = {"thinking": True}
    lm.tokenizer.chat_template = "{{ thinking }}"
    assert lm.apply_chat_template(chat) == "True"
    # A template that begins with the beginning-of-sequence token has made it already.
    lm.tokenizer.add_bos_token = True
    assert lm.tok_encode("<s> 5") == [0, 7]


def test_prompts_have_no_end_token_of_tokenizers_that_close_texts():
    """As ModernBERT's [CLS] x [SEP]. A chat has the tokens that it has for `generate`."""
    lm = make_lm()
    ends = [("<s>", 0), ("</s>", 1)]
    lm.tokenizer._tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    lm.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    plain = lm.tokenizer("3 4 5", add_special_tokens=False)["input_ids"]
    assert lm.tok_encode("3 4 5") == [0, *plain]
    assert lm._encode_pair("3 4", " 5") == ([0, *plain[:2]], plain[2:])
    chat = lm.apply_chat_template([{"role": "user", "content": "3 4"}])
    assert (
        lm.tok_encode(chat)
        == plain[:2]
        == lm.tokenizer.apply_chat_template([{"role": "user", "content": "3 4"}], return_dict=False)
    )
    assert lm._encode_pair(chat, "5") == (plain[:2], plain[2:])


@pytest.mark.parametrize(("dtype", "merged"), [("float32", True), ("bfloat16", False)])
def test_an_adapter_is_merged_where_that_changes_no_answer(tmp_path, dtype, merged):
    torch.manual_seed(0)
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    student = get_peft_model(make_llada(), adapter)
    make_llada().save_pretrained(tmp_path / "base")
    student.save_pretrained(tmp_path / "adapter")
    make_tokenizer().save_pretrained(tmp_path / "base")
    settings = {"entropy_threshold": 1.0, "device": "cpu", **CANVAS}
    lm = DiffusionHarnessLM(str(tmp_path / "base"), str(tmp_path / "adapter"), dtype=dtype, **settings)
    assert lm.model.model.layers[0].self_attn.q_proj.merged is merged
    expected = make_lm(student.to(getattr(torch, dtype))).generate_until(make_requests(TEXTS))
    assert lm.generate_until(make_requests(TEXTS)) == expected != make_lm().generate_until(make_requests(TEXTS))


def test_the_adapter_of_a_model_that_is_passed_stays_as_it_is():
    student = make_llada()
    student.add_adapter(LoraConfig(target_modules=["q_proj"]))
    assert not make_lm(student).model.model.layers[0].self_attn.q_proj.merged


def test_the_cache_of_the_harness_works(tmp_path):
    texts = CachingLM(make_lm(), str(tmp_path / "cache")).generate_until(make_requests(TEXTS[:2]))
    model = make_llada()
    model.generate_many = None
    assert CachingLM(make_lm(model), str(tmp_path / "cache")).generate_until(make_requests(TEXTS[:2])) == texts


def test_the_harness_knows_the_model(tmp_path):
    make_llada().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    lm = get_model("hf-dparallel").create_from_arg_string(
        f"pretrained={tmp_path},entropy_threshold=1.0,max_new_tokens=16,block_length=8",
        {"batch_size": "2", "device": "cpu", "max_batch_size": None},
    )
    assert lm.generate_until(make_requests(TEXTS[:1])) == [decode_alone(TEXTS[0])[0]]
    assert lm.tokenizer_name == str(tmp_path).replace("/", "__")


@pytest.mark.parametrize(
    ("has_gpu", "num_processes", "asked", "used"),
    [
        (False, 1, "cuda:0", "cpu"),  # `lm_eval` asks for it where `--device` is not given
        (True, 2, "cuda:0", "cuda:1"),
        (True, 2, "cpu", "cpu"),
    ],
)
def test_each_process_has_a_device_that_is_there(monkeypatch, has_gpu, num_processes, asked, used):
    state = SimpleNamespace(device=torch.device("cuda:1" if has_gpu else "cpu"), process_index=0)
    state.num_processes = num_processes
    monkeypatch.setattr(harness_model, "join_processes", lambda: state)
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    places = []
    load = {"from_pretrained": lambda name, device_map, **_: places.append(device_map) or make_llada()}
    monkeypatch.setattr(harness_model, "AutoModelForMaskedLM", SimpleNamespace(**load))
    DiffusionHarnessLM("name", tokenizer=make_tokenizer(), device=asked)
    assert places == [torch.device(used)]


def test_virtual_tokens_are_refused_rather_than_left_out():
    config = PromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=2, num_attention_heads=2, num_layers=2, token_dim=16
    )
    with pytest.raises(ValueError, match="virtual tokens"):
        make_lm(get_peft_model(make_llada(), config))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": "auto"}, "batch_size. must be a positive number, got 'auto'"),
        ({"mc_num": 0}, "mc_num. must be a positive number, got 0"),
        ({"model": torch.nn.Linear(1, 1)}, "Linear does not decode by diffusion"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_lm(**arguments)


TASK = """
task: counting
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], do_sample: false, max_gen_toks: 13}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


_COMMAND = "from hf_dparallel.evaluation.lm_eval.__main__ import cli_evaluate; cli_evaluate()"


def command_of(folder, task: str) -> list[str]:
    """The words of the harness's command, with a checkpoint, an adapter and six questions in a folder."""
    save_two_students(folder)
    questions = write_jsonl(folder / "questions.jsonl", [{"question": f"1 {n} 2", "answer": "7"} for n in range(6)])
    (folder / "counting.yaml").write_text(TASK.replace("FILE", questions))
    model = f"pretrained={folder / 'base'},adapter={folder / 'dparallel'},block_length=8,max_new_tokens=16"
    argv = ["--model", "hf-dparallel", "--model_args", model, "--tasks", task, "--include_path", folder]
    argv += ["--gen_kwargs", "entropy_threshold=1.0,max_new_tokens=16", "--device", "cpu", "--log_samples"]
    return [*map(str, argv), "--output_path", str(folder / "out")]


@pytest.mark.slow  # the harness looks through its 15 thousand files
@pytest.mark.parametrize("task", ["counting", "humaneval"])
def test_the_command_of_the_harness_finds_the_model(tmp_path, task):
    argv = [*command_of(tmp_path, task), "--limit", "1"]
    argv += ["--confirm_run_unsafe_code"] if task == "humaneval" else []
    program = [sys.executable, "-m", "hf_dparallel.evaluation.lm_eval"]
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([*program, *argv], capture_output=True, text=True, cwd=DATASETS, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"|{task}" in done.stdout
    (results,) = tmp_path.rglob("results_*.json")
    assert 0 < read_json(results)["config"]["decoding_cost"][task]["nfe"] <= 16


@pytest.mark.slow  # two processes, and each looks through the files of the harness
def test_two_processes_share_the_samples(tmp_path):
    run_in_two_processes(_COMMAND, *command_of(tmp_path, "counting"))
    (samples,) = tmp_path.rglob("samples_counting_*.jsonl")
    assert sorted(row["doc_id"] for row in read_jsonl(samples)) == list(range(6))
