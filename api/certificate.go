package api

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
)

// certificate is the TLS identity of the API, which can change while it serves.
type certificate struct {
	certFile, keyFile string
	pair              atomic.Pointer[tls.Certificate]
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
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read the API's certificate %s and its key %s: %w: give a chain and its key in PEM", c.certFile, c.keyFile, err)
	}
	c.pair.Store(&pair)
	return nil
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
