package main

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// CPUCLOCK_SCHED of linux/posix-timers.h: nanoseconds of all threads, also those that ended.
const schedClock = 2

type answered struct {
	number  int
	latency time.Duration
	text    []byte
}

// load is one order under way.
type load struct {
	what    order
	clients []*client
	next    atomic.Int64
	lock    sync.Mutex
	failure error
	done    []answered
}

func obey(what order) (reply, error) {
	from, err := newTemplate(what)
	if err != nil {
		return reply{}, err
	}
	all := &load{what: what}
	for range what.Connections {
		one, err := newClient(what, from)
		if err != nil {
			return reply{}, err
		}
		all.clients = append(all.clients, one)
		defer one.close()
	}
	// With a schedule, the thread that keeps it must not hold up those that read answers.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if what.Rate > 0 {
		runtime.GOMAXPROCS(2)
	}
	all.each(func(one *client) error { return all.warm(one) })
	if all.failure != nil {
		return reply{}, all.failure
	}
	runtime.GC()
	cpu, own, began := clock(what.PID), clock(0), time.Now()
	if what.Rate > 0 {
		all.scheduled(began)
	} else {
		end := began.Add(seconds(what.Seconds))
		all.each(func(one *client) error { return all.closed(one, end) })
	}
	answer := reply{
		Elapsed: time.Since(began).Seconds(),
		CPU:     (clock(what.PID) - cpu).Seconds(),
		Own:     (clock(0) - own).Seconds(),
		Bytes:   from.size,
	}
	for _, one := range all.done {
		if all.failure == nil {
			all.failure = verify(one.text, one.number)
		}
		answer.Latencies = append(answer.Latencies, one.latency.Microseconds())
	}
	return answer, all.failure
}

// each runs work for all clients at once and returns when all of it is done.
func (all *load) each(work func(*client) error) {
	var group sync.WaitGroup
	for _, one := range all.clients {
		group.Go(func() { all.note(work(one)) })
	}
	group.Wait()
}

func (all *load) note(err error) {
	all.lock.Lock()
	defer all.lock.Unlock()
	if all.failure == nil && err != nil {
		all.failure = err
	}
}

func (all *load) warm(one *client) error {
	for range max(all.what.Warm, 1) {
		if err := all.review(one, time.Now(), nil); err != nil {
			return err
		}
	}
	return nil
}

// closed sends the next review as soon as the last one is answered.
func (all *load) closed(one *client, end time.Time) error {
	var done []answered
	for begun := time.Now(); begun.Before(end); begun = time.Now() {
		if err := all.review(one, begun, &done); err != nil {
			return err
		}
	}
	all.lock.Lock()
	defer all.lock.Unlock()
	all.done = append(all.done, done...)
	return nil
}

// scheduled sends reviews when they are due, however long the answers take; one that finds no free
// connection waits, and its wait counts.
func (all *load) scheduled(began time.Time) {
	free := make(chan *client, len(all.clients))
	for _, one := range all.clients {
		free <- one
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var group sync.WaitGroup
	for number := range int(all.what.Rate * all.what.Seconds) {
		due := began.Add(seconds(float64(number) / all.what.Rate))
		// The runtime's own timers are a millisecond late.
		if ahead := time.Until(due); ahead > 0 {
			pause := syscall.NsecToTimespec(int64(ahead))
			syscall.Nanosleep(&pause, nil)
		}
		one := <-free
		group.Go(func() {
			var done []answered
			all.note(all.review(one, due, &done))
			free <- one
			all.lock.Lock()
			defer all.lock.Unlock()
			all.done = append(all.done, done...)
		})
	}
	group.Wait()
}

// review sends the next review and keeps its answer.
func (all *load) review(one *client, due time.Time, done *[]answered) error {
	number := int(all.next.Add(1))
	if one.stream == nil {
		if err := one.open(); err != nil {
			return fmt.Errorf("%s: %w", all.what.Address, err)
		}
	}
	text, err := one.post(number)
	if err != nil {
		return err
	}
	if done != nil {
		*done = append(*done, answered{number, time.Since(due), text})
	}
	if all.what.Fresh {
		one.close()
	}
	return nil
}

// clock is the CPU that a process has used (clock_getcpuclockid); 0 is this one.
func clock(pid int) time.Duration {
	var now syscall.Timespec
	id := uintptr(^pid)<<3 | schedClock
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&now)), 0)
	return time.Duration(now.Nano())
}

func seconds(count float64) time.Duration {
	return time.Duration(count * float64(time.Second))
}
