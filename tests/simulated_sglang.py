# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""SGLang on a machine without it: stand-ins for its modules, and its diffusion files, if they are there, over them.

    with simulated_sglang():
        from hf_dparallel_rules import sglang_plugin

Every module `sglang...` that no file is found for is a stand-in, whose names are mocks but for those below. This file
does without transformers and the package.
"""

import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import torch


try:
    from transformers import PretrainedConfig
except ImportError:
    PretrainedConfig = object


class DllmAlgorithm:
    def __init__(self, config):
        self.block_size, self.mask_id = config.block_size, config.mask_id


class ModelConfig:
    """What `args.checkpoint` says."""

    @staticmethod
    def from_server_args(args, model_path, model_revision):
        return SimpleNamespace(hf_config=args.checkpoint, vocab_size=args.checkpoint.vocab_size)


class PrefillAdder:
    """Has room for a block of each request."""

    def __init__(self, *args, dllm_config, **kwargs):
        self.block_size, self.can_run_list, self.preempt_list = dllm_config.block_size, [], []

    def add_one_req(self, req, **kwargs):
        req.extend_end = req.prefix_len + self.block_size
        self.can_run_list.append(req)
        return "continue"

    add_dllm_staging_req = add_one_req


class Batch(MagicMock):
    @classmethod
    def init_new(cls, reqs, *args, **kwargs):
        return cls(reqs=reqs, batch_size=lambda: len(reqs))


def as_it_is(args):
    return args


STAND_INS = {
    "sglang.srt.arg_groups.overrides": {"resolving_view": as_it_is},
    "sglang.srt.configs.model_config": {"ModelConfig": ModelConfig},
    "sglang.srt.dllm.algorithm": {"algo_name_to_cls": {}},
    "sglang.srt.dllm.algorithm.base": {"DllmAlgorithm": DllmAlgorithm},
    "sglang.srt.dllm.config": {"ModelConfig": ModelConfig, "resolving_view": as_it_is},
    "sglang.srt.environ": {"envs": MagicMock(**{"SGLANG_PLUGINS.get.return_value": None})},
    "sglang.srt.managers.schedule_batch": {"ScheduleBatch": Batch},
    "sglang.srt.managers.schedule_policy": {
        "AddReqResult": SimpleNamespace(CONTINUE="continue", NO_TOKEN="no token"),
        "PrefillAdder": PrefillAdder,
    },
    "sglang.srt.utils": {"is_npu": lambda: False},
    "sglang.srt.utils.hf_transformers.common": {"PretrainedConfig": PretrainedConfig},
}


class _StandIns:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "sglang" else None

    def create_module(self, spec):
        return ModuleType(spec.name)

    def exec_module(self, module):
        def make_mock(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock()

        # The table of algorithms is filled by the plug-in.
        known = STAND_INS.get(module.__name__, {})
        vars(module).update({name: dict(one) if isinstance(one, dict) else one for name, one in known.items()})
        module.__getattr__ = make_mock


@contextmanager
def simulated_sglang() -> Iterator[None]:
    """Makes SGLang and the plug-in importable, and forgets them at the end."""
    finder = _StandIns()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(("sglang", "hf_dparallel_rules.sglang_plugin"))]:
            del sys.modules[name]


def make_args(checkpoint, algorithm, algorithm_config=None, fdfo=True):
    """Returns the arguments of a server for a checkpoint's configuration; `algorithm_config` is a file."""
    return SimpleNamespace(
        checkpoint=checkpoint,
        model_path="",
        revision=None,
        dllm_algorithm=algorithm,
        dllm_algorithm_config=algorithm_config,
        dllm_fdfo=fdfo,
        max_running_requests=4,
    )


def serve(args, model, prompts, max_new_tokens, stop_token_ids):
    """Decodes in SGLang's rounds, by its algorithm and its scheduling, whose files must be there.

    There is no cache: a pass computes everything up to the block. Returns the tokens and the passes of each prompt.
    """
    from sglang.srt.dllm.algorithm import get_algorithm
    from sglang.srt.dllm.config import DllmConfig
    from sglang.srt.dllm.mixin.req import ReqDllmMixin
    from sglang.srt.dllm.mixin.scheduler import SchedulerDllmMixin

    config = DllmConfig.from_server_args(args)
    algorithm = get_algorithm(config)

    class Request(ReqDllmMixin, MagicMock):
        def init_next_round_input(self, tree_cache=None):
            self._init_fill_ids_for_dllm()
            self.determine_dllm_phase()

        def update_finish_state(self, new_accepted_len):
            length = len(self.output_ids)
            new = range(length - new_accepted_len, length)
            ends = [place + 1 for place in new if self.output_ids[place] in stop_token_ids]
            if ends or length >= max_new_tokens:
                self.answer = self.output_ids[: min([max_new_tokens, *ends])].tolist()

        def finished(self):
            return self.answer is not None

    def make_request(index, prompt):
        ids = {"origin_input_ids": array("q", prompt), "output_ids": array("q")}
        request = Request(rid=index, prefix_len=0, dllm_initialized=False, answer=None, passes=0, seqlen=0, **ids)
        request.init_diffusion_llm(config)
        return request

    class Scheduler(SchedulerDllmMixin, MagicMock):
        def get_num_allocatable_reqs(self, *args, **kwargs):
            return 100

        def stash_chunked_request(self, req):
            req.prefix_len = req.extend_end

    scheduler = Scheduler(enable_priority_preemption=False, dllm_config=config)
    scheduler.model_config.context_len = 10**6
    scheduler.dllm_manager = sys.modules[SchedulerDllmMixin.__module__].DllmManager(config)
    scheduler.waiting_queue = requests = [make_request(*one) for one in enumerate(prompts)]

    while not all(request.finished() for request in requests):
        scheduler.dllm_manager.filter_finished_reqs()
        for request in scheduler.dllm_manager.staging_queue:
            scheduler.finish_dllm_forward(request)
        batch = scheduler.get_new_batch_dllm(MagicMock(reqs=[], batch_is_full=False))
        scheduler.process_batch_result_dllm(batch, _run(algorithm, model, batch.reqs))
    return [(request.answer, request.passes) for request in requests]


def _run(algorithm, model, requests):
    """Runs a round over a block of each request."""

    def forward(batch, pp_proxy_tensors):
        logits = []
        for request, block in zip(requests, batch.input_ids.view(len(requests), -1).tolist(), strict=True):
            request.passes += 1
            assert request.passes < 500, "SGLang decodes forever"
            ids = request.full_untruncated_fill_ids[: request.prefix_len].tolist() + block
            with torch.no_grad():
                logits.append(model(torch.tensor([ids])).logits[0, -len(block) :].float())
        return SimpleNamespace(logits_output=SimpleNamespace(full_logits=torch.cat(logits)), can_run_graph=False)

    blocks = [request.full_untruncated_fill_ids[request.prefix_len : request.extend_end] for request in requests]
    batch = SimpleNamespace(
        input_ids=torch.tensor([token for block in blocks for token in block]),
        batch_size=len(requests),
        dllm_prompt_mask=None,
    )
    states = [request.dllm_algo_state for request in requests]
    _, next_token_ids, lengths, states, _ = algorithm.run(SimpleNamespace(forward=forward), batch, states)
    return SimpleNamespace(
        copy_done=None,
        next_token_ids=next_token_ids,
        accept_length_per_req_cpu=lengths,
        dllm_algo_state=states,
        can_run_cuda_graph=False,
    )
