// Bench-quitter quits proxies as careful users of controller-runtime do: its cache keeps of a pod only
// what decides, it reconciles one pod at a time, acts only while it holds a Lease, and executes the quit
// command with client-go. It knows no retries but the work queue's, no Events, no second way.
//
//	bench-quitter KUBECONFIG PROBE-ADDRESS METRICS-ADDRESS SELECTOR LEASE
//
// PROBE-ADDRESS answers /readyz with 200 once the cache has all pods and namespaces. SELECTOR is an
// equality, KEY=VALUE, of the namespaces' labels, LEASE the namespace of the Lease.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	proxy    = "istio-proxy"
	deadline = 10 * time.Second
)

var quitCommand = []string{"pilot-agent", "request", "POST", "quitquitquit"}

type quitter struct {
	client.Client
	config     *rest.Config
	pods       rest.Interface
	key, value string
}

// Reconcile quits the proxy of a pod whose other containers have ended.
func (q *quitter) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pod, namespace := &corev1.Pod{}, &corev1.Namespace{}
	if err := q.Get(ctx, request.NamespacedName, pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !finished(pod) {
		return ctrl.Result{}, nil
	}
	if err := q.Get(ctx, client.ObjectKey{Name: pod.Namespace}, namespace); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if namespace.Labels[q.key] != q.value {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, q.quit(ctx, pod)
}

// finished says whether the proxy runs and all other containers have ended.
func finished(pod *corev1.Pod) bool {
	running := false
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == proxy {
			running = status.State.Running != nil
		} else if status.State.Terminated == nil {
			return false
		}
	}
	return running
}

func (q *quitter) quit(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	how := &corev1.PodExecOptions{Container: proxy, Command: quitCommand, Stdout: true, Stderr: true}
	request := q.pods.Get().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(how, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(q.config, http.MethodGet, request.URL().String())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
}

// reduced is the pod without what decides nothing.
func reduced(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}}
	for _, status := range pod.Status.ContainerStatuses {
		made := corev1.ContainerStatus{Name: status.Name}
		if status.State.Running != nil {
			made.State.Running = &corev1.ContainerStateRunning{}
		}
		if status.State.Terminated != nil {
			made.State.Terminated = &corev1.ContainerStateTerminated{}
		}
		kept.Status.ContainerStatuses = append(kept.Status.ContainerStatuses, made)
	}
	return kept, nil
}

func run(config *rest.Config, address, metricsAddress, selector, lease string) error {
	log.SetLogger(logr.Discard())
	unfinished := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", "Succeeded"),
		fields.OneTermNotEqualSelector("status.phase", "Failed"),
	)
	manager, err := ctrl.NewManager(config, ctrl.Options{
		HealthProbeBindAddress: address,
		Metrics:                metrics.Options{BindAddress: metricsAddress},
		Cache: cache.Options{
			ByObject:         map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: reduced, Field: unfinished}},
			DefaultTransform: cache.TransformStripManagedFields(),
		},
		LeaderElection:                true,
		LeaderElectionID:              "bench-quitter",
		LeaderElectionNamespace:       lease,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	reconciler := &quitter{Client: manager.GetClient(), config: config, pods: clientset.CoreV1().RESTClient()}
	reconciler.key, reconciler.value, _ = strings.Cut(selector, "=")
	if err := ctrl.NewControllerManagedBy(manager).For(&corev1.Pod{}).Complete(reconciler); err != nil {
		return err
	}
	synced := func(request *http.Request) error {
		for _, kind := range []client.Object{&corev1.Pod{}, &corev1.Namespace{}} {
			// It returns when there is a complete list.
			if _, err := manager.GetCache().GetInformer(request.Context(), kind); err != nil {
				return err
			}
		}
		return nil
	}
	if err := manager.AddReadyzCheck("cache", synced); err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

func main() {
	given := os.Args[1:]
	config, err := clientcmd.BuildConfigFromFlags("", given[0])
	if err == nil {
		err = run(config, given[1], given[2], given[3], given[4])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-quitter:", err)
		os.Exit(1)
	}
}
