//go:build !(rdma && linux && cgo)

package verbs

import "unsafe"

const built = false

// Without the headers nothing is ever opened: Load fails, so the rest is not reached.

func load() error                                                       { return ErrNotBuilt }
func tellsGIDTypes() bool                                               { return false }
func eachDevice(func(string, func() (contextHandle, error)) bool) error { return ErrNotBuilt }
func closeContext(contextHandle) error                                  { return ErrNotBuilt }
func queryDevice(contextHandle) (rawDevice, error)                      { return rawDevice{}, ErrNotBuilt }

func queryPort(contextHandle, int) (Port, int, error) { return Port{}, 0, ErrNotBuilt }

func queryGID(contextHandle, int, int) (GID, int, error)                 { return GID{}, 0, ErrNotBuilt }
func allocDomain(contextHandle) (domainHandle, error)                    { return nil, ErrNotBuilt }
func freeDomain(domainHandle) error                                      { return ErrNotBuilt }
func deregister(regionHandle) error                                      { return ErrNotBuilt }
func createChannel(contextHandle) (channelHandle, int, error)            { return nil, 0, ErrNotBuilt }
func destroyChannel(channelHandle) error                                 { return ErrNotBuilt }
func createQueue(contextHandle, int, channelHandle) (queueHandle, error) { return nil, ErrNotBuilt }
func destroyQueue(queueHandle) error                                     { return ErrNotBuilt }
func armQueue(queueHandle) error                                         { return ErrNotBuilt }
func takeQueueEvent(channelHandle) error                                 { return ErrNotBuilt }
func pollQueue(queueHandle, *[maxBatch]rawCompletion, int) (int, error)  { return 0, ErrNotBuilt }
func destroyPair(pairHandle) error                                       { return ErrNotBuilt }
func initPair(pairHandle, int, uint32) error                             { return ErrNotBuilt }
func connectPair(pairHandle, Path) error                                 { return ErrNotBuilt }
func resetPair(pairHandle) error                                         { return ErrNotBuilt }
func failPair(pairHandle) error                                          { return ErrNotBuilt }
func pairState(pairHandle) (PairState, error)                            { return 0, ErrNotBuilt }
func postSend(pairHandle, []Work) (int, error)                           { return 0, ErrNotBuilt }
func postReceive(pairHandle, []Work) (int, error)                        { return 0, ErrNotBuilt }
func openEvents(contextHandle) (int, error)                              { return 0, ErrNotBuilt }
func takeEvent(contextHandle) (rawEvent, error)                          { return rawEvent{}, ErrNotBuilt }

func register(domainHandle, unsafe.Pointer, int, uint32) (regionHandle, uint32, uint32, error) {
	return nil, 0, 0, ErrNotBuilt
}

func registerDMABuf(domainHandle, uint64, int, uint64, int, uint32) (regionHandle, uint32, uint32, error) {
	return nil, 0, 0, ErrNotBuilt
}

func createPair(domainHandle, PairConfig, queueHandle, queueHandle) (pairHandle, uint32, int, error) {
	return nil, 0, 0, ErrNotBuilt
}
