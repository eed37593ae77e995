package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// certificate is the TLS identity of the API, which can change while it serves.
type certificate struct {
	certFile, keyFile string
	pair              atomic.Pointer[tls.Certificate]

	mu   sync.Mutex // of what follows
	seen [2]stamp   // the files when they were last read
	bad  *badPair   // what could not be read then; nil: all was well
}

// stamp is how a file looks from outside; a change of its content changes it. The zero
// value is no file.
type stamp struct {
	inode os.FileInfo // compared by os.SameFile
	size  int64
	time  time.Time
}

// badPair is a pair of files that is no certificate.
type badPair struct {
	err  error
	told bool // it is in the log
}

// stampOf looks at a file, and through links at what they lead to.
func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{} // reading it says what is wrong
	}
	return stamp{info, info.Size(), info.ModTime()}
}

func (s stamp) same(o stamp) bool {
	if s.inode == nil || o.inode == nil {
		return s.inode == nil && o.inode == nil
	}
	return os.SameFile(s.inode, o.inode) && s.size == o.size && s.time.Equal(o.time)
}

// openCertificate reads both files, in PEM.
func openCertificate(certFile, keyFile string) (*certificate, error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("TLS for the API needs both [api] tls_cert and tls_key: give the other one too")
	}
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if err := c.reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// reload reads the files again. On error the certificate stays as it is.
func (c *certificate) reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.lockedRead()
	if err != nil {
		c.bad.told = true // the caller tells it
	}
	return err
}

// lockedRead reads the files. They are looked at before, so that one that changes
// meanwhile is read again.
func (c *certificate) lockedRead() error {
	c.seen = [2]stamp{stampOf(c.certFile), stampOf(c.keyFile)}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		err = fmt.Errorf("read the API's certificate %s and its key %s: %w: give a chain and its key in PEM", c.certFile, c.keyFile, err)
		c.bad = &badPair{err: err}
		return err
	}
	c.bad = nil
	c.pair.Store(&pair)
	return nil
}

// look reads the files again if they changed. It returns whether there is a new
// certificate, or why there is none; that only once, and not at the first look, since the
// two files are not replaced at the same moment.
func (c *certificate) look() (renewed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := [2]stamp{stampOf(c.certFile), stampOf(c.keyFile)}; !now[0].same(c.seen[0]) || !now[1].same(c.seen[1]) {
		return c.lockedRead() == nil, nil
	}
	if c.bad != nil && !c.bad.told {
		c.bad.told = true
		return false, c.bad.err
	}
	return false, nil
}

// follow looks now and then until ctx ends.
func (c *certificate) follow(ctx context.Context, every time.Duration, log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		renewed, err := c.look()
		if renewed {
			log.Info("the API's certificate was renewed", "tls_cert", c.certFile)
		}
		if err != nil {
			log.Error("the API's certificate changed and cannot be used: the old one stays in effect", "error", err)
		}
	}
}

// config returns the TLS settings of a server; nil where there is no certificate.
func (c *certificate) config() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil },
	}
}
