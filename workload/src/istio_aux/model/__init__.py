"""What is read of the API and of an admin's choices, and every name once. Pure: no I/O, no clock.

The charm packs this package (charmcraft.yaml) and imports from it; chart and tests do, too.

Objects: `pod`, `webhooks` (with namespaces and EndpointSlices), `owners` (Jobs and other
controllers), `templates` (pods in manifests), `documents` (manifests in files), `selectors`,
`annotations` (every key, and the one way to its value), `pod_settings` (what an author asks of
Istio and of istio-aux).
Choices: `policy`, `sidecars` (what is done about other sidecars), `known_sidecars` (those that need
no option), `applications` (which asked for a sidecar).
Facts about them: `kubelet` (which containers are finished?), `ending` (what does the end by force
cost, did its mesh fail a pod, does a payload end its proxy itself?), `resources` (what do pods
hold?), `limits` (what may they request?), `election` (the Lease and the checkpoint in it), `moment`
(the present, by two clocks), `text` (every function that makes text for people), `kept` (what is
kept of each kind of object), `findings` (every finding by its code), `found` (what is so with a
pod).
Shared with the charm: `names` (names and numbers that the API server enforces, quit commands),
`answers` (the shape of /status and /pods).
"""
