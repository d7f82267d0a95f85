// Bench-quitter quits proxies as the users of controller-runtime do: it caches all pods, reconciles
// one at a time, and runs `pilot-agent request POST quitquitquit` in the proxy's container with
// client-go. It knows no retries but the work queue's, no Events, no second way.
//
//	bench-quitter [-floor N | -lease NAMESPACE -metrics ADDRESS] KUBECONFIG PROBE-ADDRESS SELECTOR
//
// PROBE-ADDRESS answers /readyz with 200 once the cache has all pods and namespaces. SELECTOR is an
// equality, KEY=VALUE, of the namespaces' labels. With -lease it is made for large clusters:
// its cache keeps of a pod only what decides, it follows the labels of namespaces, counts the pods
// that lack their sidecar (bench_unmeshed_pods), and acts only while it holds a Lease. With -floor
// it is another program, see floor.go, which quits at most N proxies at once.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

const (
	proxy    = "istio-proxy"
	inject   = "sidecar.istio.io/inject"
	deadline = 10 * time.Second
)

var quitCommand = []string{"pilot-agent", "request", "POST", "quitquitquit"}

type quitter struct {
	client.Client
	config     *rest.Config
	pods       rest.Interface
	key, value string
	unmeshed   *unmeshed // nil: not counted
}

// Reconcile quits the proxy of a pod whose other containers have ended.
func (q *quitter) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := q.Get(ctx, request.NamespacedName, pod); err != nil {
		if q.unmeshed != nil {
			q.unmeshed.set(request.NamespacedName, false)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if q.unmeshed != nil {
		if err := q.count(ctx, pod); err != nil {
			return ctrl.Result{}, err
		}
	}
	if !finished(pod) {
		return ctrl.Result{}, nil
	}
	namespace := &corev1.Namespace{}
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
	request := q.pods.Get().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: proxy,
			Command:   quitCommand,
			Stdout:    true,
			Stderr:    true,
		}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(q.config, http.MethodGet, request.URL().String())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
}

// count notes whether the pod lacks a sidecar that its namespace asks for.
func (q *quitter) count(ctx context.Context, pod *corev1.Pod) error {
	namespace := &corev1.Namespace{}
	if err := q.Get(ctx, client.ObjectKey{Name: pod.Namespace}, namespace); err != nil {
		return client.IgnoreNotFound(err)
	}
	key := client.ObjectKeyFromObject(pod)
	lacks := namespace.Labels["istio-injection"] == "enabled" && pod.Labels[inject] != "false"
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, container := range containers {
			lacks = lacks && container.Name != proxy
		}
	}
	q.unmeshed.set(key, lacks)
	return nil
}

// unmeshed are the pods without the sidecar that they should have.
type unmeshed struct {
	lock sync.Mutex
	pods map[client.ObjectKey]struct{}
}

func (them *unmeshed) set(key client.ObjectKey, lacks bool) {
	them.lock.Lock()
	defer them.lock.Unlock()
	if lacks {
		them.pods[key] = struct{}{}
	} else {
		delete(them.pods, key)
	}
}

func (them *unmeshed) count() float64 {
	them.lock.Lock()
	defer them.lock.Unlock()
	return float64(len(them.pods))
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
	if value, ok := pod.Labels[inject]; ok {
		kept.Labels = map[string]string{inject: value}
	}
	kept.Spec.RestartPolicy = pod.Spec.RestartPolicy
	kept.Spec.Containers = names(pod.Spec.Containers)
	kept.Spec.InitContainers = names(pod.Spec.InitContainers)
	kept.Status.Phase = pod.Status.Phase
	for _, status := range pod.Status.ContainerStatuses {
		made := corev1.ContainerStatus{Name: status.Name}
		if status.State.Running != nil {
			made.State.Running = &corev1.ContainerStateRunning{}
		}
		if ended := status.State.Terminated; ended != nil {
			made.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: ended.ExitCode}
		}
		kept.Status.ContainerStatuses = append(kept.Status.ContainerStatuses, made)
	}
	return kept, nil
}

func names(containers []corev1.Container) []corev1.Container {
	var kept []corev1.Container
	for _, container := range containers {
		kept = append(kept, corev1.Container{Name: container.Name, RestartPolicy: container.RestartPolicy})
	}
	return kept
}

// relabelled finds the pods of a namespace whose labels have changed.
func (q *quitter) relabelled(ctx context.Context, namespace client.Object) []ctrl.Request {
	var pods corev1.PodList
	if err := q.List(ctx, &pods, client.InNamespace(namespace.GetName())); err != nil {
		return nil
	}
	var requests []ctrl.Request
	for _, pod := range pods.Items {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&pod)})
	}
	return requests
}

// large makes the manager keep little, and act only while it holds a Lease in that namespace.
func large(options *ctrl.Options, namespace, address string) {
	options.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {
		Transform: reduced,
		Field: fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", "Succeeded"),
			fields.OneTermNotEqualSelector("status.phase", "Failed"),
		),
	}}
	options.Cache.DefaultTransform = cache.TransformStripManagedFields()
	options.LeaderElection = true
	options.LeaderElectionID = "bench-quitter"
	options.LeaderElectionNamespace = namespace
	options.LeaderElectionReleaseOnCancel = true
	options.Metrics.BindAddress = address
}

func run(kubeconfig, address, selector string, floor int, lease, metricsAddress string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	if floor > 0 {
		return runFloor(config, address, selector, floor)
	}
	log.SetLogger(logr.Discard())
	options := ctrl.Options{
		HealthProbeBindAddress: address,
		Metrics:                metrics.Options{BindAddress: "0"},
	}
	reconciler := &quitter{}
	if lease != "" {
		reconciler.unmeshed = &unmeshed{pods: map[client.ObjectKey]struct{}{}}
		gauge := prometheus.GaugeOpts{Name: "bench_unmeshed_pods", Help: "Pods that lack their sidecar."}
		registry.Registry.MustRegister(prometheus.NewGaugeFunc(gauge, reconciler.unmeshed.count))
		large(&options, lease, metricsAddress)
	}
	manager, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	reconciler.Client, reconciler.config = manager.GetClient(), config
	reconciler.pods = clientset.CoreV1().RESTClient()
	reconciler.key, reconciler.value, _ = strings.Cut(selector, "=")
	controller := ctrl.NewControllerManagedBy(manager).For(&corev1.Pod{})
	if lease != "" {
		controller = controller.Watches(
			&corev1.Namespace{},
			handler.EnqueueRequestsFromMapFunc(reconciler.relabelled),
			builder.WithPredicates(predicate.LabelChangedPredicate{}, predicate.Funcs{
				CreateFunc: func(event.CreateEvent) bool { return false },
			}),
		)
	}
	if err := controller.Complete(reconciler); err != nil {
		return err
	}
	if err := manager.AddReadyzCheck("cache", synced(manager)); err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

// synced says whether the caches that Reconcile reads are complete.
func synced(manager ctrl.Manager) func(*http.Request) error {
	return func(request *http.Request) error {
		for _, kind := range []client.Object{&corev1.Pod{}, &corev1.Namespace{}} {
			informer, err := manager.GetCache().GetInformer(request.Context(), kind)
			if err != nil {
				return err
			}
			if !informer.HasSynced() {
				return fmt.Errorf("%T: no complete list yet", kind)
			}
		}
		return nil
	}
}

func main() {
	floor := flag.Int("floor", 0, "be the leanest client, with at most `N` quits at once")
	lease := flag.String("lease", "", "act only with a Lease in this `namespace`, and keep little")
	metricsAddress := flag.String("metrics", "0", "serve metrics at this `address`, with -lease")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: bench-quitter [-floor N | -lease NAMESPACE -metrics ADDRESS] KUBECONFIG PROBE-ADDRESS SELECTOR")
	}
	flag.Parse()
	if flag.NArg() != 3 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1), flag.Arg(2), *floor, *lease, *metricsAddress); err != nil {
		fmt.Fprintln(os.Stderr, "bench-quitter:", err)
		os.Exit(1)
	}
}
