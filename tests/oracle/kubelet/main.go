// What Kubernetes makes of a pod: pods as JSON lines in, verdicts as JSON lines out.
//
// First as an API server: defaults, fields that its feature gates drop, validation. Then as a
// kubelet: which containers are done, which phase the pod has, which it would have if its proxy
// exited. All rules are imported from k8s.io/kubernetes; what differs between its versions is in
// rules.go. Feature gates have their defaults, unless the first argument sets some.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	apipod "k8s.io/kubernetes/pkg/api/pod"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	_ "k8s.io/kubernetes/pkg/kubelet" // getPhase, which rules.go links.
	"k8s.io/kubernetes/pkg/kubelet/container"
)

const proxy = "istio-proxy"

// Verdict is the answer to one pod.
type Verdict struct {
	Refused    string          `json:"refused,omitempty"` // Why the API server stores no such pod.
	Pod        *v1.Pod         `json:"pod,omitempty"`     // As it is stored; nil if refused.
	Done       map[string]bool `json:"done"`              // Terminated, and never started again.
	Restarting bool            `json:"restarting"`        // All containers are about to start again.
	Phase      v1.PodPhase     `json:"phase"`             // Of the reported container statuses.
	Completes  bool            `json:"completes"`         // Once the running proxy exits with 0.
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(gates []string, stdin io.Reader, stdout io.Writer) error {
	for _, gate := range gates {
		if err := utilfeature.DefaultMutableFeatureGate.Set(gate); err != nil {
			return err
		}
	}
	if err := check(); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(stdin, 1<<20)
	answers := bufio.NewWriterSize(stdout, 1<<20)
	encoder := json.NewEncoder(answers)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return answers.Flush()
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		pod, refusal, err := store(line)
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		verdict := Verdict{Refused: refusal}
		if refusal == "" {
			verdict = judge(pod)
		}
		if err := encoder.Encode(verdict); err != nil {
			return err
		}
	}
}

// store makes of a pod what the API server of this version stores, or says why it refuses it.
// Its status is the one of a later time: the pod is judged as it is read then.
func store(line []byte) (*v1.Pod, string, error) {
	var given v1.Pod // Fields that this version does not know are lost here.
	if err := json.Unmarshal(line, &given); err != nil {
		return nil, "", err
	}
	corev1.SetObjectDefaults_Pod(&given)
	var internal core.Pod
	if err := corev1.Convert_v1_Pod_To_core_Pod(&given, &internal, nil); err != nil {
		return nil, "", err
	}
	apipod.DropDisabledPodFields(&internal, nil)
	options := apipod.GetValidationOptionsFromPodSpecAndMeta(
		&internal.Spec, nil, &internal.ObjectMeta, nil)
	if refusals := validation.ValidatePodCreate(&internal, options); len(refusals) > 0 {
		return nil, refusals.ToAggregate().Error(), nil
	}
	stored := &v1.Pod{TypeMeta: given.TypeMeta}
	if err := corev1.Convert_core_Pod_To_v1_Pod(&internal, stored, nil); err != nil {
		return nil, "", err
	}
	stored.Status = given.Status
	return stored, "", nil
}

// judge says what the kubelet makes of a pod whose containers are as its status says.
func judge(pod *v1.Pod) Verdict {
	// The pod worker of a pod that is deleted or in a terminal phase only ends containers
	// (pkg/kubelet/pod_workers.go UpdatePod).
	terminal := podutil.IsPodTerminal(pod) || pod.DeletionTimestamp != nil
	statuses := append(append([]v1.ContainerStatus{}, pod.Status.ContainerStatuses...),
		pod.Status.InitContainerStatuses...)
	verdict := Verdict{Pod: pod, Done: map[string]bool{}}
	verdict.Phase = phase(pod, statuses, terminal)
	verdict.Restarting = !terminal && restartsAll(pod)

	known := runtimeStatus(statuses)
	allDone := true
	for _, each := range pod.Spec.Containers {
		done := isDone(pod, each, statuses, known, terminal)
		verdict.Done[each.Name] = done
		allDone = allDone && (done || each.Name == proxy)
	}
	for _, each := range pod.Spec.InitContainers {
		if podutil.IsRestartableInitContainer(&each) {
			// It is started again as long as any container runs.
			verdict.Done[each.Name] = terminal && isOver(each.Name, statuses)
		}
	}
	if allDone && !terminal && !verdict.Restarting && !podutil.IsPodPhaseTerminal(verdict.Phase) {
		ended, ran := withoutProxy(pod, statuses)
		verdict.Completes = ran && podutil.IsPodPhaseTerminal(phase(pod, ended, false))
	}
	return verdict
}

// isDone says whether a regular container is terminated and never started again: by the rule after
// which containers are started, and by the phase of a pod that has nothing but this container.
func isDone(pod *v1.Pod, each v1.Container, statuses []v1.ContainerStatus,
	known *container.PodStatus, terminal bool) bool {
	if !terminal && startsAgain(&each, pod, known) {
		return false
	}
	alone := &v1.Pod{ObjectMeta: pod.ObjectMeta, Spec: v1.PodSpec{
		RestartPolicy: pod.Spec.RestartPolicy, Containers: []v1.Container{each}}}
	return podutil.IsPodPhaseTerminal(phase(alone, statuses, terminal))
}

// withoutProxy has the statuses after the proxy has exited with 0, as the last of all regular
// containers, and whether it ran before.
func withoutProxy(pod *v1.Pod, statuses []v1.ContainerStatus) ([]v1.ContainerStatus, bool) {
	regular, sidecars := map[string]bool{}, map[string]bool{}
	for _, each := range pod.Spec.Containers {
		regular[each.Name] = true
	}
	for _, each := range pod.Spec.InitContainers {
		sidecars[each.Name] = podutil.IsRestartableInitContainer(&each)
	}
	found := false
	ended := append([]v1.ContainerStatus{}, statuses...)
	for index := range ended {
		status := &ended[index]
		if status.State.Running == nil {
			continue
		}
		isProxy := status.Name == proxy && regular[proxy]
		found = found || isProxy
		// The kubelet ends native sidecars once no other container is kept or started (at the
		// end of pkg/kubelet/kuberuntime/kuberuntime_manager.go computePodActions).
		if isProxy || sidecars[status.Name] {
			status.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
		}
	}
	return ended, found
}

func isOver(name string, statuses []v1.ContainerStatus) bool {
	status, ok := podutil.GetContainerStatus(statuses, name)
	return ok && status.State.Running == nil && status.State.Terminated != nil
}

// runtimeStatus is what the container runtime must have told the kubelet for it to report these
// statuses (pkg/kubelet/kubelet_pods.go convertToAPIContainerStatuses). A container that waits and
// never ran does not exist there; one that ran, and whose state the runtime no longer knows, is
// reported as terminated.
func runtimeStatus(statuses []v1.ContainerStatus) *container.PodStatus {
	known := &container.PodStatus{}
	for _, status := range statuses {
		ended := status.State.Terminated
		if ended == nil && status.State.Waiting != nil {
			ended = status.LastTerminationState.Terminated
		}
		switch {
		case status.State.Running != nil:
			known.ContainerStatuses = append(known.ContainerStatuses, &container.Status{
				Name: status.Name, State: container.ContainerStateRunning})
		case status.State.Terminated != nil && ended.Reason == container.ContainerReasonStatusUnknown:
			known.ContainerStatuses = append(known.ContainerStatuses, &container.Status{
				Name: status.Name, State: container.ContainerStateUnknown})
		case ended != nil:
			known.ContainerStatuses = append(known.ContainerStatuses, &container.Status{
				Name: status.Name, State: container.ContainerStateExited,
				ExitCode: int(ended.ExitCode), Reason: ended.Reason})
		}
	}
	return known
}

// check fails if getPhase is not the function that rules.go declares: the linker compares no types.
func check() error {
	one := []v1.Container{{Name: "main"}}
	for _, row := range []struct {
		policy v1.RestartPolicy
		state  v1.ContainerState
		want   v1.PodPhase
	}{
		{v1.RestartPolicyNever, v1.ContainerState{Running: &v1.ContainerStateRunning{}}, v1.PodRunning},
		{v1.RestartPolicyNever, v1.ContainerState{}, v1.PodPending},
		{v1.RestartPolicyNever, exited(0), v1.PodSucceeded},
		{v1.RestartPolicyNever, exited(1), v1.PodFailed},
		{v1.RestartPolicyOnFailure, exited(1), v1.PodRunning},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: row.policy, Containers: one}}
		got := phase(pod, []v1.ContainerStatus{{Name: "main", State: row.state}}, false)
		if got != row.want {
			return fmt.Errorf("getPhase: phase %q, want %q: rules.go declares it wrongly", got, row.want)
		}
	}
	return nil
}

func exited(code int32) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}}
}
