"""How a new pod starts: `webhook` asks `review`, and `review` asks `plan`.

`plan` decides on start order and Istio's label, `not_native` says whose proxy must not be native,
`native_sidecars` decides on other sidecars, `peers` on ports between pods of one Job,
`proxy_config` on the text of Istio's annotation. `patch` has the operations of JSON Patch. `turns`
says whose review is worked on next. All but `webhook` and `turns` are pure.
"""
