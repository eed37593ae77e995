package verbs

import "unsafe"

// What libibverbs returns; only door.go looks inside.
type (
	contextHandle unsafe.Pointer
	domainHandle  unsafe.Pointer
	regionHandle  unsafe.Pointer
	channelHandle unsafe.Pointer
	queueHandle   unsafe.Pointer
	pairHandle    unsafe.Pointer
)

// rawCompletion has the layout of kv_done.
type rawCompletion struct {
	id                                           uint64
	status, op, vendor, bytes, imm, qp, flags, _ uint32
}

// rawDevice is what opening a device tells.
type rawDevice struct {
	Device
	ports int
}

// rawEvent is an asynchronous event.
type rawEvent struct {
	kind, port, qp uint32
}
