package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessOptions are the optional arguments of Start.
type ProcessOptions struct {
	Log      *slog.Logger            // gets the child's stderr, line by line; nil discards it
	Progress func(done, total int64) // bytes loaded; called from one goroutine, must not block
	Env      []string                // "KEY=value" added to this process's environment for the child
}

// Process is a stage in a child process. Its methods may be used by any number of
// goroutines. Every error after the child died is ErrDead and says how it died.
type Process struct {
	link
	cmd  *exec.Cmd
	area *area
	info Info

	batch slot // of forwards
	cells slot // of cells requests

	reading chan struct{} // closed when the socket's reader has ended
	done    chan struct{} // closed when the child is reaped and all is released
	exit    ExitStatus    // valid after done
	lost    error         // why the reader ended; valid after reading
	grace   *time.Timer   // kills a child that closed its socket and lives on; valid after reading, may be nil
}

// Start starts exe with args as an engine and returns when it has loaded the stage
// of spec. The child must call Serve. When ctx ends before that, the child is
// killed; afterwards ctx has no influence.
func Start(ctx context.Context, exe string, args []string, spec Spec, opt ProcessOptions) (*Process, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	p := &Process{
		batch: newSlot(), cells: newSlot(), reading: make(chan struct{}), done: make(chan struct{}),
	}
	memory, err := p.spawn(exe, args, opt)
	if err != nil {
		return nil, fmt.Errorf("start engine %s: %w", exe, err)
	}
	defer memory.Close()
	stop := context.AfterFunc(ctx, p.Kill)
	defer stop()
	err = p.open(spec, memory, opt.Progress)
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		p.Kill()
		close(p.reading)
		<-p.done
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			err = fmt.Errorf("%w: %v", ErrDead, p.exit)
		}
		return nil, fmt.Errorf("engine for layers %v of %s: %w", spec.Layers, spec.Path, err)
	}
	go p.read()
	return p, nil
}

// spawn starts the child and the goroutine that owns it. The returned file is the
// area's memory.
func (p *Process) spawn(exe string, args []string, opt ProcessOptions) (memory *os.File, err error) {
	fd, err := unix.MemfdCreate("kevlard-engine", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create shared area: %w", err)
	}
	memory = os.NewFile(uintptr(fd), "kevlard-engine")
	ours, theirs, err := socketPair()
	if err != nil {
		memory.Close()
		return nil, err
	}
	defer theirs.Close()
	stderr, stderrW, err := os.Pipe()
	if err != nil {
		ours.Close()
		memory.Close()
		return nil, err
	}
	defer stderrW.Close()
	p.link = newLink(ours, "the engine")
	p.cmd = exec.Command(exe, args...)
	p.cmd.Env = append(append(os.Environ(), "GGML_NO_BACKTRACE=1"), opt.Env...)
	p.cmd.Stdout, p.cmd.Stderr = stderrW, stderrW
	p.cmd.ExtraFiles = []*os.File{theirs, memory}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go p.own(stderr, opt.Log, started)
	if err := <-started; err != nil {
		ours.Close()
		memory.Close()
		return nil, err
	}
	p.peer = fmt.Sprintf("engine %d", p.PID())
	return memory, nil
}

// own starts the child, waits for its end and releases everything. It keeps its OS
// thread for as long as the child lives, because the kernel sends PDEATHSIG when
// the *thread* that forked the child ends.
func (p *Process) own(stderr *os.File, log *slog.Logger, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		stderr.Close()
		started <- err
		return
	}
	log = log.With("pid", p.cmd.Process.Pid)
	tail := make(chan string)
	go func() { tail <- forward(stderr, log, time.Now) }()
	started <- nil
	err := p.cmd.Wait()
	message := <-tail // ends when the last writer of the pipe has
	stderr.Close()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		message = err.Error()
	}
	p.exit = exitStatus(p.cmd.ProcessState, message)
	// The reader may still hold answers that the child sent before its end; it ends by
	// itself, since the other end of the socket is closed now.
	<-p.reading
	if p.grace != nil {
		p.grace.Stop()
	}
	p.conn.Close()
	p.settle()
	if p.area != nil {
		if err := p.area.unmap(); err != nil {
			log.Warn("unmap shared area", "error", err)
		}
	}
	close(p.done)
}

// open loads the stage and maps the area.
func (p *Process) open(spec Spec, memory *os.File, progress func(done, total int64)) error {
	if err := p.send(kindOpen, openBody{protocolVersion, spec}); err != nil {
		return err
	}
	for {
		k, b, err := p.codec.read(p.conn)
		if err != nil {
			return err
		}
		switch k {
		case kindProgress:
			var body progressBody
			if err := p.codec.body(k, b, &body); err != nil {
				return err
			}
			if progress != nil {
				progress(body.Done, body.Total)
			}
		case kindOpened:
			var body openedBody
			if err := p.codec.body(k, b, &body); err != nil {
				return err
			}
			if err := body.Fault.err(); err != nil {
				return err
			}
			p.info = body.Info
			return p.share(spec, memory)
		default:
			return fmt.Errorf("engine sent a frame of kind %d before it was open", k)
		}
	}
}

// share checks what the child says of itself and maps the area.
func (p *Process) share(spec Spec, memory *os.File) error {
	i := p.info
	if i.Layers != spec.Layers || i.Cells != spec.Cells || i.MaxRows != spec.MaxRows || i.Dim < 1 || i.Dim > maxArea/8/maxRows || i.CellBytes < 1 || i.CellBytes > maxArea/4 || i.Vocab < 1 {
		return fmt.Errorf("engine opened %+v, asked for %+v", i, spec)
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal shared area: %w", err)
	}
	var err error
	p.area, err = mapArea(int(memory.Fd()), i)
	return err
}

// Info describes the stage.
func (p *Process) Info() Info { return p.info }

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended and everything of it is released.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the child ended; it waits until it has.
func (p *Process) Exit() ExitStatus {
	<-p.done
	return p.exit
}

// Kill ends the child at once. It does not wait; see Done.
func (p *Process) Kill() {
	// An error means that the child has ended already.
	_ = p.cmd.Process.Kill()
}

// Close asks the child to finish what runs and exit, kills it when it does not in
// time, and returns when it has ended. The error is that of an end other than the
// wanted one.
func (p *Process) Close() error {
	timer := time.AfterFunc(closeGrace, p.Kill)
	defer timer.Stop()
	if err := p.send(kindClose, closeBody{}); err != nil {
		p.Kill()
	}
	if e := p.Exit(); e.Code != 0 {
		return fmt.Errorf("close engine %d: it ended by %v", p.PID(), e)
	}
	return nil
}

func socketPair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create socket pair: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "engine-child")
	ours, err = connOf(os.NewFile(uintptr(fds[0]), "engine-parent"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// connOf turns a socket's file into a connection and closes the file.
func connOf(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use socket %s: %w", f.Name(), err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("%s is a %T, want a unix socket", f.Name(), c)
	}
	return u, nil
}
