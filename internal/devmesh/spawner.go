package devmesh

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// A spawner starts processes from one OS thread. A parent-death signal is tied to
// the thread that forked and not to its process, so a child started from any
// goroutine could be killed when the Go runtime retires a thread.
type spawner struct {
	requests chan request
	done     chan struct{}
}

type request struct {
	cmd   *exec.Cmd
	reply chan error
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan request), done: make(chan struct{})}
	go s.run()
	return s
}

// run never unlocks its thread: the runtime ends the thread with the goroutine,
// which must therefore outlive every child.
func (s *spawner) run() {
	defer close(s.done)
	runtime.LockOSThread()
	for r := range s.requests {
		r.reply <- r.cmd.Start()
	}
}

// start starts cmd in its own process group and with SIGKILL as parent-death
// signal, and with that group id unless it is 0.
func (s *spawner) start(cmd *exec.Cmd, group int) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if group != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(os.Getuid()), Gid: uint32(group)}
	}
	r := request{cmd: cmd, reply: make(chan error, 1)}
	s.requests <- r
	return <-r.reply
}

// close ends the thread. Every child must have ended and no start may follow.
func (s *spawner) close() {
	close(s.requests)
	<-s.done
}
