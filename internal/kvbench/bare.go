package kvbench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// bare is the ceiling: connections over which pieces are written and read as simply as
// possible, by crypto/tls or the kernel alone.
type bare struct {
	writers, readers []net.Conn
	body             []byte
	buffers          [][]byte
}

func newBare(conns int, plain bool) (_ *bare, err error) {
	b := &bare{body: payload()}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	var server, client *tls.Config
	if !plain {
		if server, client, err = selfSigned(); err != nil {
			return nil, err
		}
	}
	for range conns {
		w, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		b.writers = append(b.writers, w)
		r, err := l.Accept()
		if err != nil {
			return nil, err
		}
		if !plain {
			w, r = tls.Client(w, client), tls.Server(r, server)
		}
		b.writers[len(b.writers)-1] = w
		b.readers = append(b.readers, r)
		b.buffers = append(b.buffers, payload())
	}
	return b, nil
}

func (b *bare) move(ctx context.Context, size int, until time.Time) (int64, error) {
	var sent atomic.Int64
	var work errgroup.Group
	stop := context.AfterFunc(ctx, b.interrupt)
	for i := range b.writers {
		total := make(chan int, 1)
		work.Go(func() error {
			n := 0
			for time.Now().Before(until) {
				if _, err := b.writers[i].Write(b.body[:size]); err != nil {
					b.interrupt()
					return fmt.Errorf("write: %w", err)
				}
				n++
				sent.Add(int64(size))
			}
			total <- n // and one more, after which the reader knows
			sent.Add(int64(size))
			_, err := b.writers[i].Write(b.body[:size])
			return err
		})
		work.Go(func() error {
			for n, end := 0, -1; end < 0 || n <= end; n++ {
				if _, err := io.ReadFull(b.readers[i], b.buffers[i][:size]); err != nil {
					b.interrupt()
					return fmt.Errorf("read: %w", err)
				}
				if end < 0 {
					select {
					case end = <-total:
					default:
					}
				}
			}
			return nil
		})
	}
	err := work.Wait()
	if !stop() {
		err = context.Cause(ctx)
	}
	return sent.Load(), err
}

// interrupt ends all reads and writes, for good.
func (b *bare) interrupt() {
	for _, c := range slices.Concat(b.writers, b.readers) {
		c.SetDeadline(time.Unix(1, 0)) // an error means that it is closed already
	}
}

func (b *bare) close() error {
	var errs []error
	for _, c := range b.writers {
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		errs = append(errs, c.Close())
	}
	for _, c := range b.readers {
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// selfSigned returns the settings of a TLS 1.3 server and of a client that takes it on
// trust: they are ends of one process.
func selfSigned() (server, client *tls.Config, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}, nil
}
