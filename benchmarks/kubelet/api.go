package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// For one call with its wait for a free connection; it takes milliseconds unless the machine is busy.
const patience = 5 * time.Minute

// api is the API server, over connections that are kept.
type api struct {
	client *http.Client
	server string // URL
	etcd   string // URL
	bodies map[string]string
}

func newAPI(given plan) (*api, error) {
	authority, err := os.ReadFile(given.CA)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s: has no certificate", given.CA)
	}
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
	return &api{
		client: &http.Client{Transport: transport, Timeout: patience},
		server: given.Server,
		etcd:   given.Etcd,
		bodies: given.Bodies,
	}, nil
}

// create makes a pod from the body of that name; dry: it is admitted and not stored.
func (server *api) create(pod, body string, number int, dry bool) error {
	place, _ := server.place(pod)
	if dry {
		place += "?dryRun=All"
	}
	return server.call("POST", place, "application/json", body, pod, number)
}

// lighten makes the API server keep no account of who set which field of the pod: it then does
// without for good (apimachinery managedfields/internal/skipnonapplied.go), and a patch of the status
// costs it half as much.
func (server *api) lighten(pod string) error {
	_, url := server.place(pod)
	return server.call("PATCH", url, "application/merge-patch+json", "light", pod, 0)
}

// patch moves the status of a pod as the body of that name says; whole: not its status, but the pod.
func (server *api) patch(pod, body string, number int, whole bool) error {
	_, url := server.place(pod)
	if !whole {
		url += "/status"
	}
	return server.call("PATCH", url, "application/strategic-merge-patch+json", body, pod, number)
}

// namespace makes a namespace from the body of that name, and the account that its pods run as.
func (server *api) namespace(name, body string) error {
	place, kind := server.server+"/api/v1/namespaces", "application/json"
	if err := server.call("POST", place, kind, body, name+"/", 0); err != nil {
		return err
	}
	err := server.call("POST", place+"/"+name+"/serviceaccounts", kind, "account", name+"/", 0)
	if refused, ok := err.(refusal); ok && refused.code == http.StatusConflict {
		return nil
	}
	return err
}

// place returns the URLs of the collection and of the pod, which is named <namespace>/<name>.
func (server *api) place(pod string) (collection, object string) {
	collection = server.server + "/api/v1/namespaces/" + namespaceOf(pod) + "/pods"
	return collection, collection + "/" + podOf(pod)
}

func namespaceOf(pod string) string {
	namespace, _, _ := strings.Cut(pod, "/")
	return namespace
}

func podOf(pod string) string {
	_, name, _ := strings.Cut(pod, "/")
	return name
}

// ownerOf names the controller of the pod: ten whose names differ in the last digit share it.
func ownerOf(pod string) string {
	name := podOf(pod)
	return name[:max(0, len(name)-1)]
}

// refusal is an answer of the API server that is no success.
type refusal struct {
	code int
	text string
}

func (err refusal) Error() string { return err.text }

func (server *api) call(method, url, kind, body, pod string, number int) error {
	text, ok := server.bodies[body]
	if !ok {
		return fmt.Errorf("body %q: the plan has none of that name", body)
	}
	filled := strings.NewReplacer(
		"@NAME@", podOf(pod),
		"@NAMESPACE@", namespaceOf(pod),
		"@OWNER@", ownerOf(pod),
		"@NOW@", time.Now().UTC().Format(time.RFC3339),
		"@NUMBER@", strconv.Itoa(number),
	).Replace(text)
	request, err := http.NewRequest(method, url, bytes.NewReader([]byte(filled)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	answer, err := server.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= 300 {
		return refusal{answer.StatusCode, fmt.Sprintf("%s %s: %s: %.300s", method, url, answer.Status, said)}
	}
	return nil
}
