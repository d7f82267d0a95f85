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

// pods are all that were ever created, by <namespace>/<name>.
type pods struct {
	server      *api
	namespace   string
	delay       time.Duration
	connections int
	lock        sync.Mutex
	changed     chan struct{} // holds one token whenever a proxy has ended since it was taken
	records     map[string]*record
	execs       int
	failure     error // of a patch that no order waits for
}

func newPods(server *api, given plan) *pods {
	return &pods{
		server:      server,
		namespace:   given.Namespace,
		delay:       time.Duration(given.ExitDelay * float64(time.Second)),
		connections: given.Connections,
		changed:     make(chan struct{}, 1),
		records:     map[string]*record{},
	}
}

func (all *pods) obey(what order) (reply, error) {
	names := make([]string, what.Count)
	for number := range names {
		names[number] = fmt.Sprintf("%s/%s-%06d", all.place(what, number), what.Prefix, number)
	}
	switch what.Do {
	case "namespaces":
		return reply{}, all.atOnce(what.Spread, func(number int) error {
			return all.server.namespace(all.place(what, number), what.Pod)
		})
	case "create":
		return reply{}, all.create(names, what)
	case "copy":
		return reply{}, all.copies(names, what)
	case "patch":
		return all.scheduled(names, what, func(name string, number int) error {
			return all.server.patch(name, what.Body, number, what.Whole)
		})
	case "dry":
		return all.scheduled(names, what, func(name string, number int) error {
			return all.server.create(name, what.Pod, number, true)
		})
	case "await":
		return all.await(names, time.Duration(what.Limit*float64(time.Second)))
	}
	return reply{}, fmt.Errorf("order %q: expected namespaces, create, copy, patch, dry or await", what.Do)
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
	work := make(chan int)
	failures := make(chan error, all.connections)
	for range all.connections {
		go func() {
			var failure error
			for number := range work {
				if failure == nil {
					failure = act(number)
				}
			}
			failures <- failure
		}()
	}
	for number := range count {
		work <- number
	}
	close(work)
	var failure error
	for range all.connections {
		if one := <-failures; one != nil {
			failure = one
		}
	}
	return failure
}

// create makes pods and gives them their first status, if there is one.
func (all *pods) create(names []string, what order) error {
	all.lock.Lock()
	for _, name := range names {
		all.records[name] = &record{}
	}
	all.lock.Unlock()
	return all.atOnce(len(names), func(number int) error {
		name := names[number]
		err := all.server.create(name, what.Pod, number, false)
		if err == nil && what.Light {
			err = all.server.lighten(name)
		}
		if err == nil && what.Body != "" {
			err = all.server.patch(name, what.Body, number, false)
		}
		return err
	})
}

// copies makes the first pod, and stores copies of it in etcd under the other names. All names have
// the same length, and so has what is encoded.
func (all *pods) copies(names []string, what order) error {
	if err := all.create(names[:1], what); err != nil {
		return err
	}
	first := names[0]
	value, uid, err := all.server.stored(first)
	if err != nil {
		return err
	}
	all.lock.Lock()
	for _, name := range names {
		all.records[name] = &record{}
	}
	all.lock.Unlock()
	err = all.atOnce(len(names)-1, func(index int) error {
		name := names[index+1]
		made := value
		for _, change := range [][2]string{
			{podOf(first), podOf(name)},
			{ownerOf(first), ownerOf(name)},
			{namespaceOf(first), namespaceOf(name)},
			{uid, newUID()},
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

// scheduled does something with one pod after another. A rate is a schedule that a slow answer does
// not shift, so slowness shows as latency and not as fewer events.
func (all *pods) scheduled(names []string, what order, act func(string, int) error) (reply, error) {
	events := what.Events
	if events == 0 {
		events = len(names)
	}
	sent, stored := make([]float64, events), make([]float64, events)
	failures := make(chan error, events)
	free := make(chan struct{}, all.connections)
	start := time.Now()
	for number := range events {
		if what.Rate > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(float64(number) / what.Rate * 1e9))))
		} else {
			free <- struct{}{}
		}
		go func() {
			sent[number] = seconds(time.Now())
			failure := act(names[number%len(names)], number)
			stored[number] = seconds(time.Now())
			if what.Rate == 0 {
				<-free
			}
			failures <- failure
		}()
	}
	var failure error
	for range events {
		if one := <-failures; one != nil {
			failure = one
		}
	}
	return reply{Sent: sent, Stored: stored}, failure
}

// await returns when every proxy of these pods has ended, or when the time is over.
func (all *pods) await(names []string, limit time.Duration) (reply, error) {
	late := time.After(limit)
	for {
		answer, complete, err := all.seen(names)
		if complete || err != nil {
			return answer, err
		}
		select {
		case <-all.changed:
		case <-late:
			return answer, nil
		}
	}
}

func (all *pods) seen(names []string) (answer reply, complete bool, err error) {
	all.lock.Lock()
	defer all.lock.Unlock()
	complete = true
	for _, name := range names {
		found, ok := all.records[name]
		if !ok {
			return reply{}, false, fmt.Errorf("pod %s: was never created", name)
		}
		answer.Told = append(answer.Told, seconds(found.told))
		answer.Ended = append(answer.Ended, seconds(found.ended))
		complete = complete && !found.ended.IsZero()
	}
	answer.Execs = all.execs
	return answer, complete, all.failure
}

// quit notes that the proxy of the pod was told to exit; it does so a little later, once.
func (all *pods) quit(name string) error {
	now := time.Now()
	all.lock.Lock()
	defer all.lock.Unlock()
	found, ok := all.records[name]
	if !ok {
		return fmt.Errorf("pod %s does not exist", name)
	}
	all.execs++
	if !found.told.IsZero() {
		return nil
	}
	found.told = now
	time.AfterFunc(all.delay, func() { all.end(name, found) })
	return nil
}

func (all *pods) end(name string, found *record) {
	err := all.server.patch(name, "exited", 0, false)
	ended := time.Now()
	if err == nil {
		err = all.server.patch(name, "over", 0, false)
	}
	all.lock.Lock()
	defer all.lock.Unlock()
	if err != nil {
		all.failure = err
	} else {
		found.ended = ended
	}
	select {
	case all.changed <- struct{}{}:
	default:
	}
}
