# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What `transformers serve` lacks for these models: requests that share forward passes, and settings of decoding.

The endpoints are OpenAI's. `transformers serve` decodes one request of such a model after the other, and ignores the
fields of a request that it does not know.
"""
