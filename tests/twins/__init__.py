"""Job-like pods beside their twins: each once with istio-aux, once with Istio's injection alone.

`manifests` draws the values of a pair from a seed, makes a Job and what its namespace has of them,
and has pairs that are written by hand. `player` has the Istio of each world and a service in its
mesh, and plays pairs beside it on the lab's node. `judge` compares what happened, never what
istio-aux decided, and writes it down.

    python -m twins --seed 7 --pairs 100 --world on-request
"""
