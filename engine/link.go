package engine

import (
	"fmt"
	"net"
)

// link is one end of the socket between a daemon and its engine.
type link struct {
	codec   codec
	conn    *net.UnixConn
	writing chan struct{} // held while a frame is written
	peer    string        // the other end, for errors
}

func newLink(conn *net.UnixConn, peer string) link {
	return link{codec: newCodec(), conn: conn, writing: make(chan struct{}, 1), peer: peer}
}

// send writes one frame; frames of several goroutines don't mix.
func (l *link) send(k kind, body any) error {
	f, err := l.codec.frame(k, body)
	if err != nil {
		return err
	}
	l.writing <- struct{}{}
	defer func() { <-l.writing }()
	if _, err := l.conn.Write(f); err != nil {
		return fmt.Errorf("write to %s: %w", l.peer, err)
	}
	return nil
}
