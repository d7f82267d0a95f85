"""Kills parts of the system at random moments while real Jobs run; all end as they were written.

A storm is a pure function of a seed, so that a run can be repeated. Workload, Pebble, unit, API
server and injector are killed. The Job controller, the training-operator and the kubelet judge.

    python -m chaos --minutes 10 --jobs 300 --seed 7
"""
