package sdk

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// bytewise runs a row over the socket, unbroken and with each kind of kill.
func (s *suite) bytewise(t *testing.T, r row) {
	r = r.with(s.ModelName(), "", nil)
	if r.StopAt != nil || r.Decoys != nil {
		stops, _ := r.stops(s.unbroken(t.Context(), t, row{Endpoint: r.Endpoint, Body: r.Body}, false).choices[0].text)
		r = r.with(s.ModelName(), "stop", stops)
	}
	want := s.unbroken(t.Context(), t, r, true)
	if _, err := s.overSocket(t.Context(), r, want, nil); err != nil {
		t.Fatal(err)
	}
	for _, m := range moments() {
		t.Run(m.name, func(t *testing.T) {
			for try := range tries {
				f, err := s.arm(t.Context(), 0)
				if err != nil {
					t.Fatal(err)
				}
				size, fired := want.sizes[m.of(len(want.sizes), try)-1], false
				_, err = s.overSocket(t.Context(), r, want, func(text, _ int) {
					if text >= size && !fired {
						fired = true
						f.fire()
					}
				})
				hit, settleErr := f.settle(t.Context())
				if err := errors.Join(err, settleErr); err != nil {
					t.Fatalf("try %d, stage %d of %q, sessions %q: %v", try, f.stage, f.route, f.sessions, err)
				}
				if hit != nil {
					return
				}
			}
			t.Fatalf("the host was killed too late %d times: nothing was shown", tries)
		})
	}
}

func (s *suite) overSocket(ctx context.Context, r row, want *answer, watch watcher) (*raw, error) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	conn, err := dial(ctx, s.Entry().APIURL(), false)
	if err != nil {
		return nil, err
	}
	defer conn.conn.Close()
	got, err := askRaw(ctx, conn, r, watch)
	if err != nil {
		return got, err
	}
	if !got.done {
		return got, fmt.Errorf("the stream ended with the error %+v", *got.failed)
	}
	return got, errors.Join(got.check(r, s.ModelName(), true), got.same(want))
}

// slow has readers that stop reading in the middle of long answers. Others must not
// notice, and the readers must find their answers whole when they come back.
func (s *suite) slow(t *testing.T) {
	const readers = 3
	ctx, cancel := context.WithTimeout(t.Context(), endWithin)
	defer cancel()
	r, short := s.story(longTokens), s.story(40)
	want, wantShort := s.unbroken(ctx, t, r, true), s.unbroken(ctx, t, short, true)
	paused, resume, ended := make(chan struct{}, readers), make(chan struct{}), make(chan error, readers)
	for range readers {
		go func() {
			ended <- func() error {
				conn, err := dial(ctx, s.Entry().APIURL(), true)
				if err != nil {
					return err
				}
				defer conn.conn.Close()
				stopped := false
				got, err := askRaw(ctx, conn, r, func(text, _ int) {
					if text > 0 && !stopped {
						stopped = true
						paused <- struct{}{}
						<-resume
					}
				})
				if err != nil {
					return err
				}
				return errors.Join(got.check(r, s.ModelName(), true), got.same(want))
			}()
		}()
	}
	for range readers {
		select {
		case <-paused:
		case err := <-ended:
			t.Fatalf("a slow reader ended at once: %v", err)
		}
	}
	began := time.Now()
	for range 5 {
		if err := s.unbroken(ctx, t, short, true).same(wantShort); err != nil {
			t.Error(err)
		}
	}
	t.Logf("5 others took %s while %d readers stood still", time.Since(began).Round(time.Millisecond), readers)
	close(resume)
	for range readers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
