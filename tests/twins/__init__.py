"""Job-like pods beside their twins: each once with istio-aux, once with Istio's injection alone.

`grammar` draws the values of a pair from a seed, `manifests` makes a Job and what its namespace has
of them, `fixed` has pairs that are written by hand. `worlds` has the Istio of each world and a
service in its mesh, `player` plays pairs beside it on the lab's node, `judge` compares what
happened: never what istio-aux decided. `report` writes it down.

    python -m twins --seed 7 --pairs 100 --world on-request
"""
