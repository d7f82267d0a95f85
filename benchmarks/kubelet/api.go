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
const patience = 2 * time.Minute

// api is the API server, over connections that are kept.
type api struct {
	client *http.Client
	pods   string // URL of the collection
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
		pods:   fmt.Sprintf("%s/api/v1/namespaces/%s/pods", given.Server, given.Namespace),
		bodies: given.Bodies,
	}, nil
}

func (server *api) create(name string) error {
	return server.call("POST", server.pods, "application/json", "pod", name, 0)
}

// lighten makes the API server keep no account of who set which field of the pod: it then does
// without for good (apimachinery managedfields/internal/skipnonapplied.go), and a patch of the status
// costs it half as much.
func (server *api) lighten(name string) error {
	url := server.pods + "/" + name
	return server.call("PATCH", url, "application/merge-patch+json", "light", name, 0)
}

// patch moves the status of a pod as the body of that name says.
func (server *api) patch(name, body string, number int) error {
	url := server.pods + "/" + name + "/status"
	return server.call("PATCH", url, "application/strategic-merge-patch+json", body, name, number)
}

func (server *api) call(method, url, kind, body, name string, number int) error {
	text, ok := server.bodies[body]
	if !ok {
		return fmt.Errorf("body %q: the plan has none of that name", body)
	}
	filled := strings.NewReplacer(
		"@NAME@", name,
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
		return fmt.Errorf("%s %s: %s: %.300s", method, url, answer.Status, said)
	}
	return nil
}
