package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func post(handler http.Handler, path, peer string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodPost, path, nil)
	request.RemoteAddr = peer
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	return answer
}

func TestOnlyALoopbackPeerMayQuit(t *testing.T) {
	for peer, expected := range map[string]int{
		"127.0.0.1:4000":  http.StatusOK,
		"[::1]:4000":      http.StatusOK,
		"10.244.0.5:4000": http.StatusForbidden,
	} {
		quit := false
		a := &agent{quit: func() { quit = true }}
		answer := post(a.statusPort(), "/quitquitquit", peer)
		if answer.Code != expected {
			t.Errorf("%s: status %d, expected %d", peer, answer.Code, expected)
		}
		if quit != (expected == http.StatusOK) {
			t.Errorf("%s: quit: %v", peer, quit)
		}
	}
}

func TestAStrangerIsToldWhy(t *testing.T) {
	a := &agent{quit: func() {}}
	answer := post(a.statusPort(), "/quitquitquit", "10.244.0.5:4000")
	if text := answer.Body.String(); text != "Only requests from localhost are allowed\n" {
		t.Errorf("body %q", text)
	}
}

func TestDrainDoesNotQuit(t *testing.T) {
	a := &agent{quit: func() { t.Error("quit") }}
	if answer := post(a.statusPort(), "/drain", "127.0.0.1:4000"); answer.Code != http.StatusOK {
		t.Errorf("status %d", answer.Code)
	}
}

func TestTheAnnotationMovesTheStatusPort(t *testing.T) {
	file := filepath.Join(t.TempDir(), "annotations")
	text := "a=\"b\"\nstatus.sidecar.istio.io/port=\"15520\"\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := readSettings(func(string) string { return "" }, file)
	if err != nil || s.status != 15520 {
		t.Errorf("status port %d, error %v", s.status, err)
	}
}

func TestTheRedirectIsWhatTheInjectorAsksFor(t *testing.T) {
	r, err := readRedirect([]string{
		"-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*",
		"-d", "15090,15021,15020", "--log_output_level=default:info",
	})
	expected := redirect{15001, 15006, 1337, []uint16{15090, 15021, 15020}}
	if err != nil || !reflect.DeepEqual(r, expected) {
		t.Errorf("%v, error %v", r, err)
	}
}

func TestARedirectThatItCannotMakeIsRefused(t *testing.T) {
	for _, args := range [][]string{{"-m", "TPROXY"}, {"-i", "10.0.0.0/8"}, {"-d", "http"}, {"-q", "1"}} {
		if _, err := readRedirect(args); err == nil {
			t.Errorf("%v: accepted", args)
		}
	}
}
