// Bench-kubelet plays the kubelet's part for many pods at once, cheaply: it makes pods that are
// bound to its node, moves their status from prepared JSON bodies, and answers exec over WebSocket.
//
// It does what the benchmarks need and no more: no watch, no lease, no port-forward, no misbehaviour.
// The lab's scripted kubelet does those; the measuring must not take the cores from what is measured.
//
//	bench-kubelet PLAN
//
// PLAN is a JSON file, see plan. Orders come on stdin and replies go to stdout, one JSON object a
// line, one order at a time. It ends with stdin.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// plan is what the benchmark says before the first order.
type plan struct {
	Server      string  `json:"server"`      // URL of the API server
	Etcd        string  `json:"etcd"`        // URL, for copies
	CA          string  `json:"ca"`          // PEM file
	Certificate string  `json:"certificate"` // PEM file, of an administrator and of this server
	Key         string  `json:"key"`         // PEM file
	Namespace   string  `json:"namespace"`
	Connections int     `json:"connections"` // to the API server
	ExitDelay   float64 `json:"exit-delay"`  // seconds from a quit to the proxy's end in the API
	// Bodies by name, as text in which @NAME@, @NAMESPACE@, @OWNER@, @NOW@ and @NUMBER@ are replaced:
	// objects to create, and strategic merge patches of pods; "exited" is the one that ends the proxy.
	Bodies map[string]string `json:"bodies"`
}

// order is one line of stdin; which fields count depends on do.
type order struct {
	Do     string  `json:"do"`     // create, patch or await
	Prefix string  `json:"prefix"` // pods are named <prefix>-<number from 0>
	Count  int     `json:"count"`  // of pods
	First  int     `json:"first"`  // number of the first namespace, see spread
	Spread int     `json:"spread"` // pods go to <namespace>-<number> in turn, so many; 0: <namespace>
	Pod    string  `json:"pod"`    // which body to create
	Body   string  `json:"body"`   // which body to patch the status with
	Light  bool    `json:"light"`  // create pods without managedFields, see api.lighten
	Events int     `json:"events"` // patches to make, round and round the pods; 0: one a pod
	Rate   float64 `json:"rate"`   // patches a second on a fixed schedule; 0: as fast as it goes
	Limit  float64 `json:"limit"`  // seconds to wait at most
}

// reply is one line of stdout. Times are seconds of the wall clock, with the pods in order.
type reply struct {
	Error  string    `json:"error,omitempty"`
	Port   int       `json:"port,omitempty"`
	Sent   []float64 `json:"sent,omitempty"`   // a patch was begun
	Stored []float64 `json:"stored,omitempty"` // its answer was there
	Told   []float64 `json:"told,omitempty"`   // the first quit arrived; 0: none
	Ended  []float64 `json:"ended,omitempty"`  // the API server had stored the proxy's end; 0: not yet
	Execs  int       `json:"execs,omitempty"`  // quits that arrived in all
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "bench-kubelet:", err)
		os.Exit(1)
	}
}

func run(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var given plan
	if err := json.Unmarshal(text, &given); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	server, err := newAPI(given)
	if err != nil {
		return err
	}
	pods := newPods(server, given)
	port, err := listen(given, pods)
	if err != nil {
		return err
	}
	orders, replies := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	answer := reply{Port: port}
	for {
		if err := replies.Encode(answer); err != nil {
			return err
		}
		var what order
		if err := orders.Decode(&what); err != nil {
			return nil // The end of stdin.
		}
		if answer, err = pods.obey(what); err != nil {
			answer = reply{Error: err.Error()}
		}
	}
}

func seconds(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return float64(at.UnixNano()) / 1e9
}
