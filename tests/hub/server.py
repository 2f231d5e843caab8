# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A Hub on this machine: as much of its HTTP API as pushing and loading models and data sets needs, and its faults.

Repositories have commits, branches, pull requests, and may be private; large files go through the LFS protocol. Tests
tell it to fail: see [`Hub.fail`].
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

from .. import HUB_SOCKET


LFS_SUFFIXES = (".safetensors", ".bin", ".parquet")


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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


@dataclass
class Fault:
    """What happens to requests with this method whose path matches; `times` of them."""

    method: str
    path: str
    status: int
    times: int
    headers: dict[str, str] = field(default_factory=dict)


class Hub:
    """The state of the server, which tests look at and change."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.large_files: dict[str, bytes] = {}
        self.tokens: dict[str, str] = {"hf_owner": "user", "hf_stranger": "stranger"}
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.corrupt: Callable[[str, bytes], bytes] = lambda name, content: content
        self.address = ""

    def repository(self, repo_id: str, kind: str = "models") -> Repository:
        return self.repositories[f"{kind}/{repo_id}"]

    def fail(self, method: str, path: str, status: int, times: int = 1, **headers: str) -> None:
        """Lets the next `times` requests fail: with `status`, or by closing the connection (status 0)."""
        self.faults.append(Fault(method, path, status, times, headers))

    def count(self, pattern: str) -> int:
        """How many requests (`METHOD /path`) match."""
        return sum(re.search(pattern, request) is not None for request in self.requests)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args) -> None:
        pass

    def handle_request(self) -> None:
        self.route = unquote(urlparse(self.path).path)
        self.body = self.read_body()
        self.hub.requests.append(f"{self.command} {self.route}")
        self.user = self.hub.tokens.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
        if self.fails():
            return
        if "Authorization" in self.headers and self.user is None:
            self.error(401, None, "Invalid user token.")
            return
        for pattern, method in ROUTES:
            if match := re.fullmatch(pattern, self.route):
                getattr(self, method)(**match.groupdict())
                return
        self.error(404, None, "No such route")

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = handle_request

    # Answers

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, value, status: int = 200, **headers: str) -> None:
        self.answer(json.dumps(value).encode(), status, Content_Type="application/json", **headers)

    def error(self, status: int, code: str | None, message: str, **headers: str) -> None:
        codes = {"X_Error_Code": code} if code else {}
        self.json({"error": message}, status, X_Error_Message=message, **codes, **headers)

    def fails(self) -> bool:
        for fault in self.hub.faults:
            if fault.times and fault.method == self.command and re.search(fault.path, self.route):
                fault.times -= 1
                if fault.status == 0:
                    self.close_connection = True
                    self.connection.close()
                else:
                    self.error(fault.status, None, "This request was told to fail.", **fault.headers)
                return True
        return False

    def find(self, kind: str | None, repo_id: str) -> Repository | None:
        """The repository, if the user may see it. What is hidden does not exist, as on the Hub."""
        repository = self.hub.repositories.get(f"{kind or 'models'}/{repo_id}")
        if repository is None or (repository.private and self.user != repo_id.split("/")[0]):
            self.error(401 if self.user is None else 404, "RepoNotFound", "Repository not found")
            return None
        return repository

    def find_commit(self, repository: Repository, revision: str) -> str | None:
        commit = repository.commit(revision)
        if commit is None:
            self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    # Routes

    def whoami(self) -> None:
        if self.user is None:
            self.error(401, None, "Invalid username or password.")
        else:
            self.json({"name": self.user, "type": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def create(self) -> None:
        wanted = json.loads(self.body)
        owner = wanted.get("organization") or self.user
        if self.user is None:
            return self.error(401, None, "Invalid username or password.")
        if owner != self.user:
            return self.error(403, None, f'You don\'t have the rights to create a model under the namespace "{owner}"')
        repo_id = f"{owner}/{wanted['name']}"
        key = f"{wanted.get('type') or 'model'}s/{repo_id}"
        exists = key in self.hub.repositories
        self.hub.repositories.setdefault(key, Repository(private=wanted.get("visibility") == "private"))
        prefix = "" if key.startswith("models/") else f"{key.partition('/')[0]}/"
        answer = {"url": f"{self.hub.address}/{prefix}{repo_id}", "name": repo_id, "id": repo_id}
        return self.json(answer, 409 if exists else 200)

    def validate_yaml(self) -> None:
        self.json({"errors": [], "warnings": []})

    def create_branch(self, kind: str, repo_id: str, name: str) -> None:
        repository = self.find(kind, repo_id)
        if repository is None:
            return
        if name in repository.refs:
            self.error(409, None, "Reference already exists")
            return
        repository.refs[name] = repository.refs["main"]
        self.json({})

    def preupload(self, kind: str, repo_id: str, revision: str) -> None:
        body = json.loads(self.body)
        ignored = [line.rstrip("/") for line in body.get("gitIgnore", "").splitlines()]
        answers = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LFS_SUFFIXES) else "regular",
                "shouldIgnore": any(fnmatch(file["path"].split("/")[0], pattern) for pattern in ignored),
                "oid": None,
            }
            for file in body["files"]
        ]
        self.json({"files": answers})

    def lfs_batch(self, kind: str | None, repo_id: str) -> None:
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.hub.address}/lfs/{wanted['oid']}"}}
            actions = {} if wanted["oid"] in self.hub.large_files else {"actions": upload}
            objects.append({"oid": wanted["oid"], "size": wanted["size"], **actions})
        self.json({"transfer": "basic", "objects": objects})

    def lfs_upload(self, oid: str) -> None:
        if sha256(self.body) != oid:
            self.error(400, None, "The content is not that of the oid")
            return
        self.hub.large_files[oid] = self.body
        self.json({})

    def commit(self, kind: str, repo_id: str, revision: str) -> None:
        repository = self.find(kind, repo_id)
        parent = repository and self.find_commit(repository, revision)
        if not parent:
            return
        if self.user != repo_id.split("/")[0] and "create_pr=1" not in self.path:
            self.error(403, None, "You have no write access to this repository")
            return
        files = dict(repository.commits[parent])
        for line in self.body.splitlines():
            change = json.loads(line)
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile":
                files[value["path"]] = self.hub.large_files[value["oid"]]
            elif change["key"] == "deletedFile":
                del files[value["path"]]
        commit = sha1(parent.encode() + self.body)
        repository.commits[commit] = files
        answer = {"success": True, "commitUrl": f"{self.hub.address}/{repo_id}/commit/{commit}", "commitOid": commit}
        if "create_pr=1" in self.path:
            name = f"refs/pr/{1 + sum(ref.startswith('refs/pr/') for ref in repository.refs)}"
            repository.refs[name] = commit
            answer["pullRequestUrl"] = f"{self.hub.address}/{repo_id}/discussions/{name.rpartition('/')[2]}"
        else:
            repository.refs[revision] = commit
        self.json(answer)

    def info(self, kind: str, repo_id: str, revision: str = "main") -> None:
        repository = self.find(kind, repo_id)
        commit = repository and self.find_commit(repository, revision or "main")
        if commit:
            siblings = [{"rfilename": name} for name in repository.commits[commit]]
            state = {"private": repository.private, "tags": [], "downloads": 0, "likes": 0, "disabled": False}
            self.json({"id": repo_id, "sha": commit, "siblings": siblings, **state})

    def tree(self, kind: str, repo_id: str, revision: str, folder: str | None = None) -> None:
        repository = self.find(kind, repo_id)
        commit = repository and self.find_commit(repository, revision)
        if commit:
            files = repository.commits[commit]
            prefix = f"{folder.strip('/')}/" if folder and folder.strip("/") else ""
            names = [name for name in files if name.startswith(prefix)]
            if prefix and not names:
                self.error(404, "EntryNotFound", "Not found")
                return
            folders = {
                prefix + "/".join(parts[:depth])
                for parts in (name.removeprefix(prefix).split("/") for name in names)
                for depth in range(1, len(parts))
            }
            if "recursive=true" not in self.path.lower():
                folders = {name for name in folders if "/" not in name.removeprefix(prefix)}
                names = [name for name in names if "/" not in name.removeprefix(prefix)]
            self.json(self.entries(files, names, sorted(folders)))

    def paths_info(self, kind: str, repo_id: str, revision: str) -> None:
        repository = self.find(kind, repo_id)
        commit = repository and self.find_commit(repository, revision)
        if commit:
            form = dict(part.split("=", 1) for part in unquote(self.body.decode()).split("&") if "=" in part)
            wanted = json.loads(self.body)["paths"] if self.body.startswith(b"{") else [form.get("paths", "")]
            files = repository.commits[commit]
            folders = [n for n in wanted if n not in files and any(f.startswith(f"{n}/") for f in files)]
            self.json(self.entries(files, [name for name in wanted if name in files], folders))

    def entries(self, files: dict[str, bytes], names: list[str], folders: list[str]) -> list[dict]:
        entries = [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in folders]
        for name in names:
            entry = {"type": "file", "path": name, "size": len(files[name]), "oid": sha1(files[name])}
            if name.endswith(LFS_SUFFIXES):
                entry["lfs"] = {"oid": sha256(files[name]), "size": len(files[name]), "pointerSize": 134}
            entries.append(entry)
        return entries

    def resolve(self, repo_id: str, revision: str, name: str, kind: str | None = None) -> None:
        repository = self.find(kind, repo_id)
        commit = repository and self.find_commit(repository, revision)
        if not commit:
            return
        content = repository.commits[commit].get(name)
        if content is None:
            self.error(404, "EntryNotFound", "Entry not found", X_Repo_Commit=commit)
            return
        etag = sha256(content) if name.endswith(LFS_SUFFIXES) else sha1(content)
        headers = {"ETag": f'"{etag}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        sent = self.hub.corrupt(name, content) if self.command == "GET" else content
        if requested := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(requested[1]), int(requested[2] or len(sent) - 1)
            headers["Content_Range"] = f"bytes {start}-{min(end, len(sent) - 1)}/{len(sent)}"
            self.answer(sent[start : end + 1], 206, **headers)
        else:
            self.answer(sent, **headers)


_REPO = r"(?P<repo_id>[^/]+/[^/]+)"
_API = rf"/api/(?P<kind>models|datasets|spaces)/{_REPO}"
_REVISION = r"(?P<revision>refs/[^/]+/[^/]+|[^/]+)"
ROUTES = [
    (r"/api/whoami-v2", "whoami"),
    (r"/api/repos/create", "create"),
    (r"/api/validate-yaml", "validate_yaml"),
    (r"/lfs/(?P<oid>\w+)", "lfs_upload"),
    (rf"{_API}/branch/(?P<name>.+)", "create_branch"),
    (rf"{_API}/preupload/{_REVISION}", "preupload"),
    (rf"{_API}/commit/{_REVISION}", "commit"),
    (rf"{_API}/tree/{_REVISION}(?P<folder>/.*)?", "tree"),
    (rf"{_API}/paths-info/{_REVISION}", "paths_info"),
    (rf"{_API}/revision/{_REVISION}", "info"),
    (_API, "info"),
    (rf"/(?:(?P<kind>datasets)/)?{_REPO}\.git/info/lfs/objects/batch", "lfs_batch"),
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
