package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	dialTimeout = 10 * time.Second
	// SO_ORIGINAL_DST of linux/netfilter_ipv4.h: where a redirected connection was going.
	originalDestination = 80
)

// forward passes every connection of a listener on to where it was going before it was redirected. It
// returns when the listener is closed.
func forward(listener net.Listener, dialer net.Dialer) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			if err := pass(connection.(*net.TCPConn), dialer); err != nil {
				log.Printf("%s: %v", connection.RemoteAddr(), err)
			}
		}()
	}
}

func pass(down *net.TCPConn, dialer net.Dialer) error {
	target, err := destination(down)
	if err != nil {
		return err
	}
	if target == down.LocalAddr().String() {
		return fmt.Errorf("was not redirected: refusing to connect to %s, which is this proxy", target)
	}
	// Envoy looks for a protocol in what the client sends first, and connects only then, unless the
	// name of the Service's port has one. Here it has none: a client that says nothing meets nobody.
	first := make([]byte, 32<<10)
	size, err := down.Read(first)
	if size == 0 {
		return err
	}
	upstream, err := dialer.Dial("tcp4", target)
	if err != nil {
		return err
	}
	defer upstream.Close()
	up := upstream.(*net.TCPConn)
	if _, err := up.Write(first[:size]); err != nil {
		return err
	}
	var both sync.WaitGroup
	both.Go(func() { stream(up, down) })
	both.Go(func() { stream(down, up) })
	both.Wait()
	return nil
}

// stream copies one direction and passes the end of it on. An error of either side shows as that end.
func stream(to, from *net.TCPConn) {
	io.Copy(to, from)
	to.CloseWrite()
}

// destination asks the kernel for the address before the redirect, as host:port.
func destination(connection *net.TCPConn) (string, error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return "", err
	}
	var target syscall.RawSockaddrInet4
	size := uint32(unsafe.Sizeof(target))
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall6(
			syscall.SYS_GETSOCKOPT, fd, syscall.IPPROTO_IP, originalDestination,
			uintptr(unsafe.Pointer(&target)), uintptr(unsafe.Pointer(&size)), 0,
		)
	})
	if err != nil {
		return "", err
	}
	if errno != 0 {
		return "", fmt.Errorf("SO_ORIGINAL_DST: %w", errno)
	}
	// The port is in network order, whatever the machine's is.
	port := (*[2]byte)(unsafe.Pointer(&target.Port))
	return fmt.Sprintf("%s:%d", net.IP(target.Addr[:]), int(port[0])<<8|int(port[1])), nil
}
