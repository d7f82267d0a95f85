"""The demo on the api level."""

from __future__ import annotations

import lab

from demo.performance import Performance
from demo.steps import Steps


def run(steps: Steps, cluster: lab.Cluster) -> Performance:
    raise NotImplementedError
