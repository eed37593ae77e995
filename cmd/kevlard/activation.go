package main

import (
	"fmt"
	"net"

	"github.com/coreos/go-systemd/v22/activation"
)

// passedListener returns the socket that the service manager has opened for the API
// (deploy/systemd/kevlard-api.socket), nil if there is none. A socket that it cannot
// use is an error: clients would wait at it for ever.
func passedListener() (net.Listener, error) {
	// It unsets the variables, so that engines don't take them for theirs.
	files := activation.Files(true)
	defer func() {
		for _, f := range files {
			f.Close() // a listener has its own descriptor
		}
	}()
	if len(files) == 0 {
		return nil, nil
	}
	if len(files) > 1 {
		return nil, usageError("the service manager passed %d sockets: want one, for the API: leave one ListenStream in kevlard-api.socket, and name one HOST:PORT there", len(files))
	}
	l, err := net.FileListener(files[0])
	if err == nil && l.Addr().Network() != "tcp" {
		err = fmt.Errorf("it is %s %s", l.Addr().Network(), l.Addr())
		l.Close()
	}
	if err != nil {
		return nil, usageError("use the socket %s that the service manager passed for the API: %w: want one that listens on TCP (ListenStream=HOST:PORT, Accept=no)", files[0].Name(), err)
	}
	return l, nil
}
