package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// Floor quits proxies with as little as there can be: for each finished pod that a list or a watch
// shows it reads the pod, and executes the command if the pod is still the same and still finished. It
// decodes names, UIDs and states. What it costs is what the API server asks of any client.

const (
	running   = "status.phase=Running,spec.restartPolicy!=Always"
	page      = 100
	statusOf  = 3 // the channel on which an exec ends (remotecommand v4)
	mostBytes = 1 << 16
)

type meta struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

// leanPod is what decides of a pod, or of a namespace.
type leanPod struct {
	Metadata meta `json:"metadata"`
	Status   struct {
		ContainerStatuses []struct {
			Name  string `json:"name"`
			State struct {
				Running    *struct{} `json:"running"`
				Terminated *struct{} `json:"terminated"`
			} `json:"state"`
		} `json:"containerStatuses"`
	} `json:"status"`
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
	server *url.URL
	token  string
	client *http.Client
	tls    *tls.Config
	ready  atomic.Bool
	turns  chan struct{} // holds a token for each quit under way

	lock sync.Mutex
	told map[string]struct{} // UIDs
}

// runFloor quits at most so many proxies at once, and returns when the watch ends.
func runFloor(config *rest.Config, address, selector string, atOnce int) error {
	server, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return err
	}
	// An exec needs a connection that becomes a WebSocket.
	settings.NextProtos = []string{"http/1.1"}
	if settings.ServerName == "" {
		settings.ServerName = server.Hostname()
	}
	lean := &floor{
		server: server,
		token:  config.BearerToken,
		client: &http.Client{Transport: &http.Transport{
			TLSClientConfig: settings, MaxIdleConnsPerHost: atOnce, DisableCompression: true,
		}},
		tls:   settings,
		turns: make(chan struct{}, atOnce),
		told:  map[string]struct{}{},
	}
	go http.ListenAndServe(address, http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		if !lean.ready.Load() {
			answer.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	return lean.follow(selector)
}

// follow lists the running pods of the selected namespaces, and watches them.
func (lean *floor) follow(selector string) error {
	var namespaces struct{ Items []leanPod }
	if err := lean.get("/api/v1/namespaces", url.Values{"labelSelector": {selector}}, &namespaces); err != nil {
		return err
	}
	selected := map[string]bool{}
	for _, namespace := range namespaces.Items {
		selected[namespace.Metadata.Name] = true
	}
	see := func(pod leanPod) {
		if selected[pod.Metadata.Namespace] && pod.finished() {
			lean.start(pod.Metadata)
		}
	}
	asked := url.Values{"fieldSelector": {running}, "limit": {fmt.Sprint(page)}}
	var found struct {
		Metadata meta
		Items    []leanPod
	}
	for more := true; more; more = found.Metadata.Continue != "" {
		found.Items, found.Metadata = nil, meta{}
		if err := lean.get("/api/v1/pods", asked, &found); err != nil {
			return err
		}
		for _, pod := range found.Items {
			see(pod)
		}
		asked.Set("continue", found.Metadata.Continue)
	}
	answer, err := lean.send("/api/v1/pods", url.Values{
		"fieldSelector": {running}, "watch": {"true"}, "resourceVersion": {found.Metadata.ResourceVersion},
	})
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	lean.ready.Store(true)
	lines := bufio.NewReaderSize(answer.Body, mostBytes)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		var event struct {
			Type   string
			Object leanPod
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return err
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			see(event.Object)
		case "DELETED":
			lean.forget(event.Object.Metadata.UID)
		default:
			return fmt.Errorf("the watch ended: %.300s", line)
		}
	}
}

// start quits a pod in its turn, once.
func (lean *floor) start(pod meta) {
	lean.lock.Lock()
	defer lean.lock.Unlock()
	if _, known := lean.told[pod.UID]; known {
		return
	}
	lean.told[pod.UID] = struct{}{}
	go func() {
		lean.turns <- struct{}{}
		defer func() { <-lean.turns }()
		if err := lean.quit(pod); err != nil {
			fmt.Println(pod.Name, err)
			lean.forget(pod.UID) // Its next event tries again.
		}
	}()
}

func (lean *floor) forget(uid string) {
	lean.lock.Lock()
	defer lean.lock.Unlock()
	delete(lean.told, uid)
}

func (lean *floor) quit(pod meta) error {
	path := "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
	var now leanPod
	if err := lean.get(path, nil, &now); err != nil {
		return err
	}
	if now.Metadata.UID != pod.UID || !now.finished() {
		return errors.New("has changed")
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return lean.exec(ctx, path+"/exec")
}

// exec runs the quit command over a bare WebSocket (RFC 6455), on a connection of its own.
func (lean *floor) exec(ctx context.Context, path string) error {
	dialer := tls.Dialer{Config: lean.tls}
	connection, err := dialer.DialContext(ctx, "tcp", lean.server.Host)
	if err != nil {
		return err
	}
	defer connection.Close()
	until, _ := ctx.Deadline()
	connection.SetDeadline(until)
	var key [16]byte
	rand.Read(key[:])
	request := lean.request(path, url.Values{
		"container": {proxy}, "stdout": {"true"}, "stderr": {"true"}, "command": quitCommand,
	})
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "websocket")
	request.Header.Set("Sec-WebSocket-Version", "13")
	request.Header.Set("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
	request.Header.Set("Sec-WebSocket-Key", base64.StdEncoding.EncodeToString(key[:]))
	if err := request.Write(connection); err != nil {
		return err
	}
	from := bufio.NewReader(connection)
	answer, err := http.ReadResponse(from, request)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, mostBytes))
		return fmt.Errorf("%s: %.300s", answer.Status, said)
	}
	for {
		payload, err := frame(from)
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

// frame reads one unmasked frame, and returns its payload.
func frame(from io.Reader) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	length := uint16(head[1])
	switch length {
	case 126:
		if err := binary.Read(from, binary.BigEndian, &length); err != nil {
			return nil, err
		}
	case 127:
		return nil, errors.New("a frame is too long")
	}
	payload := make([]byte, length)
	_, err := io.ReadFull(from, payload)
	return payload, err
}

func (lean *floor) request(path string, query url.Values) *http.Request {
	target := *lean.server
	target.Path, target.RawQuery = path, query.Encode()
	return &http.Request{
		Method: http.MethodGet, URL: &target, Host: target.Host,
		Header: http.Header{"Authorization": {"Bearer " + lean.token}, "Accept": {"*/*"}},
	}
}

func (lean *floor) send(path string, query url.Values) (*http.Response, error) {
	request := lean.request(path, query)
	answer, err := lean.client.Do(request)
	if err == nil && answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		err = fmt.Errorf("%s: %s", request.URL, answer.Status)
	}
	return answer, err
}

func (lean *floor) get(path string, query url.Values, into any) error {
	answer, err := lean.send(path, query)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(said, into)
}
