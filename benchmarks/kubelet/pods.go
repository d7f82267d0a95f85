package main

import (
	"bytes"
	"fmt"
	"sync"
	"time"
)

// record is what happened to the proxy of one pod.
type record struct {
	told  time.Time // the first quit arrived
	ended time.Time // the API server had stored its end
}

// pods are all whose proxies were ever told to exit, by <namespace>/<name>.
type pods struct {
	server      *api
	namespace   string
	delay       time.Duration
	connections int
	lock        sync.Mutex
	records     map[string]record
	execs       int
	failure     error // of a patch that no order waits for
}

func newPods(server *api, given plan) *pods {
	return &pods{
		server:      server,
		namespace:   given.Namespace,
		delay:       time.Duration(given.ExitDelay * float64(time.Second)),
		connections: given.Connections,
		records:     map[string]record{},
	}
}

func (all *pods) obey(what order) (reply, error) {
	names := make([]string, what.Count)
	for number := range names {
		names[number] = fmt.Sprintf("%s/%s-%06d", all.place(what, number), what.Prefix, number)
	}
	switch what.Do {
	case "create":
		return reply{}, all.create(names, what)
	case "patch":
		return all.patch(names, what)
	case "await":
		return all.await(names, time.Duration(what.Limit*float64(time.Second)))
	}
	return reply{}, fmt.Errorf("order %q: expected create, patch or await", what.Do)
}

// place names the namespace of the pod with this number.
func (all *pods) place(what order, number int) string {
	if what.Spread == 0 {
		return all.namespace
	}
	return fmt.Sprintf("%s-%05d", all.namespace, what.First+number%what.Spread)
}

// atOnce does something for each number below count over all connections; returns a failure, if any.
func (all *pods) atOnce(count int, act func(number int) error) error {
	free := make(chan struct{}, all.connections)
	failures := make(chan error, count)
	for number := range count {
		free <- struct{}{}
		go func() {
			failures <- act(number)
			<-free
		}()
	}
	return failed(failures, count)
}

// failed awaits so many results and returns a failure, if any.
func failed(results chan error, count int) (failure error) {
	for range count {
		if one := <-results; one != nil {
			failure = one
		}
	}
	return failure
}

// create makes the first pod, gives it its status, and stores copies of it in etcd under the other
// names, a hundred times as fast. All names have the same length, and so has what is encoded.
func (all *pods) create(names []string, what order) error {
	first := names[0]
	uid, err := all.server.create(first, what.Pod)
	if err == nil && what.Light {
		err = all.server.lighten(first)
	}
	if err == nil {
		err = all.server.patch(first, what.Body, 0)
	}
	if err != nil {
		return err
	}
	value, err := all.server.stored(first)
	if err != nil {
		return err
	}
	err = all.atOnce(len(names)-1, func(index int) error {
		name := names[index+1]
		made := value
		for _, change := range [][2]string{
			{podOf(first), podOf(name)},
			{ownerOf(first), ownerOf(name)},
			{namespaceOf(first), namespaceOf(name)},
			{uid, another(uid)},
		} {
			made = bytes.ReplaceAll(made, []byte(change[0]), []byte(change[1]))
		}
		return all.server.put(name, made)
	})
	if err != nil {
		return err
	}
	return all.server.awaitCached(names[len(names)-1])
}

// patch moves one pod after another. A rate is a schedule that a slow answer does not shift, so
// slowness shows as latency and not as fewer events.
func (all *pods) patch(names []string, what order) (reply, error) {
	events := what.Events
	if events == 0 {
		events = len(names)
	}
	sent, stored := make([]float64, events), make([]float64, events)
	move := func(number int) error {
		sent[number] = seconds(time.Now())
		err := all.server.patch(names[number%len(names)], what.Body, number)
		stored[number] = seconds(time.Now())
		return err
	}
	if what.Rate == 0 {
		return reply{Sent: sent, Stored: stored}, all.atOnce(events, move)
	}
	failures, start := make(chan error, events), time.Now()
	for number := range events {
		time.Sleep(time.Until(start.Add(time.Duration(float64(number) / what.Rate * 1e9))))
		go func() { failures <- move(number) }()
	}
	return reply{Sent: sent, Stored: stored}, failed(failures, events)
}

// await returns when every proxy of these pods has ended, or when the time is over.
func (all *pods) await(names []string, limit time.Duration) (reply, error) {
	for late := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		answer, complete, err := all.seen(names)
		if complete || err != nil || time.Now().After(late) {
			return answer, err
		}
	}
}

func (all *pods) seen(names []string) (answer reply, complete bool, err error) {
	all.lock.Lock()
	defer all.lock.Unlock()
	complete = true
	for _, name := range names {
		found := all.records[name]
		answer.Told = append(answer.Told, seconds(found.told))
		answer.Ended = append(answer.Ended, seconds(found.ended))
		complete = complete && !found.ended.IsZero()
	}
	answer.Execs = all.execs
	return answer, complete, all.failure
}

// quit notes that the proxy of the pod was told to exit; it does so a little later, once.
func (all *pods) quit(name string) {
	now := time.Now()
	all.lock.Lock()
	defer all.lock.Unlock()
	all.execs++
	if all.records[name].told.IsZero() {
		all.records[name] = record{told: now}
		time.AfterFunc(all.delay, func() { all.end(name, now) })
	}
}

func (all *pods) end(name string, told time.Time) {
	err := all.server.patch(name, "exited", 0)
	ended := time.Now()
	if err == nil {
		err = all.server.patch(name, "over", 0)
	}
	all.lock.Lock()
	defer all.lock.Unlock()
	if err != nil {
		all.failure = err
	} else {
		all.records[name] = record{told, ended}
	}
}
