# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A Hub on this machine: as much of its HTTP API as pushing and loading models and data sets needs.

Repositories have commits, branches and pull requests. Every file is small, and part of its commit.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import unquote, urlparse

from .. import HUB_SOCKET


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@dataclass
class Repository:
    """Files by commit; branches, tags and pull requests are names of commits."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})
    refs: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})

    def commit(self, revision: str) -> str | None:
        return self.refs.get(revision, revision if revision in self.commits else None)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.commit(revision)]


class Hub:
    """The state of the server, which tests look at and change."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.tokens: dict[str, str] = {"hf_owner": "user", "hf_stranger": "stranger"}
        self.requests: list[str] = []
        self.address = ""

    def repository(self, repo_id: str, kind: str = "models") -> Repository:
        return self.repositories[f"{kind}/{repo_id}"]


class Refusal(Exception):
    """A status, the code that huggingface_hub goes by, a message, and for a missing file its commit."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args) -> None:
        pass

    def handle_request(self) -> None:
        self.route = unquote(urlparse(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.requests.append(f"{self.command} {self.route}")
        self.user = self.hub.tokens.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
        try:
            if "Authorization" in self.headers and self.user is None:
                raise Refusal(401, "", "Invalid user token.")
            matches = ((re.fullmatch(pattern, self.route), method) for pattern, method in ROUTES)
            match, method = next(((match, method) for match, method in matches if match), (None, ""))
            if match is None:
                raise Refusal(404, "", "No such route")
            getattr(self, method)(**match.groupdict())
        except Refusal as refusal:
            status, code, message, *commit = refusal.args
            headers = {"X_Error_Message": message, "X_Error_Code": code}
            headers |= {"X_Repo_Commit": commit[0]} if commit else {}
            self.json({"error": message}, status, **headers)

    do_GET = do_POST = do_HEAD = handle_request

    # Answers

    def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, value, status: int = 200, **headers: str) -> None:
        self.answer(json.dumps(value).encode(), status, Content_Type="application/json", **headers)

    def find(self, kind: str | None, repo_id: str, revision: str | None) -> tuple[Repository, str]:
        """Returns a repository and a commit of it."""
        repository = self.hub.repositories.get(f"{kind or 'models'}/{repo_id}")
        if repository is None:
            raise Refusal(404, "RepoNotFound", "Repository not found")
        commit = repository.commit(revision or "main")
        if commit is None:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, commit

    # Routes

    def whoami(self) -> None:
        if self.user is None:
            raise Refusal(401, "", "Invalid username or password.")
        self.json({"name": self.user, "type": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def create(self) -> None:
        wanted = json.loads(self.body)
        owner = wanted.get("organization") or self.user
        if self.user is None:
            raise Refusal(401, "", "Invalid username or password.")
        if owner != self.user:
            raise Refusal(403, "", f'You don\'t have the rights to create a model under the namespace "{owner}"')
        repo_id = f"{owner}/{wanted['name']}"
        key = f"{wanted.get('type') or 'model'}s/{repo_id}"
        exists = key in self.hub.repositories
        self.hub.repositories.setdefault(key, Repository(private=wanted.get("visibility") == "private"))
        prefix = "" if key.startswith("models/") else f"{key.partition('/')[0]}/"
        answer = {"url": f"{self.hub.address}/{prefix}{repo_id}", "name": repo_id, "id": repo_id}
        self.json(answer, 409 if exists else 200)

    def validate_yaml(self) -> None:
        self.json({"errors": [], "warnings": []})

    def create_branch(self, kind: str, repo_id: str, name: str) -> None:
        repository, commit = self.find(kind, repo_id, None)
        exists = name in repository.refs
        repository.refs.setdefault(name, commit)
        self.json({}, 409 if exists else 200)

    def preupload(self, kind: str, repo_id: str, revision: str) -> None:
        body = json.loads(self.body)
        ignored = [line.rstrip("/") for line in body.get("gitIgnore", "").splitlines()]
        answers = [
            {
                "path": file["path"],
                "uploadMode": "regular",
                "shouldIgnore": any(fnmatch(file["path"].split("/")[0], pattern) for pattern in ignored),
                "oid": None,
            }
            for file in body["files"]
        ]
        self.json({"files": answers})

    def commit(self, kind: str, repo_id: str, revision: str) -> None:
        repository, parent = self.find(kind, repo_id, revision)
        if self.user != repo_id.split("/")[0]:
            raise Refusal(403, "", "You have no write access to this repository")
        files = dict(repository.commits[parent])
        for line in self.body.splitlines():
            change = json.loads(line)
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "deletedFile":
                del files[value["path"]]
        commit = sha1(parent.encode() + self.body)
        repository.commits[commit] = files
        answer = {"success": True, "commitUrl": f"{self.hub.address}/{repo_id}/commit/{commit}", "commitOid": commit}
        repository.refs[revision] = commit
        self.json(answer)

    def commits(self, kind: str, repo_id: str, revision: str) -> None:
        commit = self.find(kind, repo_id, revision)[1]
        self.json([{"id": commit, "title": "", "message": "", "date": "2026-01-01T00:00:00.000Z", "authors": []}])

    def discussions(self, kind: str, repo_id: str) -> None:
        self.json({"discussions": [], "count": 0, "start": 0})

    def info(self, kind: str, repo_id: str, revision: str | None = None) -> None:
        repository, commit = self.find(kind, repo_id, revision)
        siblings = [{"rfilename": name} for name in repository.commits[commit]]
        state = {"private": repository.private, "tags": [], "downloads": 0, "likes": 0, "disabled": False}
        self.json({"id": repo_id, "sha": commit, "siblings": siblings, **state})

    def tree(self, kind: str, repo_id: str, revision: str, folder: str | None = None) -> None:
        repository, commit = self.find(kind, repo_id, revision)
        prefix = f"{folder.strip('/')}/" if folder else ""
        files = {name: text for name, text in repository.commits[commit].items() if name.startswith(prefix)}
        if prefix and not files:
            raise Refusal(404, "EntryNotFound", "Not found")
        folders = {str(parent) for name in files for parent in PurePosixPath(name).parents} - {"."}
        entries = [{"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in folders]
        for name, content in files.items():
            entries.append({"type": "file", "path": name, "size": len(content), "oid": sha1(content)})
        self.json(entries)

    def resolve(self, repo_id: str, revision: str, name: str, kind: str | None = None) -> None:
        repository, commit = self.find(kind, repo_id, revision)
        content = repository.commits[commit].get(name)
        if content is None:
            raise Refusal(404, "EntryNotFound", "Entry not found", commit)
        self.answer(content, ETag=f'"{sha1(content)}"', X_Repo_Commit=commit)


_REPO = r"(?P<repo_id>[^/]+/[^/]+)"
_API = rf"/api/(?P<kind>models|datasets|spaces)/{_REPO}"
_REVISION = r"(?P<revision>refs/[^/]+/[^/]+|[^/]+)"
ROUTES = [
    (r"/api/whoami-v2", "whoami"),
    (r"/api/repos/create", "create"),
    (r"/api/validate-yaml", "validate_yaml"),
    (rf"{_API}/branch/(?P<name>.+)", "create_branch"),
    (rf"{_API}/preupload/{_REVISION}", "preupload"),
    (rf"{_API}/commit/{_REVISION}", "commit"),
    (rf"{_API}/commits/{_REVISION}", "commits"),
    (rf"{_API}/discussions", "discussions"),
    (rf"{_API}/tree/{_REVISION}(?P<folder>/.*)?", "tree"),
    (rf"{_API}/revision/{_REVISION}", "info"),
    (_API, "info"),
    (rf"/(?:(?P<kind>datasets)/)?{_REPO}/resolve/{_REVISION}/(?P<name>.+)", "resolve"),
]


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Answers at HF_ENDPOINT."""
    hub = Hub()
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(HUB_SOCKET.getsockname(), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = HUB_SOCKET.dup()
    hub.address = "http://{}:{}".format(*HUB_SOCKET.getsockname())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
