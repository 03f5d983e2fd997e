"""The backend that tests/test_backends.py drives: transformers, or what BMRL_TEST_BACKEND names. Imported first."""

import os

from bmrl import backend

NAME = os.environ.get("BMRL_TEST_BACKEND", "transformers")
if NAME == "unsloth":
    backend.start()
