// A front of the scripted kubelet for API servers before 1.36, which speak SPDY to a kubelet.
//
// The API server translates an exec over WebSocket into SPDY (TranslateStreamCloseWebsocketRequests).
// Here the kubelet's own server code reads it, and the scripted kubelet hears it as a WebSocket again.
// Everything else is passed on as it is, port-forward over WebSocket too.
//
//	kubelet-spdy -listen ADDRESS -kubelet ADDRESS -ca FILE -certificate FILE -key FILE
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	protocols "k8s.io/apimachinery/pkg/util/remotecommand"
	client "k8s.io/client-go/tools/remotecommand"
	"k8s.io/kubelet/pkg/cri/streaming/remotecommand"
	"k8s.io/utils/exec"
)

// The channels of v5.channel.k8s.io from which a kubelet writes.
const (
	stdout = 1
	stderr = 2
	result = 3
)

// Those of the kubelet (pkg/kubelet/server.go).
const (
	idle   = 4 * time.Hour
	create = 30 * time.Second
)

func main() {
	listen := flag.String("listen", "", "address to listen on")
	kubelet := flag.String("kubelet", "", "address of the scripted kubelet")
	ca := flag.String("ca", "", "certificate of the cluster's authority")
	certificate := flag.String("certificate", "", "certificate of the node")
	key := flag.String("key", "", "its key")
	flag.Parse()

	pair, err := tls.LoadX509KeyPair(*certificate, *key)
	if err != nil {
		log.Fatal(err)
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	// The node's certificate serves here, and is the client's towards the scripted kubelet.
	trust := &tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}
	server := &http.Server{
		Addr:      *listen,
		TLSConfig: trust,
		Handler:   front(*kubelet, trust),
		// SPDY and WebSocket take a connection over, which HTTP/2 does not allow.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	log.Fatal(server.ListenAndServeTLS("", ""))
}

func front(kubelet string, trust *tls.Config) http.Handler {
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: kubelet})
	pass.Transport = &http.Transport{TLSClientConfig: trust}
	dialer := &websocket.Dialer{TLSClientConfig: trust, Subprotocols: []string{"v5.channel.k8s.io"}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Upgrade"), "SPDY/") {
			pass.ServeHTTP(w, r)
			return
		}
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		socket, refusal, err := dialer.DialContext(r.Context(), "wss://"+kubelet+r.URL.RequestURI(), nil)
		if refusal != nil && errors.Is(err, websocket.ErrBadHandshake) {
			w.WriteHeader(refusal.StatusCode)
			io.Copy(w, refusal.Body)
			return
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer socket.Close()
		remotecommand.ServeExec(w, r, scripted{socket}, "", "", "", nil, options, idle, create,
			protocols.SupportedStreamingProtocols)
	})
}

// scripted is a command that runs in the scripted kubelet, for the kubelet's server code.
type scripted struct{ socket *websocket.Conn }

func (s scripted) ExecInContainer(_ context.Context, _ string, _ types.UID, _ string, _ []string, _ io.Reader,
	out, err io.WriteCloser, _ bool, _ <-chan client.TerminalSize, _ time.Duration) error {
	outputs := map[byte]io.Writer{stdout: out, stderr: err}
	for {
		_, frame, failure := s.socket.ReadMessage()
		if failure != nil {
			// The connection broke without a result: so does the one to the API server.
			panic(http.ErrAbortHandler)
		}
		if len(frame) < 2 {
			continue
		}
		if frame[0] == result {
			return read(frame[1:])
		}
		if output := outputs[frame[0]]; output != nil {
			if _, failure := output.Write(frame[1:]); failure != nil {
				return failure
			}
		}
	}
}

// read makes the error of a runtime from a Status of the error channel.
func read(body []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err != nil {
		return err
	}
	if status.Status == metav1.StatusSuccess {
		return nil
	}
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			if code, err := strconv.Atoi(cause.Message); err == nil && cause.Type == "ExitCode" {
				return exec.CodeExitError{Err: fmt.Errorf("exit status %d", code), Code: code}
			}
		}
	}
	return errors.New(status.Message)
}
