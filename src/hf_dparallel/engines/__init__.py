# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Other engines that serve students, SGLang and LMDeploy: how they decode, and what they load.

The plug-in of SGLang is in `hf_dparallel_rules`, because SGLang needs an older transformers.
"""
