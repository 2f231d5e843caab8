# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Renders chats by the template of a tokenizer, and tells the answer from what was asked."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..hashes import stable_hash
from .messages import CALLS, THOUGHTS, Message


# Stands for a text that a template is to write, and is in no template itself.
_PROBE = "PROBE"


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns the token ids of a text that is to be continued.

    They begin with the tokens that the tokenizer puts before texts (BOS), once, and have none that close a text.
    """
    _check_is_unicode(text)
    ids = tokenizer(text, add_special_tokens=True)["input_ids"]
    own = tokenizer(text, add_special_tokens=False)["input_ids"]

    start = 0
    while start < len(ids) and ids[start : start + len(own)] != own:
        start += 1
    if start == len(ids):
        start = 0

    has_them_already = own[:start] == ids[:start]
    return own if has_them_already else ids[: start + len(own)]


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
        if not _mentions(template, name):
            raise ValueError(f"The chat template does not use `{name}`. Remove it, or use another template.")

    text = _render(tokenizer, messages, add_generation_prompt=add_generation_prompt, **arguments)
    # Some templates forget questions before the last ones, which is their memory.
    last_question = [message for message in messages if message["role"] == "user"][-1:]
    instructions = [message for message in messages if message["role"] in ("system", "developer")]
    for message in instructions + last_question:
        if message["content"].strip() not in text:
            raise ValueError(f"The chat template leaves out the {message['role']} message. Move its text elsewhere.")
    return text


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **arguments: Any) -> list[int]:
    """Returns the token ids of a chat, whose arguments are those of [`render_chat`]."""
    text = render_chat(tokenizer, messages, **arguments)
    _check_is_unicode(text)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


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
    probes: list[tuple[str, int, str]] = []
    probing = []
    for number, message in enumerate(messages):
        changed = dict(message)
        for name, value in _shown_by_template(message).items():
            words: list[str] = []
            # A thought may stand there by two names, of which templates read one.
            kind = str(value) if name in THOUGHTS else name
            changed[name] = _with_probes(value, f"{number}{stable_hash(kind)}", words)
            probes += [(word, number, name) for word in words]
        probing.append(changed)
    if not probes:
        return

    text = _render(tokenizer, probing, **arguments)
    forgotten = set()
    for word, number, name in probes:
        if word in text or name in forgotten:
            continue

        as_last = probing[: number + 1]
        if name in THOUGHTS and word in _render(tokenizer, as_last, **arguments | {"add_generation_prompt": False}):
            forgotten.add(name)
            continue
        raise ValueError(
            f"The chat template leaves out `{name}` of message {number}, of the {messages[number]['role']}. Write it "
            "into a `content`, drop such rows, or use another template."
        )


def _shown_by_template(message: Message) -> Message:
    """Returns the parts of a message that not every template writes, if they are not empty."""
    names = ("content",) if message["role"] == "tool" else (*CALLS, *THOUGHTS)
    return {name: message[name] for name in names if message.get(name)}


def _with_probes(value: Any, place: str, words: list[str]) -> Any:
    """Returns a thought, or calls, with other words in it, which are added to `words`."""
    if isinstance(value, list):
        return [_with_probes(call, place, words) for call in value]
    if isinstance(value, dict) and "function" in value:
        return {**value, "function": _with_probes(value["function"], place, words)}

    word = f"{_PROBE}{place}{len(words)}END"
    words.append(word)
    if not isinstance(value, dict):
        return word
    argument = f"{word}ARGUMENT"
    words.append(argument)
    return {**value, "name": word, "arguments": {argument: 1}}


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **arguments: Any) -> str:
    """Returns what the chat template writes. Raises a `ValueError` if it refuses."""
    try:
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
            takes_texts = _has_python(text, messages)
        except TypeError:
            # Templates such as DeepSeek-V3's add the arguments of a call to a text.
            takes_texts = any(map(_calls_of, messages))
            if not takes_texts:
                raise

        if takes_texts:
            text = tokenizer.apply_chat_template(_with_json_texts(messages), tokenize=False, **arguments)
    except (TemplateError, TypeError) as error:
        roles = ", ".join(str(message["role"]) for message in messages)
        raise ValueError(f"The chat template refuses the messages ({roles}): {error}") from error
    return text


def _has_python(text: str, messages: Sequence[Message]) -> bool:
    """Tells whether a template has written the arguments of a call alone in Python's form, instead of JSON."""
    for message in messages:
        for call in _calls_of(message):
            arguments = call["arguments"]
            alone = text.replace(f"'arguments': {arguments}", "")
            if str(arguments) in alone and _as_json(arguments) not in text:
                return True
    return False


def _calls_of(message: Message) -> list[dict[str, Any]]:
    """Returns the calls of a message, each with `name` and `arguments`."""
    calls = [call.get("function", call) for call in message.get("tool_calls", ())]
    if "function_call" in message:
        calls.append(message["function_call"])
    return calls


def _with_json_texts(messages: Sequence[Message]) -> list[Message]:
    """Returns messages in which the arguments of calls are JSON texts."""
    changed = copy.deepcopy(list(messages))
    for message in changed:
        for call in _calls_of(message):
            call["arguments"] = _as_json(call["arguments"])
    return changed


def _as_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


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


def _mentions(template: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def _check_is_unicode(text: str) -> None:
    """Raises a `ValueError` if a text was read from bytes in another encoding than UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("The prompt is not UTF-8 text. Convert it: `iconv -f latin1 -t utf-8`.") from error
