// Package api is what the outside sees of a node: the OpenAI-compatible HTTP API
// ([Server]) for clients, and the control socket ([Control], [Client]) for the
// administrators of the machine.
//
// It decides nothing. A request is checked against the model, turned into token
// ids (a chat by the model's template) and handed to a [Generator]; the tokens that
// come back are turned into text and written down in the form the client asked for.
// Every way in ends in one place, completion.run, so that stop strings, usage and
// errors are the same everywhere.
//
// A request for several answers (n, or several prompts) is several sessions, whose
// pieces are interleaved by index; they count as one answer, so one that fails ends
// the others. Log probabilities are the model's own, before whatever bends the
// choice (see kevlard.Logprobs), and come with the text of their tokens.
//
// An error before the first byte of the answer is an HTTP status and OpenAI's
// error envelope. Once a stream has begun the status is sent, so a later error is
// an event of its own, after which the stream ends without a finish_reason and
// without [DONE]: a client can always tell an answer from half an answer.
//
// Every event of a stream has an id, which says what the client has after it. The same
// request with that id as Last-Event-ID, to any node, goes on behind the event: the
// tokens come from whoever owns the session, and all text is made again from the first
// of them and cut where the client was. What else it takes (whose session it is, which
// request, the answer's id) is kept with the session as its envelope.
//
// With a keys file, every request but the probes /healthz and /readyz needs a key
// in its Authorization header, and the sessions of different keys have different
// names. An address that other hosts reach needs a keys file.
//
// Goroutines belong to the HTTP servers; Run returns after all of them ended.
package api
