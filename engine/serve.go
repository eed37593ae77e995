package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kevlard/kevlard"
)

// faultVariable is the environment variable of the faults for tests.
const faultVariable = "KEVLARD_ENGINE_FAULT"

// File descriptors that the child inherits.
const (
	socketFD = 3
	areaFD   = 4
)

// Serve is the main of an engine process that Start started. It returns when the
// parent asks for it, closes the socket or dies, when ctx ends, or with the error
// after which the stage is dead. The caller must then exit the process, with a
// code other than 0 on an error; a running batch cannot be interrupted and is the
// one thing that may outlive Serve.
func Serve(ctx context.Context) error {
	if err := prepare(); err != nil {
		return err
	}
	conn, err := connOf(os.NewFile(socketFD, "engine socket"))
	if err != nil {
		return fmt.Errorf("%w (the engine verb is started by the daemon, not by hand)", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	s := &server{link: newLink(conn, "parent"), batches: make(chan forwardBody, 1), requests: make(chan cellsBody, 1)}
	if s.abortOn, err = abortToken(os.Getenv(faultVariable)); err != nil {
		return err
	}
	if err := s.open(); err != nil {
		return err
	}
	err = s.serve()
	if errors.Is(err, errClose) || ctx.Err() != nil {
		return nil
	}
	return err
}

// errClose ends the server as the parent wished.
var errClose = errors.New("the parent closed the engine")

// server is the child's side of the protocol.
type server struct {
	link
	abortOn kevlard.Token // test fault; -1 is none

	stage    *Stage
	area     *area
	batches  chan forwardBody
	requests chan cellsBody
}

// prepare sets what the kernel should know of an engine.
func prepare() error {
	plainAbort()
	slog.SetLogLoggerLevel(slog.LevelWarn) // the compute library reports every load through the default logger
	// Short of memory, the kernel should take an engine and not its daemon. Where /proc
	// is read-only it chooses by size, which is the engine as a rule.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	// Priorities are per thread; threads made later inherit them.
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH, Nice: 10}
		if err := unix.SchedSetAttr(tid, attr, 0); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("lower priority of thread %d: %w", tid, err)
		}
	}
	return nil
}

// abortToken reads the test fault "abort:TOKEN".
func abortToken(s string) (kevlard.Token, error) {
	if s == "" {
		return -1, nil
	}
	text, ok := strings.CutPrefix(s, "abort:")
	n, err := strconv.ParseInt(text, 10, 32)
	if !ok || err != nil || n < 0 {
		return 0, fmt.Errorf("%s is %q: want abort:TOKEN", faultVariable, s)
	}
	return kevlard.Token(n), nil
}

// open loads the stage that the first frame asks for and answers.
func (s *server) open() error {
	k, b, err := s.codec.read(s.conn)
	if err != nil {
		return fmt.Errorf("read open frame: %w", err)
	}
	var body openBody
	if k != kindOpen {
		return fmt.Errorf("first frame has kind %d, want %d", k, kindOpen)
	}
	if err := s.codec.body(k, b, &body); err != nil {
		return err
	}
	err = s.load(body)
	var info Info
	if err == nil {
		info = s.stage.Info()
	}
	return errors.Join(err, s.send(kindOpened, openedBody{info, faultOf(err)}))
}

func (s *server) load(body openBody) error {
	if body.Version != protocolVersion {
		return fmt.Errorf("engine speaks protocol version %d, the daemon %d: restart the daemon after an upgrade", protocolVersion, body.Version)
	}
	sent := int64(0)
	stage, err := Open(body.Spec, func(done, total int64) {
		if step := done * progressSteps / max(1, total); step > sent {
			sent = step
			// A lost parent is noticed by the reader.
			_ = s.send(kindProgress, progressBody{done, total})
		}
	})
	if err != nil {
		return err
	}
	in, out, kv := areaSizes(stage.Info())
	if err := unix.Ftruncate(areaFD, int64(in+out+kv)); err != nil {
		return fmt.Errorf("size shared area: %w", err)
	}
	s.stage = stage
	s.area, err = mapArea(areaFD, stage.Info())
	return err
}

// serve runs the reader and the two workers until one fails or the parent closes.
// What the others do then ends with the process.
func (s *server) serve() error {
	failed := make(chan error, 3)
	run := func(f func() error) {
		if err := f(); err != nil {
			failed <- err
		}
	}
	go run(s.read)
	go run(s.runBatches)
	go run(s.runCells)
	return <-failed
}

// read hands requests to their workers. On a close it ends the queue of batches,
// so that the batch that runs is finished and answered first.
func (s *server) read() error {
	for {
		k, b, err := s.codec.read(s.conn)
		if errors.Is(err, io.EOF) {
			return errors.New("the parent has gone")
		}
		if err != nil {
			return err
		}
		switch k {
		case kindForward:
			var body forwardBody
			if err := s.codec.body(k, b, &body); err != nil {
				return err
			}
			s.batches <- body
		case kindCells:
			var body cellsBody
			if err := s.codec.body(k, b, &body); err != nil {
				return err
			}
			s.requests <- body
		case kindClose:
			close(s.batches)
			return nil
		default:
			return fmt.Errorf("the parent sent a frame of kind %d", k)
		}
	}
}

// runBatches answers forwards one by one.
func (s *server) runBatches() error {
	info := s.stage.Info()
	for body := range s.batches {
		s.injectFault(body)
		b := Batch{Parts: body.Parts}
		var res Result
		var err error
		s.area.use(func(in, out, _ []byte) {
			if !info.First() {
				n := 0
				for _, p := range b.Parts {
					n += max(0, min(p.N, info.MaxRows))
				}
				b.Rows = in[:min(len(in), n*info.Dim*4)]
			}
			res, err = s.stage.Forward(b)
			copy(out, res.Rows)
		})
		answer := resultBody{Sampled: res.Sampled, RowBytes: len(res.Rows), Compute: res.Compute, Fault: faultOf(err)}
		if err := s.send(kindResult, answer); err != nil {
			return err
		}
		if err != nil && !errors.Is(err, ErrBatch) {
			return err // the stage is dead
		}
	}
	return errClose
}

// injectFault aborts as the test fault asks.
func (s *server) injectFault(body forwardBody) {
	if s.abortOn < 0 {
		return
	}
	for _, p := range body.Parts {
		if slices.Contains(p.Tokens, s.abortOn) {
			fmt.Fprintf(os.Stderr, "%s: token %d\n", faultVariable, s.abortOn)
			abort()
		}
	}
}

// runCells answers cells requests one by one, beside the batches.
func (s *server) runCells() error {
	size := s.stage.Info().CellBytes
	for r := range s.requests {
		var err error
		s.area.use(func(_, _, kv []byte) {
			if r.Op != opCopy && (r.N < 0 || r.N > len(kv)/size) {
				err = fmt.Errorf("%w: %d cells of %d bytes pass the shared area", ErrRange, r.N, size)
				return
			}
			switch r.Op {
			case opRead:
				err = s.stage.Read(r.Cell, r.N, kv[:r.N*size])
			case opWrite:
				err = s.stage.Write(r.Cell, r.N, kv[:r.N*size])
			case opCopy:
				err = s.stage.Copy(r.Cell, r.Src, r.N)
			default:
				err = fmt.Errorf("%w: operation %d: want 1 to 3", ErrRange, r.Op)
			}
		})
		if err := s.send(kindCellsResult, cellsReply{faultOf(err)}); err != nil {
			return err
		}
	}
	return nil
}
