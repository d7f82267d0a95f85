package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	uidMark    = "@UID@"
	numberMark = "@NUMBER@"
	uidSize    = 36
	numberSize = 8
	// What Go's HTTP client, hence kube-apiserver, gathers before its first write (net/http
	// Transport.WriteBufferSize); it writes the rest of a body at once.
	firstWrite = 4 << 10
	patience   = 30 * time.Second
)

// template is a request whose uid, and number if it has one, are written in place.
type template struct {
	text        []byte
	size        int // of the body
	uid, number int // offsets; number is -1 where there is none
}

func newTemplate(what order) (*template, error) {
	body, err := os.ReadFile(what.Body)
	if err != nil {
		return nil, err
	}
	body = bytes.Replace(body, []byte(uidMark), bytes.Repeat([]byte("u"), uidSize), 1)
	uid := bytes.Index(body, bytes.Repeat([]byte("u"), uidSize))
	if uid < 0 {
		return nil, fmt.Errorf("%s: has no %s", what.Body, uidMark)
	}
	number := bytes.Index(body, []byte(numberMark))
	if number >= 0 {
		body = bytes.Replace(body, []byte(numberMark), bytes.Repeat([]byte("0"), numberSize), 1)
		if uid > number {
			return nil, fmt.Errorf("%s: %s stands after %s", what.Body, uidMark, numberMark)
		}
	}
	head := fmt.Sprintf("POST /mutate?timeout=10s HTTP/1.1\r\nHost: %s:443\r\n"+
		"User-Agent: kube-apiserver-admission\r\nContent-Length: %d\r\n"+
		"Accept: application/json, */*\r\nContent-Type: application/json\r\n"+
		"Accept-Encoding: gzip\r\n\r\n", what.Name, len(body))
	made := &template{text: append([]byte(head), body...), size: len(body), uid: len(head) + uid, number: -1}
	if number >= 0 {
		made.number = len(head) + number
	}
	return made, nil
}

func uidOf(number int) string {
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", number)
}

// client is one connection, used for one review at a time.
type client struct {
	address  string
	settings *tls.Config
	template *template
	message  []byte
	stream   *tls.Conn
	buffer   *bufio.Reader
}

func newClient(what order, from *template) (*client, error) {
	text, err := os.ReadFile(what.Certificate)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: has no certificate", what.Certificate)
	}
	return &client{
		address: what.Address,
		settings: &tls.Config{
			RootCAs:    trusted,
			ServerName: what.Name,
			MinVersion: tls.VersionTLS13,
			NextProtos: []string{"http/1.1"},
		},
		template: from,
		message:  bytes.Clone(from.text),
	}, nil
}

func (c *client) open() error {
	stream, err := tls.Dial("tcp", c.address, c.settings)
	if err != nil {
		return err
	}
	c.stream = stream
	c.buffer = bufio.NewReaderSize(stream, firstWrite)
	return stream.SetDeadline(time.Now().Add(10 * patience))
}

func (c *client) close() {
	if c.stream != nil {
		c.stream.Close()
	}
	c.stream = nil
}

// post sends the review of that number and returns the body of its answer.
func (c *client) post(number int) ([]byte, error) {
	copy(c.message[c.template.uid:], uidOf(number))
	if c.template.number >= 0 {
		copy(c.message[c.template.number:], fmt.Sprintf("%0*d", numberSize, number))
	}
	first := min(firstWrite, len(c.message))
	if _, err := c.stream.Write(c.message[:first]); err != nil {
		return nil, err
	}
	if first < len(c.message) {
		if _, err := c.stream.Write(c.message[first:]); err != nil {
			return nil, err
		}
	}
	answer, err := http.ReadResponse(c.buffer, nil)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.300s", c.address, answer.Status, text)
	}
	return text, err
}

// verify says what is wrong with the answer to the review of that number.
func verify(text []byte, number int) error {
	var said struct {
		Kind     string `json:"kind"`
		Response struct {
			UID     string `json:"uid"`
			Allowed bool   `json:"allowed"`
			Patch   []byte `json:"patch"`
			Type    string `json:"patchType"`
		} `json:"response"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return fmt.Errorf("%w: %.300s", err, text)
	}
	var operations []struct {
		Op   string `json:"op"`
		Path string `json:"path"`
	}
	if err := json.Unmarshal(said.Response.Patch, &operations); err != nil {
		return fmt.Errorf("its patch: %w: %.300s", err, text)
	}
	whole := said.Kind == "AdmissionReview" && said.Response.Allowed && said.Response.Type == "JSONPatch"
	if !whole || said.Response.UID != uidOf(number) || len(operations) == 0 {
		return fmt.Errorf("expected a patch for %s: %.300s", uidOf(number), text)
	}
	return nil
}
