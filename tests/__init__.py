# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Set before huggingface_hub is imported, which reads it then: tests know no Hub and no cache but their own."""

import atexit
import gc
import os
import shutil
import socket
import tempfile


# A third of the seconds of importing all libraries and tests are spent on looking for garbage, of which there is none.
gc.disable()

# Where tests/hub answers; to all other tests the Hub is offline.
HUB_SOCKET = socket.create_server(("127.0.0.1", 0))
# A process that a test starts, and that may be killed, has its folder inside that of the first.
_folder = tempfile.mkdtemp(prefix="hf-dparallel-tests-", dir=os.environ.get("HF_DPARALLEL_TESTS"))
os.environ.setdefault("HF_DPARALLEL_TESTS", _folder)
atexit.register(shutil.rmtree, _folder, ignore_errors=True)

os.environ.update(
    HF_ENDPOINT=f"http://127.0.0.1:{HUB_SOCKET.getsockname()[1]}",
    HF_HUB_CACHE=os.path.join(_folder, "hub"),
    HF_HUB_DISABLE_TELEMETRY="1",
    # Large files then go through the LFS protocol.
    HF_HUB_DISABLE_XET="1",
    HF_HUB_OFFLINE="1",
    HF_MODULES_CACHE=os.path.join(_folder, "modules"),
    HF_TOKEN_PATH=os.path.join(_folder, "token"),
)
os.environ.pop("HF_TOKEN", None)
