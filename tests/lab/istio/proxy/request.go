package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The only ports that request talks to; a moved status port is not among them.
var allowed = []int{15000, 15004, 15020, 15021}

// request sends one HTTP request to a port of this pod and prints the answer's body. 404 is a success, any
// other status above 399 is not. The port defaults to Envoy's admin port.
func request(args []string) error {
	flags := flag.NewFlagSet("request", flag.ContinueOnError)
	port := flags.Int("debug-port", 15000, "the port to send the request to")
	words, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(words) < 2 {
		return errors.New("requires at least 2 arg(s): METHOD PATH [BODY]")
	}
	if !slices.Contains(allowed, *port) {
		return fmt.Errorf("debug port %d is not in allowed list %v", *port, allowed)
	}
	body := ""
	if len(words) > 2 {
		body = words[2]
	}
	url := "http://" + address("localhost", *port) + "/" + strings.TrimPrefix(words[1], "/")
	query, err := http.NewRequest(words[0], url, strings.NewReader(body))
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 60 * time.Second}
	answer, err := client.Do(query)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode > 399 && answer.StatusCode != http.StatusNotFound {
		return fmt.Errorf("received unsuccessful status code %d: %s", answer.StatusCode, text)
	}
	fmt.Println(string(text))
	return nil
}

// parse takes flags before, between and after the words, as the real command line does.
func parse(flags *flag.FlagSet, args []string) (words []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return words, nil
		}
		words = append(words, flags.Arg(0))
		args = flags.Args()[1:]
	}
}
