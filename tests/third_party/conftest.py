"""Other people's libraries are in an environment of their own: see ``make test-third-party``."""

import os

if os.environ.get("FUNCAOT_THIRD_PARTY") != "1":
    collect_ignore_glob = ["test_*.py"]
