package main

import (
	_ "unsafe" // go:linkname

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/container"
)

// The kubelet does not export it.
//
//go:linkname getPhase k8s.io/kubernetes/pkg/kubelet.getPhase
func getPhase(pod *v1.Pod, info []v1.ContainerStatus,
	podIsTerminal, podHasInitialized bool) v1.PodPhase

func phase(pod *v1.Pod, statuses []v1.ContainerStatus, terminal bool) v1.PodPhase {
	known := runtimeStatus(statuses)
	known.ActiveContainerStatuses = known.ContainerStatuses
	started := container.HasAnyActiveRegularContainerStarted(&pod.Spec, known)
	return getPhase(pod, statuses, terminal, started)
}

func startsAgain(each *v1.Container, pod *v1.Pod, known *container.PodStatus) bool {
	return container.ShouldContainerBeRestarted(each, pod, known)
}

// RestartAllContainersOnContainerExits comes with 1.35.
func restartsAll(*v1.Pod) bool { return false }
