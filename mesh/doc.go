// Package mesh carries messages between the nodes of a ring: control messages,
// activation frames and small calls, over TCP with TLS 1.3, between peers that
// proved that they know the cluster secret.
//
// # What of libp2p is used, and why not more
//
// The package uses libp2p's transport layer: its TCP dialler, its upgrader, its
// TLS handshake (which proves peer IDs) and yamux. It leaves out the swarm and
// the host. The swarm picks by itself which connection a new stream runs on, so
// control could not have a connection of its own; its dialler refuses a restarted
// peer for seconds (dial back-off); its default resource manager allows eight
// connections per source address; and identify delays each first stream. A ring
// of known peers needs none of what these are for.
//
// # Connections
//
// A node dials every peer it wants to talk to and sends only over connections it
// dialled. It has one link per peer: two connections, one of class control and
// one of class data, that come up together and fall together. So a ring of n
// nodes has 4(n-1) mesh connections per node, half of them dialled by it. The
// connections that a peer dialled to us are that peer's guests here; they only
// bring messages.
//
// Delivery keeps the order per peer and class, and is at most once: what was
// queued when a connection broke is lost, and nothing that was queued for one
// boot of a peer reaches the next one. The layers above handle loss.
//
// # Ownership
//
// Run owns every goroutine: one per link (link.run), which dials, reports Up and
// Down and nothing else; a writer and a watcher per dialled connection; a reader
// per accepted one, and one goroutine per call being served. Handler functions
// are called by these, one at a time per connection, and must not block long.
//
// # Wire format
//
// All integers are big-endian. After TLS and yamux, the dialler opens one stream,
// the main stream. Everything on it, in both directions, is frames:
//
//	offset  size  field
//	0       1     kind
//	1       3     zero (a reader closes the connection on anything else)
//	4       4     h: length of the header
//	8       4     b: length of the body
//	12      h     header
//	12+h    b     body
//
//	kind      on            from      header <=  body <=
//	1 control main stream   dialler   0          1 MiB
//	2 data    main stream   dialler   64 KiB     256 KiB
//	3 bye     main stream   dialler   0          0        the link ends on purpose
//	4 call    call stream   dialler   255 B      1 MiB    header is the method
//	5 answer  call stream   acceptor  0          1 MiB
//	6 failure call stream   acceptor  0          4 KiB    body is an error text
//	16 hello  main stream   both      0          48 B
//	17 proof  main stream   both      0          1 KiB
//	18 refuse main stream   both      0          512 B    body is the reason
//
// A control connection carries control frames, a data connection data frames.
//
// # Admission
//
// The first frames of the main stream are, in this order: the dialler's hello,
// the acceptor's hello, the dialler's proof, the acceptor's proof. In place of any
// of them, or after the last, either side may send a refusal and close. Nothing
// else is read before the proofs, a second stream before them closes the
// connection, and all must be done within 5 s.
//
//	hello   0   4   "KVMS"
//	        4   1   format, 1
//	        5   1   class: 1 control, 2 data
//	        6   1   lowest protocol version spoken
//	        7   1   highest
//	        8   8   number of the link, counted by the dialler from 1 per boot;
//	                the acceptor repeats it
//	        16  32  nonce, fresh
//	proof   ring, node name, boot ID, each as one length byte (1 to 255) and
//	        that many bytes of UTF-8; then the 32 byte MAC
//
// The MAC is HMAC-SHA256 under a key derived by HKDF-SHA256 from the cluster
// secret (info "kevlard mesh admission 1") over these, each preceded by its length
// in 4 bytes: the side ("dialler" or "acceptor"), the dialler's peer ID, the
// acceptor's peer ID (both as proved by TLS), both hellos in the order sent, the
// dialler's names (the proof without MAC), and for the acceptor also its own. So a proof
// is good for one connection, one class and one direction. While the cluster secret
// is being changed a node may hold two: a dialler proves the first, the acceptor
// takes either and proves the same. Names are secret from
// those who fail the proof, except that the acceptor sees the dialler's.
//
// Compatibility: the frame layout, the refusal and the first 8 bytes of the hello
// never change. The highest version that both ranges hold is spoken; when there is
// none, the acceptor refuses and names both ranges.
//
// # What holders of the secret can do
//
// A holder can join under any free name, but cannot speak for another peer: its
// messages carry the peer ID that TLS proved and the name it proved with it, a name
// that SetPeers binds to another peer ID is refused, and so is a second name for a
// connected peer ID. It can fill its own queues and windows, no one else's.
package mesh
