package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Where the downward API volume istio-podinfo puts the pod's annotations.
const annotationsFile = "/etc/istio/pod/annotations"

// The annotation that moves the status port; PROXY_CONFIG does not show it.
const statusPortAnnotation = "status.sidecar.istio.io/port"

// settings are what the injector decided about this proxy.
type settings struct {
	// status is 0 when the pod wants no status server.
	status, ready, admin, outbound, inbound int
	// delay is the time between the start of the process and the readiness of "Envoy".
	delay time.Duration
	// drain is how long it serves on after SIGTERM, and where quitDrains also when it is told to quit.
	// Istio's default is 5 s for both; here SIGTERM ends at once unless terminationDrainDuration is set.
	drain      time.Duration
	quitDrains bool
}

// readSettings takes the ports from PROXY_CONFIG and the pod's annotations, like the agent, and the
// readiness delay in seconds from LAB_READY_DELAY. LAB_QUIT_DRAINS makes it an Istio up to 1.25.
func readSettings(env func(string) string, annotations string) (settings, error) {
	s := settings{status: 15020, ready: 15021, admin: 15000, outbound: 15001, inbound: 15006}
	if s.quitDrains = env("LAB_QUIT_DRAINS") == "true"; s.quitDrains {
		s.drain = 5 * time.Second
	}
	var config struct {
		StatusPort     *int   `json:"statusPort"`
		ProxyAdminPort *int   `json:"proxyAdminPort"`
		Drain          string `json:"terminationDrainDuration"`
	}
	if text := env("PROXY_CONFIG"); text != "" {
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			return s, fmt.Errorf("PROXY_CONFIG: %q: %w", text, err)
		}
	}
	if config.StatusPort != nil {
		s.status = *config.StatusPort
	}
	if config.ProxyAdminPort != nil {
		s.admin = *config.ProxyAdminPort
	}
	if config.Drain != "" {
		drain, err := time.ParseDuration(config.Drain)
		if err != nil {
			return s, fmt.Errorf("terminationDrainDuration: %w", err)
		}
		s.drain = drain
	}
	if text := annotation(annotations, statusPortAnnotation); text != "" {
		port, err := strconv.Atoi(text)
		if err != nil {
			return s, fmt.Errorf("%s: %q: expected a port number", statusPortAnnotation, text)
		}
		s.status = port
	}
	var err error
	s.delay, err = seconds(env, "LAB_READY_DELAY", 0)
	return s, err
}

// seconds reads a variable that ProxyConfig's proxyMetadata can give to the proxy and its hooks.
func seconds(env func(string) string, name string, otherwise time.Duration) (time.Duration, error) {
	text := env(name)
	if text == "" {
		return otherwise, nil
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q: expected seconds", name, text)
	}
	return time.Duration(number * float64(time.Second)), nil
}

// annotation finds a key in a downward API file: lines of key="quoted value".
func annotation(file, key string) string {
	text, err := os.Open(file)
	if err != nil {
		return "" // Outside a pod there is no such file.
	}
	defer text.Close()
	for lines := bufio.NewScanner(text); lines.Scan(); {
		if quoted, found := strings.CutPrefix(lines.Text(), key+"="); found {
			if value, err := strconv.Unquote(quoted); err == nil {
				return value
			}
		}
	}
	return ""
}

// address is where a port of ours really is. LAB_PORT_OFFSET moves all of them, so that tests of this
// program on one machine's loopback do not collide; in a pod it is not set.
func address(host string, port int) string {
	offset, _ := strconv.Atoi(os.Getenv("LAB_PORT_OFFSET"))
	return fmt.Sprintf("%s:%d", host, port+offset)
}
