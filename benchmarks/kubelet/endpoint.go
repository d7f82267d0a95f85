package main

import (
	"bufio"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	magic   = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" // RFC 6455, section 1.3
	binary  = 0x82                                   // a whole binary message
	closing = 0x88
	success = `{"metadata":{},"status":"Success"}`
	parting = time.Second // for the peer to close its half
)

// listen serves exec on a free port of 127.0.0.1, over HTTPS, and returns the port.
func listen(given plan, all *pods) (int, error) {
	own, err := tls.LoadX509KeyPair(given.Certificate, given.Key)
	if err != nil {
		return 0, err
	}
	// No HTTP/2, in which a connection cannot become a WebSocket.
	settings := &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{"http/1.1"}}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", settings)
	if err != nil {
		return 0, err
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /exec/{namespace}/{pod}/{container}", all.exec)
	server := &http.Server{Handler: routes, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(listener)
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// exec answers the quit command as pilot-agent does, in the frames of Kubernetes 1.36: an empty
// message on stdout, the output, a Status on channel 3, close.
func (all *pods) exec(answer http.ResponseWriter, request *http.Request) {
	command := request.URL.Query()["command"]
	if request.PathValue("container") != "istio-proxy" || !slices.Contains(command, "quitquitquit") {
		http.Error(answer, "not a quit: "+strings.Join(command, " "), http.StatusInternalServerError)
		return
	}
	if err := all.quit(request.PathValue("namespace") + "/" + request.PathValue("pod")); err != nil {
		http.Error(answer, err.Error(), http.StatusNotFound)
		return
	}
	offered := strings.Split(request.Header.Get("Sec-WebSocket-Protocol"), ",")
	connection, buffer, err := answer.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(patience))
	digest := sha1.Sum([]byte(request.Header.Get("Sec-WebSocket-Key") + magic))
	head := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Protocol: " + strings.TrimSpace(offered[0]) + "\r\n" +
		"Sec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(digest[:]) + "\r\n\r\n"
	buffer.WriteString(head)
	frame(buffer.Writer, binary, "\x01")
	frame(buffer.Writer, binary, "\x01OK")
	frame(buffer.Writer, binary, "\x03"+success)
	frame(buffer.Writer, closing, "\x03\xe8") // 1000, normal closure
	if buffer.Flush() != nil {
		return
	}
	connection.SetReadDeadline(time.Now().Add(parting))
	io.Copy(io.Discard, buffer.Reader)
}

// frame writes one unmasked frame of less than 126 bytes (RFC 6455, section 5.2).
func frame(to *bufio.Writer, kind byte, payload string) {
	to.WriteByte(kind)
	to.WriteByte(byte(len(payload)))
	to.WriteString(payload)
}
