package bench

import "time"

const (
	// streamWithin bounds one stream, however long it waits for a pipeline.
	streamWithin = 3 * time.Minute
	// busyWithin bounds the wait for a stream that runs through the next victim.
	busyWithin = time.Minute
	// settledWithin bounds the wait for the mesh to be whole again after a fault.
	settledWithin = 2 * time.Minute
	// busyEvery is the pause between two looks at the sessions.
	busyEvery = 10 * time.Millisecond
	// linkedEvery is the pause between two looks at a node's links.
	linkedEvery = 50 * time.Millisecond
	// minShown is how many tokens a stream must have shown when its host breaks, and
	// minLeft how many it must still have to come: one whose last token is on its way
	// never misses its host, so it has nothing to recover.
	minShown, minLeft = 8, 24
	// maxRefused bounds the refusals that are told of one recovery.
	maxRefused = 8
	// variants is how many different requests there are.
	variants = 16
	// referencesAtOnce is how many unbroken references run at a time.
	referencesAtOnce = 4
)
