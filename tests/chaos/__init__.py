"""Kills the workload with -9 at random moments while pods finish; no pod is stuck or quit early.

The plan is a pure function of a seed, so that a run can be repeated; the scripted kubelet is the
judge, by rules that it does not share with the workload.

    python -m chaos --pods 200 --kills 50 --seed 7
"""
