"""Lets Job-like pods run on Istio: an admission webhook, and controllers for quit and repair.

`serve` runs one process, `wiring` says which controllers it has, and `watches` what it watches.
`serving` is the HTTP server of both ports, and limits their connections.
`settings` has all options, `rights` what an account needs for them, `status` what the status port
answers and when the charm is woken, `telemetry` metrics, log and Events, and `tasks` how tasks run,
end and wait for their turn.
"""

from functools import cache
from hashlib import sha256
from pathlib import Path


@cache
def revision() -> str:
    """Return a digest of `model`, which charm and workload share. Versions only count releases."""
    files = sorted(Path(__file__).with_name("model").glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]
