package main

import (
	"io"
	"net"
	"net/http"
)

// statusPort is the agent's own server: readiness, and the ways to end it.
func (a *agent) statusPort() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz/ready", a.readiness)
	mux.HandleFunc("/quitquitquit", localPost(a.answerAndQuit))
	// The preStop hook of a native sidecar posts this: nothing is left to drain at SIGTERM.
	mux.HandleFunc("/drain", localPost(a.answerAndDrain))
	return mux
}

// readinessPort is Envoy's listener for probes, which asks the agent's status port. What it does not know it
// answers with 404 and no text.
func (a *agent) readinessPort(status int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path == "/healthz/ready" {
			a.readiness(w, r)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	})
}

// adminPort is Envoy's admin interface, bound to loopback.
func (a *agent) adminPort() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", a.readiness)
	// Envoy itself leaves at once, and the agent follows.
	mux.HandleFunc("/quitquitquit", localPost(func(w http.ResponseWriter, r *http.Request) {
		a.drained.Store(true)
		a.answerAndQuit(w, r)
	}))
	return mux
}

func (a *agent) readiness(w http.ResponseWriter, _ *http.Request) {
	if !a.isReady.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (a *agent) answerAndQuit(w http.ResponseWriter, r *http.Request) {
	answer(w, r)
	a.quit()
}

func (a *agent) answerAndDrain(w http.ResponseWriter, r *http.Request) {
	a.drained.Store(true)
	answer(w, r)
}

func answer(w http.ResponseWriter, _ *http.Request) {
	io.WriteString(w, "OK") // A caller that is gone changes nothing.
	http.NewResponseController(w).Flush()
}

// localPost lets only POST from a loopback peer through; the peer is asked about first.
func localPost(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil || !net.ParseIP(host).IsLoopback() {
			http.Error(w, "Only requests from localhost are allowed", http.StatusForbidden)
			return
		}
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		handler(w, r)
	}
}
