package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/pace"
	"github.com/kevlard/kevlard/kvstream/prefer"
	"github.com/kevlard/kevlard/node"
)

// What may move KV and weights: Config.BulkTransport.
const (
	TransportAuto = "auto" // RDMA to peers that it reaches, TCP to others
	TransportTCP  = "tcp"
	TransportRDMA = "rdma" // KV never goes over TCP
)

// methodRDMA is the mesh call by which two nodes set RDMA connections up; what it asks
// and answers is package rdma's.
const methodRDMA = "rdma"

// eventTransport is the type of events that tell what moves KV to a peer: the cause is the
// transport, the detail why it is not RDMA.
const eventTransport = "transport"

// RDMA is a bulk transport that peers set up over the mesh.
type RDMA interface {
	mover.Mover
	// Answer is the peer's part of RDMAUse.Exchange.
	Answer(ctx context.Context, from kevlard.NodeID, request []byte) ([]byte, error)
	// Probe finds out whether it reaches a peer.
	Probe(ctx context.Context, to kevlard.NodeID) error
	// Forget ends the connections to a peer.
	Forget(to kevlard.NodeID)
}

// RDMAUse is what a daemon gives its RDMA transport.
type RDMAUse struct {
	Self     kevlard.NodeID
	Handler  mover.Handler
	Exchange func(ctx context.Context, to kevlard.NodeID, request []byte) ([]byte, error)
	Known    func(kevlard.NodeID) bool
	Pacer    *pace.Pacer // of Config.BulkBandwidth, shared with TCP; nil: no cap
	Log      *slog.Logger
}

// transports is what moves bulk pieces to whom.
type transports struct {
	tcp    string        // name of the one over TCP
	rdma   RDMA          // nil: none
	prefer *prefer.Mover // of both; nil without rdma
	gate   mover.Handler // of all
	pacer  *pace.Pacer   // of all: Config.BulkBandwidth
	lack   error         // why there is no RDMA, though it was not turned off
	forget func(kevlard.NodeID)
}

// rdmaHandler tells the chooser first when RDMA broke.
type rdmaHandler struct {
	mover.Handler
	transports *transports
}

// Lost implements mover.Handler.
func (h rdmaHandler) Lost(to kevlard.NodeID, err error) {
	h.transports.prefer.Lost(to, err)
	h.Handler.Lost(to, err)
}

// bindMover makes what moves bulk pieces: TCP, and RDMA beside it where there is some.
func (d *Daemon) bindMover(deps Deps, h mover.Handler) error {
	t := &d.transports
	t.tcp, t.gate = d.cfg.transport(), prefer.NewGate(h)
	var err error
	if t.pacer, err = pace.New(d.cfg.BulkBandwidth); err != nil {
		return fmt.Errorf("bulk transport: %w", err)
	}
	tcp, at, err := deps.Mover(t.gate)
	if err != nil {
		return fmt.Errorf("bulk transport: %w", err)
	}
	d.bulk, d.copies.mover, d.copies.sender.mover = at, tcp, tcp
	insist := d.cfg.BulkTransport == TransportRDMA
	if d.cfg.BulkTransport != TransportTCP {
		t.lack = errors.New("this build has no RDMA")
		switch {
		case deps.RDMA == nil:
		case !insist && !d.cfg.BulkPlain:
			// What is encrypted stays so until an admin says that the fabric is trusted.
			t.lack = errors.New("not tried, since it is not encrypted: [mesh] plain = true allows it on a trusted fabric")
		default:
			t.rdma, t.lack = deps.RDMA(RDMAUse{Self: d.cfg.Name, Handler: rdmaHandler{t.gate, t}, Exchange: d.exchangeRDMA, Known: d.reaches, Pacer: t.pacer, Log: d.log})
		}
	}
	switch {
	case t.lack != nil && insist:
		t.rdma, d.copies.sender.mover = nil, nil
		d.log.Error("no KV is copied: [mesh] transport = \"rdma\", but RDMA cannot be used", "error", t.lack, "do", "kevlard doctor says what is missing; or set transport = \"auto\"")
	case t.lack != nil:
		t.rdma = nil
		d.log.Info("KV goes over TCP: RDMA cannot be used", "error", t.lack)
	case t.rdma != nil:
		t.prefer = prefer.New(prefer.Config{
			Better: prefer.Choice{Name: TransportRDMA, Mover: t.rdma}, Other: prefer.Choice{Name: t.tcp, Mover: tcp},
			Insist: insist, Probe: t.rdma.Probe, Handler: t.gate, Changed: d.transportChanged,
		})
		d.copies.mover, d.copies.sender.mover = t.prefer, t.prefer
	}
	return nil
}

// reaches reports whether the mesh is connected to a node.
func (d *Daemon) reaches(n kevlard.NodeID) bool {
	_, ok := d.linked(n)
	return ok
}

// exchangeRDMA asks a peer.
func (d *Daemon) exchangeRDMA(ctx context.Context, to kevlard.NodeID, request []byte) ([]byte, error) {
	return d.mesh.Call(ctx, to, methodRDMA, request)
}

// answerRDMA answers a peer.
func (d *Daemon) answerRDMA(ctx context.Context, from kevlard.NodeID, request []byte) ([]byte, error) {
	t := &d.transports
	switch {
	case t.rdma != nil:
		return t.rdma.Answer(ctx, from, request)
	case t.lack != nil:
		return nil, fmt.Errorf("node %s has no RDMA: %w", d.cfg.Name, t.lack)
	}
	return nil, fmt.Errorf("node %s uses no RDMA: [mesh] transport = %q there", d.cfg.Name, d.cfg.BulkTransport)
}

// transportChanged reports what moves KV to a peer from now on.
func (d *Daemon) transportChanged(c prefer.Change) {
	r := node.Report{Type: eventTransport, Node: c.Peer, Cause: c.Using, Detail: "KV and weights go over RDMA"}
	switch {
	case c.Using == "":
		r.Cause = "none"
		r.Detail = fmt.Sprintf("nothing goes there, since [mesh] transport = \"rdma\": %v; it is tried again every 10 s at most: see kevlard doctor on both hosts", c.Why)
	case c.Why != nil:
		r.Detail = fmt.Sprintf("KV and weights go over TCP: %v; RDMA is tried again every 10 s at most: see kevlard doctor on both hosts, or set [mesh] transport = \"tcp\"", c.Why)
	}
	d.report(r)
}

// transportTo names what moves KV to a peer, "" if nothing was sent yet and it is not known.
func (d *Daemon) transportTo(to kevlard.NodeID) string {
	t := &d.transports
	switch {
	case t.prefer != nil:
		name, _ := t.prefer.Using(to)
		return name
	case d.copies.sender == nil || d.copies.sender.mover == nil:
		return ""
	}
	return t.tcp
}

// forgetPeer ends bulk connections to a node that has left for good.
func (d *Daemon) forgetPeer(n kevlard.NodeID) {
	t := &d.transports
	if t.forget != nil {
		t.forget(n)
	}
	if t.rdma != nil {
		t.rdma.Forget(n)
		t.prefer.Forget(n)
	}
}

// unfit says why a node that insists on RDMA is not ready, "" if it is.
func (d *Daemon) unfit() string {
	if d.cfg.BulkTransport != TransportRDMA || d.transports.lack == nil {
		return ""
	}
	return fmt.Sprintf("[mesh] transport = \"rdma\", but %v", d.transports.lack)
}
