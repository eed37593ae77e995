package ringbench

import (
	"reflect"
	"unsafe"

	"github.com/hashicorp/memberlist"
)

// When a thousand members have started, each has the news of a thousand starts to pass on:
// minutes of full packets, and most of the work of such a measurement. What some still
// lack they learn by exchanges, and the rest is dropped. memberlist has no way to do that,
// so it is taken from its queue itself. Afterwards the ring is as one that has been up for
// long.

// hush drops what a member has to pass on.
func hush(m *memberlist.Memberlist) {
	hidden[*memberlist.TransmitLimitedQueue](m, "broadcasts").Reset()
}

// hidden returns a field of a struct of another package. It panics where there is none of
// this name and type, as when the library has changed.
func hidden[T any](of any, name string) T {
	f := reflect.ValueOf(of).Elem().FieldByName(name)
	if f.Type() != reflect.TypeFor[T]() {
		panic("ringbench: " + name + " is a " + f.Type().String())
	}
	return *(*T)(unsafe.Pointer(f.UnsafeAddr()))
}
