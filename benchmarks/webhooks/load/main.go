// Bench-load sends AdmissionReviews to a webhook as kube-apiserver does and verifies every answer.
//
//	bench-load
//
// Orders come on stdin and replies go to stdout, one JSON object a line, one order at a time. It ends
// with stdin.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// order is one line of stdin: load for one webhook.
type order struct {
	Address     string `json:"address"`     // where it listens
	Name        string `json:"name"`        // the server's name in its certificate
	Certificate string `json:"certificate"` // PEM file that proves it
	PID         int    `json:"pid"`         // its process, for its CPU
	// Body is the file of a review in which @UID@ stands for the uid, of 36 characters, and @NUMBER@
	// for 8 digits that no other review has; the second may be missing.
	Body        string  `json:"body"`
	Connections int     `json:"connections"`
	Fresh       bool    `json:"fresh"`   // a new connection for every review
	Rate        float64 `json:"rate"`    // reviews a second on a fixed schedule; 0: as fast as it goes
	Warm        int     `json:"warm"`    // reviews of each connection before anything counts
	Seconds     float64 `json:"seconds"` // for how long reviews are sent
}

// reply is one line of stdout.
type reply struct {
	Error   string  `json:"error,omitempty"`
	Elapsed float64 `json:"elapsed"` // seconds from the first review to the last answer
	CPU     float64 `json:"cpu"`     // seconds of the webhook's process in that time
	Own     float64 `json:"own"`     // seconds of this process in that time
	Bytes   int     `json:"bytes"`   // of a body
	// Latencies in microseconds: with a rate since a review was due, else since it was begun; opening a
	// fresh connection is part of it.
	Latencies []int64 `json:"latencies"`
}

func main() {
	replies := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var what order
		answer := reply{}
		err := json.Unmarshal(lines.Bytes(), &what)
		if err == nil {
			answer, err = obey(what)
		}
		if err != nil {
			answer = reply{Error: err.Error()}
		}
		if err := replies.Encode(answer); err != nil {
			fmt.Fprintln(os.Stderr, "bench-load:", err)
			os.Exit(1)
		}
	}
}
