// Stands in for ztunnel towards Istio's CNI agent: it speaks the agent's protocol (istio pkg/zdsapi) on its socket,
// listens on ztunnel's ports in the network of each pod, and is ready while it is connected.
//
// It carries no traffic: a connection to one of these ports is closed. While the file `refuse` lies beside the socket,
// it refuses each pod with the text of that file.
package main

import (
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"istio.io/istio/pkg/zdsapi"
)

const folder = "/var/run/ztunnel"

var (
	ports     = []string{"15008", "15001", "15006"} // istio cni/pkg/config
	connected atomic.Bool
	pods      = map[string][]net.Listener{}
)

func main() {
	go serveReadiness()
	for {
		err := serve()
		connected.Store(false)
		log.Print(err)
		time.Sleep(time.Second)
	}
}

func serveReadiness() {
	handler := func(answer http.ResponseWriter, _ *http.Request) {
		if !connected.Load() {
			answer.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	log.Fatal(http.ListenAndServe(":15021", http.HandlerFunc(handler)))
}

// serve answers the agent until the connection ends.
func serve() error {
	connection, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: folder + "/ztunnel.sock", Net: "unixpacket"})
	if err != nil {
		return err
	}
	defer connection.Close()
	hello, err := proto.Marshal(&zdsapi.ZdsHello{Version: zdsapi.Version_V1})
	if err != nil {
		return err
	}
	if _, err = connection.Write(hello); err != nil {
		return err
	}
	connected.Store(true)
	data, ancillary := make([]byte, 1<<16), make([]byte, 1<<10)
	for {
		size, more, _, _, err := connection.ReadMsgUnix(data, ancillary)
		if err != nil {
			return err
		}
		if size == 0 {
			return errors.New("the agent has closed the connection")
		}
		var request zdsapi.WorkloadRequest
		if err := proto.Unmarshal(data[:size], &request); err != nil {
			return err
		}
		ack := &zdsapi.Ack{}
		if err := answer(&request, ancillary[:more]); err != nil {
			ack.Error = err.Error()
		}
		log.Printf("%v: %q", &request, ack.Error)
		response := &zdsapi.WorkloadResponse{Payload: &zdsapi.WorkloadResponse_Ack{Ack: ack}}
		body, err := proto.Marshal(response)
		if err != nil {
			return err
		}
		if _, err := connection.Write(body); err != nil {
			return err
		}
	}
}

func answer(request *zdsapi.WorkloadRequest, ancillary []byte) error {
	if gone := request.GetDel(); gone != nil {
		release(gone.Uid)
	}
	added := request.GetAdd()
	if added == nil {
		return nil
	}
	network, err := descriptor(ancillary)
	if err != nil {
		return err
	}
	defer unix.Close(network)
	if why, err := os.ReadFile(folder + "/refuse"); err == nil {
		return errors.New(string(why))
	}
	release(added.Uid)
	found, err := listen(network)
	pods[added.Uid] = found
	return err
}

func release(uid string) {
	for _, listener := range pods[uid] {
		listener.Close()
	}
	delete(pods, uid)
}

// descriptor returns the file descriptor that comes with a message.
func descriptor(ancillary []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(ancillary)
	if err != nil {
		return 0, err
	}
	for _, message := range messages {
		if found, err := unix.ParseUnixRights(&message); err == nil && len(found) == 1 {
			return found[0], nil
		}
	}
	return 0, errors.New("no network came with the pod")
}

// listen opens the ports in a network namespace. The thread that entered it is not used again.
func listen(network int) ([]net.Listener, error) {
	var found []net.Listener
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(network, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		for _, port := range ports {
			listener, err := net.Listen("tcp", "0.0.0.0:"+port)
			if err != nil {
				done <- err
				return
			}
			found = append(found, listener)
		}
		done <- nil
	}()
	err := <-done
	for _, listener := range found {
		go drain(listener)
	}
	return found, err
}

func drain(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		connection.Close()
	}
}
