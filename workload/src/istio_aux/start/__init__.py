"""How a new pod starts: `webhook` asks `review`, and `review` asks `plan`.

`plan` decides on start order, inbound ports and Istio's label, `hold` on the hook and the text of
Istio's annotation, `native_sidecars` on whose proxy, and which other sidecars, are native. `patch`
has the operations of JSON Patch. `turns` says whose review is worked on next. All but `webhook` and
`turns` are pure.
"""
