# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a decode is extended by. One subject is one module; those that revise tokens are in `revision`."""
