package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// wait polls until the proxy is ready: what postStart runs when the application is held. It looks first
// after one period, and fails when the time is over: after a minute, or as LAB_WAIT_TIMEOUT says.
func wait(args []string) error {
	patience, err := seconds(os.Getenv, "LAB_WAIT_TIMEOUT", time.Minute)
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet("wait", flag.ContinueOnError)
	timeout := flags.Int("timeoutSeconds", int(patience/time.Second), "how long to wait at most")
	limit := flags.Int("requestTimeoutMillis", 500, "how long one request may take")
	period := flags.Int("periodMillis", 500, "the time between two requests")
	url := flags.String("url", "http://"+address("localhost", 15021)+"/healthz/ready", "what to ask")
	if _, err := parse(flags, args); err != nil {
		return err
	}
	client := http.Client{Timeout: time.Duration(*limit) * time.Millisecond}
	end := time.After(time.Duration(*timeout) * time.Second)
	tick := time.NewTicker(time.Duration(*period) * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-end:
			return fmt.Errorf("timeout waiting for Envoy proxy to become ready. Last error: %w", last)
		case <-tick.C:
			if last = ask(&client, *url); last == nil {
				return nil
			}
		}
	}
}

// ask succeeds when the URL answers 200.
func ask(client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP status code %d", answer.StatusCode)
	}
	return nil
}
