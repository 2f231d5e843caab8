# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Other engines that serve students: SGLang, LMDeploy and the published code of a family."""
