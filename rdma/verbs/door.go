//go:build rdma && linux && cgo

package verbs

/*
#cgo CFLAGS: -I${SRCDIR}/../../bin/rdma/include
#cgo LDFLAGS: -ldl
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"
)

// Both sides of the door agree on sizes, or this does not compile.
const (
	_ = uint(unsafe.Sizeof(Work{}) - unsafe.Sizeof(C.kv_work{}))
	_ = uint(unsafe.Sizeof(C.kv_work{}) - unsafe.Sizeof(Work{}))
	_ = uint(unsafe.Sizeof(rawCompletion{}) - unsafe.Sizeof(C.kv_done{}))
	_ = uint(unsafe.Sizeof(C.kv_done{}) - unsafe.Sizeof(rawCompletion{}))
	_ = uint(maxBatch - C.KV_BATCH)
	_ = uint(C.KV_BATCH - maxBatch)
)

const built = true

// errno turns what a C function returned into an error.
func errno(rc C.int) error {
	if rc == 0 {
		return nil
	}
	return syscall.Errno(rc)
}

func load() error {
	var why [512]C.char
	if C.kv_load(&why[0], C.int(len(why))) != 0 {
		return fmt.Errorf("%w: %s", ErrNoLibrary, C.GoString(&why[0]))
	}
	return nil
}

// tellsGIDTypes reports whether the library knows the types of GIDs.
func tellsGIDTypes() bool { return C.kv_has_gid_ex() != 0 }

// eachDevice calls visit with the devices until it returns false.
func eachDevice(visit func(name string, open func() (contextHandle, error)) bool) error {
	var n C.int
	list, err := C.kv_list(&n)
	if list == nil {
		return fmt.Errorf("%w: %w", ErrNoDevices, err)
	}
	defer C.kv_free_list(list)
	for _, d := range unsafe.Slice(list, int(n)) {
		open := func() (contextHandle, error) {
			c, err := C.kv_open(d)
			if c == nil {
				return nil, err
			}
			return contextHandle(c), nil
		}
		if !visit(C.GoString(C.kv_name(d)), open) {
			break
		}
	}
	return nil
}

func closeContext(c contextHandle) error { return errno(C.kv_close((*C.struct_ibv_context)(c))) }

func queryDevice(c contextHandle) (rawDevice, error) {
	var d C.kv_device
	if err := errno(C.kv_query_device((*C.struct_ibv_context)(c), &d)); err != nil {
		return rawDevice{}, err
	}
	return rawDevice{Device{
		GUID: uint64(d.guid), Firmware: C.GoString(&d.firmware[0]), MaxRegionBytes: uint64(d.max_mr_bytes), MaxRegions: int(d.max_mr),
		MaxQueuePairs: int(d.max_qp), MaxQueues: int(d.max_cq), MaxWork: int(d.max_qp_wr), MaxCompletions: int(d.max_cqe),
	}, int(d.ports)}, nil
}

func queryPort(c contextHandle, port int) (p Port, gids int, err error) {
	var a C.kv_port
	if err := errno(C.kv_query_port((*C.struct_ibv_context)(c), C.int(port), &a)); err != nil {
		return Port{}, 0, err
	}
	return Port{
		Number: port, State: PortState(a.state), Physical: PhysicalState(a.physical), Link: LinkLayer(a.link_layer), MTU: MTU(a.active_mtu),
		MaxMTU: MTU(a.max_mtu), LID: uint16(a.lid), SMLID: uint16(a.sm_lid),
	}, int(a.gids), nil
}

func queryGID(c contextHandle, port, i int) (g GID, ifindex int, err error) {
	var e C.kv_gid
	if err := errno(C.kv_query_gid((*C.struct_ibv_context)(c), C.int(port), C.int(i), &e)); err != nil {
		return GID{}, 0, err
	}
	raw := *(*[16]byte)(unsafe.Pointer(&e.raw))
	return GID{Index: i, Addr: netip.AddrFrom16(raw), Type: GIDType(e._type)}, int(e.ifindex), nil
}

func allocDomain(c contextHandle) (domainHandle, error) {
	p, err := C.kv_alloc_pd((*C.struct_ibv_context)(c))
	if p == nil {
		return nil, err
	}
	return domainHandle(p), nil
}

func freeDomain(p domainHandle) error { return errno(C.kv_dealloc_pd((*C.struct_ibv_pd)(p))) }

// register registers memory that Go's collector does not know.
func register(p domainHandle, addr unsafe.Pointer, n int, access uint32) (h regionHandle, lkey, rkey uint32, err error) {
	m, err := C.kv_reg((*C.struct_ibv_pd)(p), addr, C.size_t(n), C.uint(access))
	if m == nil {
		return nil, 0, 0, err
	}
	return regionHandle(m), uint32(m.lkey), uint32(m.rkey), nil
}

func registerDMABuf(p domainHandle, offset uint64, n int, iova uint64, fd int, access uint32) (h regionHandle, lkey, rkey uint32, err error) {
	m, err := C.kv_reg_dmabuf((*C.struct_ibv_pd)(p), C.uint64_t(offset), C.size_t(n), C.uint64_t(iova), C.int(fd), C.int(access))
	if m == nil {
		return nil, 0, 0, err
	}
	return regionHandle(m), uint32(m.lkey), uint32(m.rkey), nil
}

func deregister(m regionHandle) error { return errno(C.kv_dereg((*C.struct_ibv_mr)(m))) }

func createChannel(c contextHandle) (ch channelHandle, fd int, err error) {
	p, err := C.kv_create_channel((*C.struct_ibv_context)(c))
	if p == nil {
		return nil, 0, err
	}
	return channelHandle(p), int(p.fd), nil
}

func destroyChannel(ch channelHandle) error {
	return errno(C.kv_destroy_channel((*C.struct_ibv_comp_channel)(ch)))
}

func createQueue(c contextHandle, depth int, ch channelHandle) (queueHandle, error) {
	q, err := C.kv_create_cq((*C.struct_ibv_context)(c), C.int(depth), (*C.struct_ibv_comp_channel)(ch))
	if q == nil {
		return nil, err
	}
	return queueHandle(q), nil
}

func destroyQueue(q queueHandle) error { return errno(C.kv_destroy_cq((*C.struct_ibv_cq)(q))) }
func armQueue(q queueHandle) error     { return errno(C.kv_arm((*C.struct_ibv_cq)(q))) }

func takeQueueEvent(ch channelHandle) error {
	return errno(C.kv_take_cq_event((*C.struct_ibv_comp_channel)(ch)))
}

func pollQueue(q queueHandle, out *[maxBatch]rawCompletion, n int) (int, error) {
	k := C.kv_poll((*C.struct_ibv_cq)(q), (*C.kv_done)(unsafe.Pointer(out)), C.int(n))
	if k < 0 {
		return 0, syscall.Errno(-k)
	}
	return int(k), nil
}

func createPair(p domainHandle, c PairConfig, sends, receives queueHandle) (h pairHandle, num uint32, inline int, err error) {
	most := C.uint32_t(c.Inline)
	q, err := C.kv_create_qp((*C.struct_ibv_pd)(p), (*C.struct_ibv_cq)(sends), (*C.struct_ibv_cq)(receives),
		C.uint32_t(c.SendDepth), C.uint32_t(c.ReceiveDepth), &most)
	if q == nil {
		return nil, 0, 0, err
	}
	return pairHandle(q), uint32(q.qp_num), int(most), nil
}

func destroyPair(q pairHandle) error { return errno(C.kv_destroy_qp((*C.struct_ibv_qp)(q))) }

func initPair(q pairHandle, port int, access uint32) error {
	return errno(C.kv_qp_init((*C.struct_ibv_qp)(q), C.int(port), C.uint(access)))
}

func connectPair(q pairHandle, p Path) error {
	c := C.kv_path{
		port: C.uint32_t(p.Port), sgid_index: C.uint32_t(p.SourceGID), hop_limit: hopLimit, traffic_class: C.uint32_t(p.TrafficClass),
		dlid: C.uint32_t(p.LID), sl: C.uint32_t(p.ServiceLevel), mtu: C.uint32_t(p.MTU), dest_qp: C.uint32_t(p.QP),
		psn: C.uint32_t(p.SendPSN), dest_psn: C.uint32_t(p.ReceivePSN), min_rnr_timer: C.uint32_t(p.NotReadyTimer),
		timeout: C.uint32_t(p.Timeout), retries: C.uint32_t(p.Retries), rnr_retries: C.uint32_t(p.NotReadyRetries),
	}
	if p.Global {
		c.global = 1
		*(*[16]byte)(unsafe.Pointer(&c.dgid)) = p.GID.As16()
	}
	return errno(C.kv_qp_connect((*C.struct_ibv_qp)(q), &c))
}

func resetPair(q pairHandle) error { return errno(C.kv_qp_reset((*C.struct_ibv_qp)(q))) }

func failPair(q pairHandle) error { return errno(C.kv_qp_fail((*C.struct_ibv_qp)(q))) }

func pairState(q pairHandle) (PairState, error) {
	var s C.int
	err := errno(C.kv_qp_state((*C.struct_ibv_qp)(q), &s))
	return PairState(s), err
}

func postSend(q pairHandle, w []Work) (posted int, err error) {
	var n C.int
	err = errno(C.kv_post_send((*C.struct_ibv_qp)(q), (*C.kv_work)(unsafe.Pointer(&w[0])), C.int(len(w)), &n))
	return int(n), err
}

func postReceive(q pairHandle, w []Work) (posted int, err error) {
	var n C.int
	err = errno(C.kv_post_recv((*C.struct_ibv_qp)(q), (*C.kv_work)(unsafe.Pointer(&w[0])), C.int(len(w)), &n))
	return int(n), err
}

// openEvents makes the device's events fit for a poller and returns their descriptor.
func openEvents(c contextHandle) (fd int, err error) {
	p := (*C.struct_ibv_context)(c)
	return int(p.async_fd), errno(C.kv_async_nonblock(p))
}

func takeEvent(c contextHandle) (rawEvent, error) {
	var e C.kv_event
	err := errno(C.kv_take_event((*C.struct_ibv_context)(c), &e))
	return rawEvent{uint32(e._type), uint32(e.port), uint32(e.qp)}, err
}
