"""How Hypothesis runs here: the same examples on every run, however busy the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    max_examples=300,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
