package main

import (
	_ "unsafe" // go:linkname

	v1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet/container"
)

// The kubelet does not export it.
//
//go:linkname getPhase k8s.io/kubernetes/pkg/kubelet.getPhase
func getPhase(logger klog.Logger, pod *v1.Pod, info []v1.ContainerStatus,
	podIsTerminal, podHasInitialized bool) v1.PodPhase

var quiet = klog.Background()

func phase(pod *v1.Pod, statuses []v1.ContainerStatus, terminal bool) v1.PodPhase {
	known := runtimeStatus(statuses)
	known.ActiveContainerStatuses = known.ContainerStatuses
	started := container.HasAnyActiveRegularContainerStarted(&pod.Spec, known)
	return getPhase(quiet, pod, statuses, terminal, started)
}

func startsAgain(each *v1.Container, pod *v1.Pod, known *container.PodStatus) bool {
	return container.ShouldContainerBeRestarted(quiet, each, pod, known)
}

func restartsAll(pod *v1.Pod) bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.RestartAllContainersOnContainerExits) &&
		container.ShouldAllContainersRestart(pod, nil, &pod.Status)
}
