// The kubelet's part in the benchmarks.
module istio-aux.io/benchmarks/kubelet

go 1.24.0
