// Bench-lean is the leanest webhook that Go's standard library makes: encoding/json into the fields
// that the decision needs, and the patch by hand. It logs and counts nothing.
//
//	bench-lean ADDRESS CERTIFICATE KEY
package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"istio-aux.io/benchmarks/webhooks/serve"
)

const (
	config      = "proxy.istio.io/config"
	startedWith = "istio-aux.io/started-with"
	hold        = "holdApplicationUntilProxyStarts: true"
)

type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

type request struct {
	UID       string `json:"uid"`
	Operation string `json:"operation"`
	Object    pod    `json:"object"`
}

type pod struct {
	Metadata struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		HostNetwork   bool   `json:"hostNetwork"`
		RestartPolicy string `json:"restartPolicy"`
	} `json:"spec"`
}

type response struct {
	UID       string `json:"uid"`
	Allowed   bool   `json:"allowed"`
	Patch     []byte `json:"patch,omitempty"`
	PatchType string `json:"patchType,omitempty"`
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func main() {
	serve.Main(http.HandlerFunc(answer))
}

func answer(to http.ResponseWriter, from *http.Request) {
	body := make([]byte, from.ContentLength)
	if _, err := io.ReadFull(from.Body, body); err != nil {
		return
	}
	var given review
	if err := json.Unmarshal(body, &given); err != nil || given.Request == nil {
		http.Error(to, "no AdmissionReview", http.StatusBadRequest)
		return
	}
	said := &response{UID: given.Request.UID, Allowed: true}
	if patch := change(given.Request); patch != nil {
		said.Patch, _ = json.Marshal(patch)
		said.PatchType = "JSONPatch"
	}
	text, _ := json.Marshal(review{APIVersion: given.APIVersion, Kind: given.Kind, Response: said})
	to.Header().Set("Content-Type", "application/json")
	to.Write(text)
}

// change is the patch that makes the pod hold its payload; nil where it is none of its business, which
// here includes every pod with a configuration of its own.
func change(given *request) []operation {
	meta := given.Object.Metadata
	inject, ok := meta.Labels["sidecar.istio.io/inject"]
	if !ok {
		inject = meta.Annotations["sidecar.istio.io/inject"]
	}
	_, injected := meta.Annotations["sidecar.istio.io/status"]
	_, configured := meta.Annotations[config]
	if given.Operation != "CREATE" || given.Object.Spec.HostNetwork || inject == "false" || injected || configured {
		return nil
	}
	if meta.Annotations == nil {
		both := map[string]string{config: hold, startedWith: "hold"}
		return []operation{{Op: "add", Path: "/metadata/annotations", Value: both}}
	}
	at := func(key string) string { return "/metadata/annotations/" + strings.ReplaceAll(key, "/", "~1") }
	return []operation{
		{Op: "add", Path: at(config), Value: hold},
		{Op: "add", Path: at(startedWith), Value: "hold"},
	}
}
