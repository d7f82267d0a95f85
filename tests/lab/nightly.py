"""Whether this is a run of the night, which has time for what `make test` leaves out."""

from __future__ import annotations

import os

NIGHTLY = bool(os.environ.get("NIGHTLY"))
"""True with NIGHTLY=1: `tests/conftest.py` then keeps tests marked `nightly("why")`."""
