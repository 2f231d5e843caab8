# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Renders chats by the template of a tokenizer, and tells the answer from what was asked."""

import copy
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..generation.answerer import Answerer
from ..hashes import stable_hash
from .messages import THOUGHTS, Message


# Stands for an answer or an argument, and is in no template itself.
_PROBE = "PROBE"


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns the token ids of a text that is to be continued.

    They begin with the tokens that the tokenizer puts before texts (BOS), once, and have none that close a text.
    """
    _check_is_unicode(text)
    ids = tokenizer(text, add_special_tokens=True)["input_ids"]
    own = tokenizer(text, add_special_tokens=False)["input_ids"]
    start = next((start for start in range(len(ids)) if ids[start : start + len(own)] == own), 0)
    return own if own[:start] == ids[:start] else ids[: start + len(own)]


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **chat_template_kwargs: Any,
) -> str:
    """Returns a chat as text. Raises a `ValueError` if the template refuses or leaves out what it is given."""
    arguments = dict(chat_template_kwargs)
    if tools:
        arguments["tools"] = tools
    template = tokenizer.get_chat_template(tools=tools)
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ValueError(f"The chat template does not use `{name}`. Remove it, or use another template.")

    text = _render(tokenizer, messages, add_generation_prompt=add_generation_prompt, **arguments)
    # Some templates forget questions before the last ones, which is their memory.
    last_question = next((message for message in reversed(messages) if message["role"] == "user"), None)
    for message in messages:
        is_needed = message["role"] in ("system", "developer") or message is last_question
        if is_needed and message["content"].strip() not in text:
            raise ValueError(f"The chat template leaves out the {message['role']} message. Move its text elsewhere.")
    return text


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **arguments: Any) -> list[int]:
    """Returns the token ids of a chat, whose arguments are those of [`render_chat`]."""
    text = render_chat(tokenizer, messages, **arguments)
    _check_is_unicode(text)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def encode_messages(answerer: Answerer, messages: Sequence[Message]) -> list[int]:
    """Returns the token ids of a chat for a model, with the arguments of its recipe for the chat template."""
    return encode_chat(answerer.tokenizer, messages, **answerer.config.chat_template_kwargs or {})


def encode_answer(
    tokenizer: PreTrainedTokenizerBase, prompt: list[Message], answer: Message, **arguments: Any
) -> tuple[list[int], list[int]]:
    """Returns the token ids of a prompt, and those that the chat template writes for the answer to it.

    The prompt ends with the generation prompt, as at inference. Raises a `ValueError` if the template leaves out a
    part of the answer, or writes the prompt otherwise when an answer follows.
    """
    asked = render_chat(tokenizer, prompt, **arguments)
    _check_is_unicode(asked)
    unasked = render_chat(tokenizer, prompt, add_generation_prompt=False, **arguments)
    answered = render_chat(tokenizer, [*prompt, answer], add_generation_prompt=False, **arguments)
    if asked == unasked:
        answered = answered.removesuffix(_closing(tokenizer, prompt, asked, arguments))

    prompt_ids = tokenizer(asked, add_special_tokens=False)["input_ids"]
    ids = tokenizer(answered, add_special_tokens=False)["input_ids"]
    if ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError(
            "The chat template renders the prompt differently when a completion follows, so the completion cannot be "
            "separated from it. Tokenize the rows yourself and pass `prompt_ids` and `completion_ids`."
        )

    # Templates change the spaces around a text, and around a thought in it.
    written = "".join(answered.removeprefix(unasked).split())
    if "".join(answer["content"].split()) not in written:
        raise ValueError(
            "The chat template leaves out a part of the answer's `content`, or changes it. Remove that part, or use "
            "another template."
        )
    return prompt_ids, ids[len(prompt_ids) :]


def check_is_written(tokenizer: PreTrainedTokenizerBase, messages: list[Message], **arguments: Any) -> None:
    """Raises a `ValueError` if the chat template leaves out calls of tools, their results or thoughts.

    The template is asked to write words in their places that it cannot have from elsewhere. It may forget thoughts
    before the last answer, as at inference, if it writes thoughts at all.
    """
    probed = copy.deepcopy(messages)
    probes = []
    for number, message in enumerate(probed):
        for index, call in enumerate(_calls([message])):
            word = f"PROBE{number}CALL{index}END"
            call["name"] = word
            call["arguments"] = {word: 1}
            probes.append((word, 2, number, "tool_calls" if "tool_calls" in message else "function_call"))
        for name in ("content",) if message["role"] == "tool" else THOUGHTS:
            if message.get(name):
                # A thought that stands there by two names has one word: templates read one of them.
                word = f"PROBE{number}TEXT{stable_hash(message[name])}END"
                message[name] = word
                probes.append((word, 1, number, name))

    if not probes:
        return

    text = _render(tokenizer, probed, **arguments)
    arguments["add_generation_prompt"] = False
    for word, count, number, name in probes:
        if text.count(word) >= count:
            continue
        if name in THOUGHTS and word in _render(tokenizer, probed[: number + 1], **arguments):
            continue
        raise ValueError(
            f"The chat template leaves out `{name}` of message {number}, of the {messages[number]['role']}. Write it "
            "into a `content`, drop such rows, or use another template."
        )


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **arguments: Any) -> str:
    """Returns what the chat template writes. Raises a `ValueError` if it refuses."""
    try:
        if any(_calls(messages)) and _takes_texts(tokenizer, messages, **arguments):
            messages = copy.deepcopy(messages)
            for call in _calls(messages):
                call["arguments"] = json.dumps(call["arguments"], ensure_ascii=False)

        return tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    except (TemplateError, TypeError) as error:
        roles = ", ".join(str(message["role"]) for message in messages)
        raise ValueError(f"The chat template refuses the messages ({roles}): {error}") from error


def _calls(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Yields the calls in messages, each with `name` and `arguments`."""
    for message in messages:
        for call in (*message.get("tool_calls", ()), message.get("function_call")):
            if call:
                yield call.get("function", call)


def _takes_texts(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **arguments: Any) -> bool:
    """Tells whether a template takes the arguments of calls as texts, as DeepSeek-V3's does.

    Of objects it makes nothing, or it writes them in Python's form. They are a probe, which no message quotes.
    """
    probed = copy.deepcopy(messages)
    probe = {_PROBE: 1}
    for call in _calls(probed):
        call["arguments"] = probe
    try:
        text = tokenizer.apply_chat_template(probed, tokenize=False, **arguments)
    except TypeError:
        return True

    # Some write a call as a whole in Python's form.
    alone = text.replace(f"'arguments': {probe}", "")
    return str(probe) in alone and json.dumps(probe) not in text


def _closing(tokenizer: PreTrainedTokenizerBase, prompt: list[Message], asked: str, arguments: dict[str, Any]) -> str:
    """Returns what a template without a switch for the generation prompt writes after an answer: LLaDA's, that prompt.

    Args:
        asked (`str`): the prompt as [`render_chat`] writes it.
    """
    try:
        # A template that raises without a message writes nothing after one. Before the first it may write BOS.
        alone = tokenizer.apply_chat_template([[]], tokenize=False)[0].removeprefix(tokenizer.bos_token or "")
    except TemplateError:
        return ""

    # What it writes without a message stands before the chat, behind it, or, which cannot be told apart, in both.
    answer = {"role": "assistant", "content": _PROBE}
    probed = render_chat(tokenizer, [*prompt, answer], add_generation_prompt=False, **arguments)
    if probed.rpartition(_PROBE)[2].endswith(alone):
        return alone
    if asked.removeprefix(tokenizer.bos_token or "").startswith(alone):
        return ""
    raise ValueError(
        "The chat template writes a text before each chat and its generation prompt after each answer, so that the "
        "end of an answer cannot be told. Tokenize the rows yourself and pass `prompt_ids` and `completion_ids`."
    )


def _check_is_unicode(text: str) -> None:
    """Raises a `ValueError` if a text was read from bytes in another encoding than UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("The prompt is not UTF-8 text. Convert it: `iconv -f latin1 -t utf-8`.") from error
