// Bench-controller is a webhook as controller-runtime's users write them: it decodes the whole Pod,
// changes it, encodes it again, and has the library compute the difference as a JSON Patch. The
// library counts requests and times them; nothing is logged.
//
//	bench-controller ADDRESS CERTIFICATE KEY
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/go-logr/logr"
	"go.yaml.in/yaml/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"istio-aux.io/benchmarks/webhooks/serve"
)

const (
	config      = "proxy.istio.io/config"
	startedWith = "istio-aux.io/started-with"
)

type mutator struct {
	decoder admission.Decoder
}

// Handle answers one review.
func (m mutator) Handle(_ context.Context, request admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := m.decoder.Decode(request, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if err := hold(pod); err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	changed, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, changed)
}

// hold merges into the annotation by parsing and dumping it.
func hold(pod *corev1.Pod) error {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	merged := map[string]any{"holdApplicationUntilProxyStarts": true}
	if text, ok := pod.Annotations[config]; ok {
		if err := yaml.Unmarshal([]byte(text), &merged); err != nil {
			return err
		}
	}
	text, err := yaml.Marshal(merged)
	if err != nil {
		return err
	}
	pod.Annotations[config] = string(text)
	pod.Annotations[startedWith] = "hold"
	return nil
}

func main() {
	log.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	err := corev1.AddToScheme(scheme)
	var handler http.Handler
	if err == nil {
		hook := &admission.Webhook{Handler: mutator{admission.NewDecoder(scheme)}}
		handler, err = admission.StandaloneWebhook(hook, admission.StandaloneOptions{MetricsPath: "/mutate"})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	serve.Main(handler)
}
