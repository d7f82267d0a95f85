// The kubelet's part in the benchmarks.
module istio-aux.io/benchmarks/kubelet

go 1.24.0

require github.com/gorilla/websocket v1.5.4-0.20250319132907-e064f32e3674

require golang.org/x/net v0.26.0 // indirect
