"""Kills parts of the system at random moments while pods finish; no pod is stuck or quit early.

A plan is a pure function of a seed, so that a run can be repeated. On the cluster tier the workload
is killed with -9 (`plan`, `play`, `verdict`); the scripted kubelet judges by rules of its own. On
the node tier (`storm`, `outages`) it is workload, Pebble, unit, API server or injector while real
Jobs run; the Job controller, the training-operator and the kubelet judge.

    python -m chaos --pods 200 --kills 50 --seed 7
    python -m chaos --minutes 10 --jobs 300 --seed 7
"""
