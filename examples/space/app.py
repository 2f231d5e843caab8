# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A page that answers a question with a base model and with its student: `python app.py`."""

import os

from hf_dparallel import demo
from hf_dparallel.inspection.play import make_page


page = make_page(os.environ.get("STUDENT", demo.STUDENT))

if __name__ == "__main__":
    page.launch()
