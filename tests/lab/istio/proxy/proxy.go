package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The agent needs a moment to stop Envoy after it answered. Within it, a client that runs by exec prints the
// answer and exits: 24 of 24 observed execs ended with 0 and OK, none was killed with the container.
const stopping = 300 * time.Millisecond

// agent is the running sidecar: its readiness, and the way to end it.
type agent struct {
	isReady atomic.Bool
	// drained says that nothing is left to drain.
	drained atomic.Bool
	quit    context.CancelFunc
}

// proxy runs the sidecar until it is told to quit or gets SIGTERM; both end with 0.
func proxy([]string) error {
	s, err := readSettings(os.Getenv, annotationsFile)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	serving, end := context.WithCancel(context.Background())
	defer end()
	a := &agent{quit: stop}
	if !s.quitDrains {
		a.quit = func() { a.drained.Store(true); stop() }
	}
	log.Printf("Status server on %d, Envoy ready after %s", s.status, s.delay)
	servers := []struct {
		address string
		handler http.Handler
	}{
		{address("", s.status), a.statusPort()},
		{address("", s.ready), a.readinessPort(s.status)},
		{address("127.0.0.1", s.admin), a.adminPort()},
	}
	if s.status == 0 {
		servers = servers[1:]
	}
	for _, server := range servers {
		listener, err := net.Listen("tcp", server.address)
		if err != nil {
			return err
		}
		defer listener.Close()
		go http.Serve(listener, server.handler) // It ends with the process.
	}
	if err := a.start(ctx, serving, s); err != nil {
		return err
	}
	<-ctx.Done()
	if !a.drained.Load() {
		log.Printf("Graceful termination period is %s, starting...", s.drain)
		time.Sleep(s.drain)
	}
	end()
	time.Sleep(stopping)
	log.Print("Agent exits")
	return nil
}

// start opens "Envoy's" listeners once the delay is over. Until then they do not exist, so that what
// istio-init redirected is refused. They serve on while the proxy drains.
func (a *agent) start(ctx, serving context.Context, s settings) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(s.delay):
	}
	for _, side := range []struct {
		port   int
		dialer net.Dialer
	}{
		{s.outbound, net.Dialer{Timeout: dialTimeout}},
		// Envoy reaches the application from this address, so that its connections can be told apart.
		{s.inbound, net.Dialer{Timeout: dialTimeout, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 6)}}},
	} {
		listener, err := net.Listen("tcp4", address("", side.port))
		if err != nil {
			return fmt.Errorf("envoy: %w", err)
		}
		// Envoy dies at once, the agent a moment later.
		context.AfterFunc(serving, func() { listener.Close() })
		go forward(listener, side.dialer)
	}
	a.isReady.Store(true)
	// The clock by which the kernel notes when a process starts, the same in every container.
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return err
	}
	log.Printf("Envoy proxy is ready, %d ns after the boot", now.Nano())
	return nil
}
