// Package tcp moves bulk pieces (see kvstream/mover) over plain TCP connections
// beside the mesh: several per peer, over TLS 1.3 with the nodes' mesh keys or, by
// choice on a trusted fabric, without encryption.
//
// # Connections
//
// A node dials Config.Conns connections to each peer it sends to, when it sends, and
// keeps them; idle ones are closed after Config.Idle. Pieces of a lane always
// use the same one (lane modulo Conns), which keeps their order. Sending uses dialled
// connections only; accepted ones only bring pieces.
//
// A connection has two goroutines at the sender, a writer and a watcher that learns
// of its end, and one at the receiver, which reads bodies straight into the Handler's
// buffers and calls it. Pieces up to 32 KiB are copied and gathered into large writes, so
// Send returns at once; larger ones are written from the caller's memory, and Send returns
// when they are out of it.
//
// Nothing waits for ever. A write or a read in the middle of a piece that makes no progress
// for Config.Stall breaks the connection, and so does data that the other kernel does
// not acknowledge for as long. At most 128 KiB wait in the kernel beyond what the
// peer's window takes, so a cap of bandwidth and a cancelled send act soon.
//
// # Wire format
//
// Integers are big-endian. In TLS mode all of this is inside TLS 1.3. First each
// side sends greetings:
//
//	offset  size  field
//	0       4     "KVBK"
//	4       1     version of all that follows, 1
//	5       1     kind
//	6       2     n, at most 1024
//	8       n     fields, in order; strings have one length byte and 1 to 255 bytes
//
//	kind         from      fields
//	1 open       dialler   transport (1 byte: 1 TLS, 2 plain, 3 plain without checksums), slot (1 byte), number of the
//	                       connection (8 bytes), incarnation (16 bytes), nonce (32 bytes),
//	                       dialler's node (string), acceptor's node (string)
//	2 challenge  acceptor  nonce (32 bytes), MAC (32 bytes)     plain only
//	3 proof      dialler   MAC (32 bytes)                        plain only
//	4 welcome    acceptor  none
//	5 refusal    acceptor  reason (2 byte length, at most 512 bytes of UTF-8); then it closes
//
// TLS: open, welcome. Plain: open, challenge, proof, welcome. A refusal can stand in
// place of any of the acceptor's. The first 8 bytes of a greeting and the refusal never
// change, so unequal versions refuse each other by name. The slot is the index of the
// connection; a new connection replaces the one with the same node and slot, whose reader
// ends first. Numbers grow within an incarnation (a mover, from New to Close), so that a delayed dial replaces nothing.
//
// After the welcome the dialler sends pieces:
//
//	0       1     1
//	1       3     zero
//	4       4     h, at most 64 KiB
//	8       4     b, at most 16 MiB
//	12      4     low half of the XXH3 of the 12 bytes before and the header
//	16      h     header
//	16+h    b     body
//	16+h+b  8     transport 2 only: checksum of the body
//
// The checksum chains XXH3 (64 bits) over the body cut at each 64 KiB: the hash of one
// segment, from 0, is the seed of the next. TLS needs none. A piece that breaks
// these rules ends the connection. The acceptor sends nothing more. A dialler that
// wants to end closes its direction and waits until the acceptor has closed, which it
// does after all pieces were handed on.
//
// # Who may connect
//
// With TLS, whoever proves a peer ID that Config.Admitted knows. Plain connections prove,
// by HMAC-SHA256 over both nonces and names, that both ends hold the key that Config.Secret
// gives for this pair; no secret is on the wire. Whoever can alter packets on the
// way can still take over a plain connection after that, read bodies and (the
// checksum is no MAC) change them: hence only on a trusted fabric, only by choice.
package tcp
