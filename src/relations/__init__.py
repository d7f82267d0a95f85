"""The charm's relations.

`istio` reads where Istio is, `tls` reads certificates of a PKI. `sidecar` serves charms that want a
sidecar, `cos` the observability stack.
"""

from __future__ import annotations

import json
from typing import Final

# Characters of another charm's text that a status or the log shows.
_LONGEST: Final = 60


def shown(text: str) -> str:
    """Return another charm's text for a status or the log: quoted, one line, not long."""
    return json.dumps(text[:_LONGEST]) + ("…" if len(text) > _LONGEST else "")
