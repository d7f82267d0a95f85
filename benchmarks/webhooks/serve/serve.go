// Package serve is what both yardsticks share: an HTTPS server as Go programs usually have it.
package serve

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
)

// Main serves handler at the path /mutate until the process is killed; arguments are those of the
// program: ADDRESS CERTIFICATE KEY, the last two PEM files.
func Main(handler http.Handler) {
	if len(os.Args) != 4 {
		fmt.Fprintf(os.Stderr, "%s: arguments: %d, expected ADDRESS CERTIFICATE KEY\n", os.Args[0], len(os.Args)-1)
		os.Exit(2)
	}
	routes := http.NewServeMux()
	routes.Handle("/mutate", handler)
	server := &http.Server{
		Addr:    os.Args[1],
		Handler: routes,
		// kube-apiserver calls webhooks over HTTP/1.1.
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
	}
	fmt.Fprintln(os.Stderr, server.ListenAndServeTLS(os.Args[2], os.Args[3]))
	os.Exit(1)
}
