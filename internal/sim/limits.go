package sim

import "time"

// The bounds of a run. A run that exceeds one is a violation, not a longer run.
const (
	// maxEvents is the most events of one run; more means that something spins.
	maxEvents = 3_000_000
	// maxSpin is the most steps of one node at one instant.
	maxSpin = 20_000
	// maxViolations is how many violations are kept; a broken run repeats itself.
	maxViolations = 20
	// maxTries is how often a client that comes back may be turned away.
	maxTries = 100
)

// The times that the models of the outside use.
const (
	keepAliveMin = 4 * time.Second // silence until a connection is given up
	keepAliveMax = 6 * time.Second
	deathMin     = 2500 * time.Millisecond // until the ring calls a node dead
	deathMax     = 4500 * time.Millisecond
	newsMin      = 20 * time.Millisecond // until a record or a rejoin is seen
	newsMax      = 400 * time.Millisecond

	// endWithin is how long after the last fault every session must have ended:
	// the recovery deadline, and time to generate the rest.
	endWithin = 60 * time.Second
	// quietFor is how long after that leases have surely passed.
	quietFor = 14 * time.Second
	// engineWithin is how long after that an engine may still owe an answer: one that
	// answers late, and then not again, is called stalled twice before it is killed.
	engineWithin = 25 * time.Second
	// deadRoute is how long a session may stay on a route with a dead boot.
	deadRoute = 7 * time.Second
	// crowdAt is when a crowd comes, and crowdFor within which time all of it.
	crowdAt  = 2 * time.Second
	crowdFor = 20 * time.Millisecond
	// surveyEvery is the interval of the judges' look at every node.
	surveyEvery = 500 * time.Millisecond
)
