"""Find pods that should have a sidecar and have none, report them, and restart them if allowed.

`controller` reacts to events and performs restarts, `pod_store` holds the pods and decides,
`siblings` compares the stored pods with those of the API server, `recalled` has what earlier
leaders left, `suspended_jobs` suspends Jobs and resumes them, `turns` bounds how many of these it
asks about at the same time, `application_status` reports on the applications that ask for sidecars.
The rules are in `core`: `repair`, `rollout`, `suspension` and `jobs`.
"""
