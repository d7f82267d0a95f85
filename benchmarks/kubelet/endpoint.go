package main

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/gorilla/websocket"
)

const (
	success = "\x03" + `{"metadata":{},"status":"Success"}`
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
		http.Error(answer, "not a quit", http.StatusInternalServerError)
		return
	}
	all.quit(request.PathValue("namespace") + "/" + request.PathValue("pod"))
	upgrader := websocket.Upgrader{Subprotocols: websocket.Subprotocols(request)[:1]}
	connection, err := upgrader.Upgrade(answer, request, nil)
	if err != nil {
		return
	}
	defer connection.Close()
	for _, message := range []string{"\x01", "\x01OK", success} {
		connection.WriteMessage(websocket.BinaryMessage, []byte(message))
	}
	until := time.Now().Add(parting)
	bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	connection.WriteControl(websocket.CloseMessage, bye, until)
	connection.SetReadDeadline(until)
	connection.ReadMessage()
}
