"""Find pods that should be in the mesh and are not, report them, and restart them if allowed.

Known: `candidate` is all that is read of a pod. `store` holds pods, controllers, the decisions on
them, and what earlier leaders left; `ambient` asks pods whether they are captured.
Next: `rules` decides about a pod, `rollout` about the pods of a controller. These are pure.
Done: `controller` restarts pods.
Told: `recorder` sends logs, metrics and Events, `reports` has what `/status` shows.
"""
