"""The rules: pure functions over frozen data. No I/O, no log, no clock, no event loop, no client.

What is read: `pod`, `webhooks` (with EndpointSlices and namespaces), `annotations` of ours,
`applications`, `policy` (what an admin may choose), `selectors`, `documents` (manifests in files),
`moment` (the present); `nesting` cuts JSON that is nested too deeply for decoders; `keys` is the
only way from an annotation or a label to a decision; `text` makes what tenants write harmless for
terminals.
What is decided: `completion` and `quit` for a proxy (at its `status_port`) and for `sidecars`,
`quit_state` for attempts;
`holders`, `resources` and `katib` for pods that do not complete; `start`, `native_sidecars`,
`peers`, `proxy_config` and `patch` for a new pod, in a `review`; `injection`, `injection_probe` and
`injectors` for Istio's injectors; `repair`, `rollout`, `suspension`, `ownership` and `jobs` for
pods without their sidecar; `election` for the leader; `preflight` for what `check` reads of a
cluster.
"""
