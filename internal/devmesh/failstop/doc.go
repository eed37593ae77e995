// Package failstop is the system that kevlard is compared with: static pipelines,
// each a ring of its own, behind a balancer on the client's side. A pipeline with a
// dead stage is down until its node is restarted and its weights are loaded again;
// the requests that ran in it start over on another one.
//
// It is generous to that system: the balancer learns of a failure at the instant of
// the fault, asks no health checks and makes no mistake, retries without a pause, and
// of a broken pipeline only the one node has to start again.
package failstop
