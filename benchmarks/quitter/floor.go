package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Floor quits proxies with as little as there can be: for each finished pod that a list or a watch
// shows it reads the pod, and executes the command if the pod is still the same and still finished. It
// decodes names, UIDs and states. What it costs is what the API server asks of any client.

const (
	running  = "status.phase=Running,spec.restartPolicy!=Always"
	statusOf = 3 // the channel on which an exec ends (remotecommand v5)
)

// leanPod is what decides of a pod, or of a list of pods.
type leanPod struct {
	Metadata struct {
		Name, Namespace, ResourceVersion, Continue string
		UID                                        types.UID
	}
	Status struct {
		ContainerStatuses []struct {
			Name  string
			State struct{ Running, Terminated *struct{} }
		}
	}
	Items []leanPod
}

func (pod *leanPod) finished() bool {
	runs := false
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == proxy {
			runs = status.State.Running != nil
		} else if status.State.Terminated == nil {
			return false
		}
	}
	return runs
}

type floor struct {
	server rest.Interface
	config *rest.Config
	turns  chan struct{} // holds a token for each quit under way
	told   sync.Map      // UIDs
}

// runFloor quits at most so many proxies of a namespace at once, and returns when the watch ends.
func runFloor(config *rest.Config, address, namespace string, atOnce int) error {
	config.QPS = -1 // No limit.
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	lean := &floor{server: clientset.CoreV1().RESTClient(), config: config, turns: make(chan struct{}, atOnce)}
	var found leanPod
	pods := "/api/v1/namespaces/" + namespace + "/pods"
	asked := map[string]string{"fieldSelector": running, "limit": "100"}
	for more := true; more; more = found.Metadata.Continue != "" {
		found = leanPod{}
		if err := lean.get(pods, asked, &found); err != nil {
			return err
		}
		for _, pod := range found.Items {
			lean.see(pod)
		}
		asked["continue"] = found.Metadata.Continue
	}
	stream, err := lean.request(pods, map[string]string{
		"fieldSelector": running, "watch": "true", "resourceVersion": found.Metadata.ResourceVersion,
	}).Stream(context.Background())
	if err != nil {
		return err
	}
	defer stream.Close()
	go http.ListenAndServe(address, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for lines := bufio.NewReader(stream); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		var event struct{ Object leanPod }
		if err := json.Unmarshal(line, &event); err != nil {
			return err
		}
		lean.see(event.Object)
	}
}

// see quits a pod that is finished, in its turn and once.
func (lean *floor) see(pod leanPod) {
	if !pod.finished() {
		return
	}
	if _, known := lean.told.LoadOrStore(pod.Metadata.UID, true); known {
		return
	}
	go func() {
		lean.turns <- struct{}{}
		defer func() { <-lean.turns }()
		if err := lean.quit(pod); err != nil {
			fmt.Println(pod.Metadata.Name, err)
			lean.told.Delete(pod.Metadata.UID) // Its next event tries again.
		}
	}()
}

func (lean *floor) quit(pod leanPod) error {
	path := "/api/v1/namespaces/" + pod.Metadata.Namespace + "/pods/" + pod.Metadata.Name
	var now leanPod
	if err := lean.get(path, nil, &now); err != nil {
		return err
	}
	if now.Metadata.UID != pod.Metadata.UID || !now.finished() {
		return errors.New("has changed")
	}
	return lean.exec(path + "/exec")
}

// exec runs the quit command over a bare WebSocket, on a connection of its own.
func (lean *floor) exec(path string) error {
	settings, err := rest.TLSConfigFor(lean.config)
	if err != nil {
		return err
	}
	settings.NextProtos = []string{"http/1.1"}
	dialer := websocket.Dialer{
		TLSClientConfig: settings, HandshakeTimeout: deadline, Subprotocols: []string{"v5.channel.k8s.io"},
	}
	query := url.Values{"container": {proxy}, "stdout": {"true"}, "stderr": {"true"}, "command": quitCommand}
	target := lean.request(path, nil).URL()
	target.Scheme, target.RawQuery = "wss", query.Encode()
	connection, _, err := dialer.Dial(target.String(), http.Header{"Authorization": {"Bearer " + lean.config.BearerToken}})
	if err != nil {
		return err
	}
	defer connection.Close()
	connection.SetReadDeadline(time.Now().Add(deadline))
	for {
		_, payload, err := connection.ReadMessage()
		if err != nil {
			return err
		}
		if len(payload) > 1 && payload[0] == statusOf {
			var result struct{ Status string }
			if json.Unmarshal(payload[1:], &result); result.Status != "Success" {
				return fmt.Errorf("%.300s", payload[1:])
			}
			return nil
		}
	}
}

func (lean *floor) request(path string, query map[string]string) *rest.Request {
	request := lean.server.Get().AbsPath(path).SetHeader("Accept", "application/json")
	for name, value := range query {
		request.Param(name, value)
	}
	return request
}

func (lean *floor) get(path string, query map[string]string, into any) error {
	said, err := lean.request(path, query).Do(context.Background()).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(said, into)
}
