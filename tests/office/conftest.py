"""The office image is large: its tests are collected only when they are asked for (`make test-office`)."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("EXECUTOR_OFFICE") else ["test_*.py"]
