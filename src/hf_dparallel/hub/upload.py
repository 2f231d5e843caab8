# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""An upload to a repository on the Hub, and what its refusals mean."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import filter_repo_objects, validate_repo_id
from transformers.utils import logging

from .card import is_replaceable
from .files import CARD_NAME, Content


logger = logging.get_logger(__name__)

_REMEDIES = {
    401: "The token is missing or wrong: log in with `hf auth login`, or set HF_TOKEN.",
    403: "The token may not write there: use one with write access to it, or another name, or `create_pr`.",
    429: "Too many requests: wait some minutes and push again. What has been uploaded is not sent again.",
}


def upload_files(
    files: Mapping[str, Content],
    repo_id: str,
    *,
    repo_type: str = "model",
    describe_other: Callable[[Sequence[str], Callable[[str], str]], str | None],
    replaces: list[str],
    private: bool | None,
    revision: str | None,
    create_pr: bool,
    token: str | None,
    commit_message: str,
) -> CommitInfo:
    """Uploads files in one commit; creates the repository and the branch if there are none.

    A card that was written on the Hub is kept, if the one among `files` is a draft. `describe_other` gets the names of
    the files that the repository has and a function that reads one, and returns what they are, if that is something
    else, which is an error. Files in the repository that match `replaces`, and are not among `files`, are deleted. All
    other arguments are as in [`~huggingface_hub.HfApi.create_commit`].
    """
    api = HfApi(token=token)
    target: dict[str, Any] = {"repo_type": repo_type, "revision": revision}
    with _explained_refusals(repo_id):
        api.create_repo(repo_id, private=private, repo_type=repo_type, exist_ok=True)
        if revision is not None and not create_pr and not revision.startswith("refs/"):
            api.create_branch(repo_id, branch=revision, repo_type=repo_type, exist_ok=True)
        existing = api.list_repo_files(repo_id, **target)

        def read(name: str) -> str:
            return Path(api.hf_hub_download(repo_id, name, **target)).read_text(encoding="utf-8", errors="replace")

        if held := describe_other(existing, read):
            raise ValueError(
                f"`repo_id={repo_id}` exists and holds {held}. Choose another name, or delete that repository first."
            )
        # A card that somebody wrote is uploaded from its own path.
        is_drafted = isinstance(files[CARD_NAME], bytes)
        if is_drafted and CARD_NAME in existing and not is_replaceable(read(CARD_NAME)):
            logger.warning(f"The card of {repo_id!r} was edited on the Hub, and is kept. Delete it there to renew it.")
            files = {name: content for name, content in files.items() if name != CARD_NAME}
        replaced = set(filter_repo_objects(existing, allow_patterns=replaces)) - files.keys()
        changes: list[Any] = [CommitOperationAdd(name, content) for name, content in files.items()]
        changes += [CommitOperationDelete(name) for name in sorted(replaced)]
        return api.create_commit(repo_id, changes, commit_message=commit_message, create_pr=create_pr, **target)


def full_name(repo_id: str, token: str | None) -> str:
    """Returns OWNER/NAME of a repository; the owner is by default the user who is logged in."""
    if "/" in repo_id:
        return repo_id
    with _explained_refusals(repo_id):
        return f"{HfApi(token=token).whoami()['name']}/{repo_id}"


def check_name(repo_id: str) -> None:
    """Refuses a name that no repository can have."""
    with _explained_refusals(repo_id):
        validate_repo_id(repo_id)


@contextlib.contextmanager
def _explained_refusals(repo_id: str) -> Iterator[None]:
    try:
        yield
    except HFValidationError as error:
        raise ValueError(f"`repo_id={repo_id}` is no name of a repository: {error}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        said = " ".join(str(error).split())
        raise OSError(" ".join([f"Could not push to {repo_id!r}.", _REMEDIES.get(status, ""), f"({said})"])) from error
    except LocalTokenNotFoundError as error:
        raise OSError(f"Could not push to {repo_id!r}. {_REMEDIES[401]}") from error
