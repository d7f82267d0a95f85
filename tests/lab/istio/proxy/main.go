// Stand-in for Istio's pilot-agent together with its Envoy, in one static program.
//
// It emulates what a Job sees of a sidecar: the status port (15020), Envoy's readiness (15021) and admin
// (15000) ports, the redirect of istio-init, a proxy that does not exist until it is ready, and the command
// line with its exit codes, as observed on Istio 1.28.10; before Istio 1.26 a proxy that is told to quit drains
// first, and on SIGTERM any drains for as long as its configuration says.
// It does not: speak xDS, TLS or HTTP on the data path (TCP is passed through as it is), drain by the
// number of open connections, capture IPv6 or UDP, or serve metrics.
package main

import (
	"errors"
	"fmt"
	"os"
)

// failure is the exit status of every command that fails; the real program says os.Exit(-1).
const failure = 255

var commands = map[string]func([]string) error{
	"proxy":          proxy,
	"wait":           wait,
	"request":        request,
	"istio-iptables": iptables,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(failure)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("a command is missing: proxy, wait, request or istio-iptables")
	}
	command, ok := commands[args[0]]
	if !ok {
		return fmt.Errorf("unknown command %q for \"pilot-agent\"", args[0])
	}
	return command(args[1:])
}
