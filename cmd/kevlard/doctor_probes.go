package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kevlard/kevlard/gpu"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/model"
)

const (
	// daemonTimeout bounds the questions to the daemon.
	daemonTimeout = 3 * time.Second
	// clocksTimeout bounds the comparison of clocks, for which the daemon asks its peers.
	clocksTimeout = 5 * time.Second
	// peerTimeout bounds each attempt to reach a peer.
	peerTimeout = 2 * time.Second
	// pingWait is the time for one ping to come back; gossipTries are sent.
	pingWait = time.Second
	// maxPeersAtOnce is how many peers are tried at once.
	maxPeersAtOnce = 16
	// maxModelFiles is the most model files whose headers are read; the others are
	// left to kevlard model ls.
	maxModelFiles = 256
)

// probes is what the checks ask of the host and of the network. Tests answer
// instead.
type probes struct {
	interfaces func() ([]membership.Interface, error)
	// listen binds an address for a moment; network is tcp or udp.
	listen func(network, addr string) error
	dial   func(ctx context.Context, addr string) error
	// ping and pingBy are those of a gossiper for the ring's secret.
	gossip func(ring string, secret []byte, from netip.Addr) (pinger, error)
	// modelFiles lists the GGUF files below a directory.
	modelFiles func(dir string) ([]string, error)
	// header reads the header of a model file and returns its architecture; errNotServed.
	header func(path string) (string, error)
	clock  func() (most time.Duration, synchronised bool, err error)
	limit  func(pid, resource int) (uint64, error)
	space  func(path string) (disk, error)
	secret func(path string) ([]byte, error)
	// owner names the user that a file belongs to.
	owner func(path string) (string, error)
	rdma  func() (rdmaFacts, error)
	gpus  func() gpu.Host
	// visible is CUDA_VISIBLE_DEVICES, and whether it is set.
	visible func() (string, bool)
	program string // the path of this program's file
	groups  func(pid int) (groupLimits, error)
}

// pinger pings members over UDP; see gossiper.
type pinger struct {
	ping   func(ctx context.Context, name string, addr netip.AddrPort) error
	pingBy func(ctx context.Context, addr netip.AddrPort, name string, target netip.AddrPort) error
}

// hostProbes asks this host.
func hostProbes() probes {
	return probes{
		interfaces: membership.SystemInterfaces,
		listen:     listenOnce,
		dial:       dialOnce,
		gossip: func(ring string, secret []byte, from netip.Addr) (pinger, error) {
			g, err := newGossiper(ring, secret, from, pingWait)
			if err != nil {
				return pinger{}, err
			}
			return pinger{g.ping, g.pingBy}, nil
		},
		modelFiles: modelFiles,
		header:     modelArch,
		clock:      clockError,
		limit:      processLimit,
		space:      diskSpace,
		secret:     readSecret,
		owner:      fileOwner,
		rdma:       hostRDMA,
		gpus:       lookAtGPUs,
		visible:    visibleGPUs,
		program:    "/proc/self/exe",
		groups:     processGroups,
	}
}

func listenOnce(network, addr string) error {
	if network == "udp" {
		c, err := net.ListenPacket(network, addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return err
	}
	return l.Close()
}

func dialOnce(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return c.Close()
}

// errManyFiles ends a walk at maxModelFiles.
var errManyFiles = errors.New("more files")

func modelFiles(dir string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() || !strings.EqualFold(filepath.Ext(path), ".gguf"):
			return nil
		case len(paths) == maxModelFiles:
			return errManyFiles
		}
		paths = append(paths, path)
		return nil
	})
	if errors.Is(err, errManyFiles) {
		err = nil
	}
	return paths, err
}

// errNotServed says that a header is sound, of a model that kevlard does not compute.
var errNotServed = errors.New("is not served")

// modelArch fails with errNotServed for architectures, tensor types and shapes of others.
func modelArch(path string) (string, error) {
	f, err := model.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, _, err := model.ParseHeader(f.Header(), path); err != nil {
		return "", fmt.Errorf("%s %w: %w", path, errNotServed, err)
	}
	return f.Arch(), nil
}

// existing returns the nearest directory above path that exists: what is to be made
// lies on its file system.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}
