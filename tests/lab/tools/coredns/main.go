// CoreDNS with the plugins that the lab's configuration names. All of them would be ten times the code to compile.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	// In the order in which they see a request.
	dnsserver.Directives = []string{"bind", "errors", "kubernetes"}
	coremain.Run()
}
