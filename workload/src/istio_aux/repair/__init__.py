"""Find pods that should have a sidecar and have none, report them, and restart them if allowed.

Known: `store` holds pods, controllers and what earlier leaders left; `siblings` compares the pods
of a controller with those of the API server.
Next: `rules` decides about a pod, `rollout` about the pods of a controller, `suspension` about a
Job. These are pure.
Done: `controller` restarts pods, `suspended_jobs` suspends Jobs and resumes them, `turns` bounds
how many of these it asks about at the same time, `recorder` tells.
"""
