// Bench-quitter quits proxies as the users of controller-runtime do: it caches all pods, reconciles
// one at a time, and runs `pilot-agent request POST quitquitquit` in the proxy's container with
// client-go. It knows no retries but the work queue's, no Lease, no Events, no second way.
//
//	bench-quitter [-floor N] KUBECONFIG PROBE-ADDRESS SELECTOR
//
// PROBE-ADDRESS answers /readyz with 200 once the cache has all pods and namespaces. SELECTOR is an
// equality, KEY=VALUE, of the namespaces' labels. With -floor it is another program, see floor.go,
// which quits at most N proxies at once.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	ctrl "sigs.k8s.io/controller-runtime"
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
	pod := &corev1.Pod{}
	if err := q.Get(ctx, request.NamespacedName, pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
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

func run(kubeconfig, address, selector string, floor int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	if floor > 0 {
		return runFloor(config, address, selector, floor)
	}
	log.SetLogger(logr.Discard())
	manager, err := ctrl.NewManager(config, ctrl.Options{
		HealthProbeBindAddress: address,
		Metrics:                metrics.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	key, value, _ := strings.Cut(selector, "=")
	reconciler := &quitter{manager.GetClient(), config, clientset.CoreV1().RESTClient(), key, value}
	if err := ctrl.NewControllerManagedBy(manager).For(&corev1.Pod{}).Complete(reconciler); err != nil {
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
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: bench-quitter [-floor N] KUBECONFIG PROBE-ADDRESS SELECTOR")
	}
	flag.Parse()
	if flag.NArg() != 3 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1), flag.Arg(2), *floor); err != nil {
		fmt.Fprintln(os.Stderr, "bench-quitter:", err)
		os.Exit(1)
	}
}
