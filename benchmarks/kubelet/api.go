package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

const (
	// For one call with its wait for a free connection; it takes milliseconds unless the machine is busy.
	patience = 5 * time.Minute
	asJSON   = "application/json"
	merged   = "application/merge-patch+json"
	moved    = "application/strategic-merge-patch+json"
)

// api is the API server, and the etcd behind it, over connections that are kept.
type api struct {
	client *http.Client
	server string // URL of all namespaces
	etcd   string // URL
	bodies map[string]string
}

func newAPI(given plan) (*api, error) {
	authority, err := os.ReadFile(given.CA)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	own, err := tls.LoadX509KeyPair(given.Certificate, given.Key)
	if err != nil {
		return nil, err
	}
	// HTTP/1.1: a stream a connection, so that no patch waits behind another's bytes.
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{own}},
		MaxConnsPerHost:     given.Connections,
		MaxIdleConnsPerHost: given.Connections,
		DisableCompression:  true,
	}
	client := &http.Client{Transport: transport, Timeout: patience}
	return &api{client, given.Server + "/api/v1/namespaces", given.Etcd, given.Bodies}, nil
}

// create makes a pod from the body of that name, and returns its UID.
func (server *api) create(pod, body string) (string, error) {
	said, err := server.send("POST", server.server+"/"+namespaceOf(pod)+"/pods", asJSON, body, pod, 0)
	if err != nil {
		return "", err
	}
	var made struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	return made.Metadata.UID, json.Unmarshal(said, &made)
}

// lighten makes the API server keep no account of who set which field of the pod: it then does
// without for good (apimachinery managedfields/internal/skipnonapplied.go), and a patch of the status
// costs it half as much.
func (server *api) lighten(pod string) error {
	_, err := server.send("PATCH", server.place(pod), merged, "light", pod, 0)
	return err
}

// patch moves the status of a pod as the body of that name says.
func (server *api) patch(pod, body string, number int) error {
	_, err := server.send("PATCH", server.place(pod)+"/status", moved, body, pod, number)
	return err
}

// stored returns a pod as the API server encoded it for etcd.
func (server *api) stored(pod string) ([]byte, error) {
	said, err := server.etcdCall("range", map[string][]byte{"key": etcdKey(pod)})
	if err != nil {
		return nil, err
	}
	var found struct{ Kvs []struct{ Value []byte } }
	if err := json.Unmarshal(said, &found); err != nil || len(found.Kvs) != 1 {
		return nil, fmt.Errorf("%s: %d such keys in etcd, expected 1", etcdKey(pod), len(found.Kvs))
	}
	return found.Kvs[0].Value, nil
}

// put stores a pod behind the API server's back, whose caches follow etcd.
func (server *api) put(pod string, value []byte) error {
	_, err := server.etcdCall("put", map[string][]byte{"key": etcdKey(pod), "value": value})
	return err
}

// awaitCached returns when the API server's cache has the pod.
func (server *api) awaitCached(pod string) error {
	for late := time.Now().Add(patience); time.Now().Before(late); time.Sleep(100 * time.Millisecond) {
		request, _ := http.NewRequest("GET", server.place(pod)+"?resourceVersion=0", nil)
		if _, err := server.answer(request); err == nil {
			return nil
		}
	}
	return fmt.Errorf("pod %s: the API server does not find it", pod)
}

// etcdCall uses etcd's JSON gateway, in which bytes are base64, as encoding/json writes them.
func (server *api) etcdCall(what string, asked map[string][]byte) ([]byte, error) {
	text, _ := json.Marshal(asked)
	request, err := http.NewRequest("POST", server.etcd+"/v3/kv/"+what, strings.NewReader(string(text)))
	if err != nil {
		return nil, err
	}
	return server.answer(request)
}

// send fills the body of that name in for the pod, <namespace>/<name>.
func (server *api) send(method, url, kind, body, pod string, number int) ([]byte, error) {
	filled := strings.NewReplacer(
		"@NAME@", podOf(pod),
		"@NAMESPACE@", namespaceOf(pod),
		"@OWNER@", ownerOf(pod),
		"@NOW@", time.Now().UTC().Format(time.RFC3339),
		"@NUMBER@", strconv.Itoa(number),
	).Replace(server.bodies[body])
	request, err := http.NewRequest(method, url, strings.NewReader(filled))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", kind)
	return server.answer(request)
}

func (server *api) answer(request *http.Request) ([]byte, error) {
	answer, err := server.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", request.Method, request.URL, answer.Status, said)
	}
	return said, err
}

func (server *api) place(pod string) string {
	return server.server + "/" + namespaceOf(pod) + "/pods/" + podOf(pod)
}

func namespaceOf(pod string) string { return path.Dir(pod) }

func podOf(pod string) string { return path.Base(pod) }

// ownerOf names the controller of the pod: ten whose names differ in the last digit share it.
func ownerOf(pod string) string {
	name := podOf(pod)
	return name[:max(0, len(name)-1)]
}

func etcdKey(pod string) []byte { return []byte("/registry/pods/" + pod) }

// another returns a UID of its own with the length of the given one.
func another(uid string) string {
	return fmt.Sprintf("%s%012x", uid[:24], rand.Uint64N(1<<48))
}
