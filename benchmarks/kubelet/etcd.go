package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// stored returns a pod as the API server encoded it for etcd, and its UID.
func (server *api) stored(pod string) (value []byte, uid string, err error) {
	var answer struct {
		Kvs []struct {
			Value []byte `json:"value"`
		} `json:"kvs"`
	}
	if err := server.etcdCall("range", map[string][]byte{"key": etcdKey(pod)}, &answer); err != nil {
		return nil, "", err
	}
	if len(answer.Kvs) != 1 {
		return nil, "", fmt.Errorf("%s: %d such keys in etcd, expected 1", etcdKey(pod), len(answer.Kvs))
	}
	_, url := server.place(pod)
	var object struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	found, err := server.client.Get(url)
	if err != nil {
		return nil, "", err
	}
	defer found.Body.Close()
	if err := json.NewDecoder(found.Body).Decode(&object); err != nil {
		return nil, "", err
	}
	return answer.Kvs[0].Value, object.Metadata.UID, nil
}

// put stores a pod behind the API server's back, whose caches follow etcd.
func (server *api) put(pod string, value []byte) error {
	return server.etcdCall("put", map[string][]byte{"key": etcdKey(pod), "value": value}, nil)
}

// awaitCached returns when the API server's cache has the pod.
func (server *api) awaitCached(pod string) error {
	_, url := server.place(pod)
	for late := time.Now().Add(patience); time.Now().Before(late); time.Sleep(100 * time.Millisecond) {
		found, err := server.client.Get(url + "?resourceVersion=0")
		if err != nil {
			return err
		}
		io.Copy(io.Discard, found.Body)
		found.Body.Close()
		if found.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("pod %s: the API server does not find it", pod)
}

// etcdCall uses etcd's JSON gateway, in which bytes are base64, as encoding/json writes them.
func (server *api) etcdCall(what string, request map[string][]byte, into any) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	answer, err := server.client.Post(server.etcd+"/v3/kv/"+what, "application/json", bytes.NewReader(text))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd %s: %s: %.300s", what, answer.Status, said)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(said, into)
}

func etcdKey(pod string) []byte {
	return []byte("/registry/pods/" + pod)
}

// newUID has the form of an object's UID, and its length.
func newUID() string {
	random := make([]byte, 16)
	rand.Read(random)
	return fmt.Sprintf("%x-%x-%x-%x-%x", random[:4], random[4:6], random[6:8], random[8:10], random[10:])
}
