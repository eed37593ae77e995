# kevlard: `make` prints what there is to make.

# One set of flags for build, vet and test: with any other, cgo compiles ggml
# anew (two minutes). Of the warnings, those about loops of ggml, and about calls that NVIDIA
# has deprecated and go-nvml binds all the same, are not ours to mend.
ARCH := $(shell uname -m)
ifeq ($(ARCH),x86_64)
MARCH := -march=x86-64-v3
else
MARCH :=
endif
export CGO_CFLAGS   := -O3 $(MARCH) -Wno-stringop-overflow -Wno-deprecated-declarations
export CGO_CXXFLAGS := $(CGO_CFLAGS)

# The build tag rdma where the headers of libibverbs are: scripts/rdma/headers says
# so, and fetches them if it can. RDMA=no builds without.
ifneq ($(filter-out help clean tools,$(or $(MAKECMDGOALS),help)),)
ifneq ($(RDMA),no)
ifeq ($(shell scripts/rdma/headers),rdma)
export GOFLAGS := $(filter-out -tags=rdma,$(GOFLAGS)) -tags=rdma
endif
endif
endif

GOFUMPT     := go run mvdan.cc/gofumpt@v0.12.0
STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := go run golang.org/x/vuln/cmd/govulncheck@v1.9.0

COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -X main.commit=$(COMMIT)
BIN     := bin/kevlard

# Packages that reach ggml through cgo: never built with -race.
ENGINE_PKGS := ./engine/... ./cmd/... ./e2e/...
PURE_PKGS    = $(shell go list ./... | grep -vE '/(engine|cmd|e2e|internal/sim)(/|$$)') ./engine/sampler

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: tools
tools:
	@scripts/check-tools.sh

.PHONY: build
build: tools ## bin/kevlard
	@mkdir -p bin
	go build -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/kevlard

# The C++ library is linked in, so that only the C library must be there. ggml names
# it with -lstdc++, which -static-libstdc++ does not reach: the linker first looks
# where there is only the static one.
RELEASE ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
.PHONY: static
static: tools
	@mkdir -p bin/dist bin/static
	@ln -sf "$$(g++ -print-file-name=libstdc++.a)" bin/static/libstdc++.a
	go build -ldflags '$(LDFLAGS) -X main.release=$(RELEASE:v%=%) -s -w -extldflags "-L$(CURDIR)/bin/static -static-libgcc"' -o bin/static/kevlard ./cmd/kevlard

.PHONY: dist
dist: static ## bin/dist: a tarball for /usr/local, its checksum and SBOM (RELEASE=1.2.3)
	scripts/dist.sh bin/static/kevlard $(RELEASE:v%=%) bin/dist

.PHONY: packages
packages: static ## bin/dist: a deb and an rpm (RELEASE=1.2.3)
	scripts/packages.sh bin/static/kevlard $(RELEASE:v%=%) bin/dist

.PHONY: test-systemd
test-systemd: static ## the deb, the rpm and Slurm's scripts on hosts of their own with a real systemd (as root; needs systemd-nspawn, debootstrap)
	scripts/systemd-suite

.PHONY: demo
demo: build ## a story over 8 hosts; one of them is killed mid-sentence
	$(BIN) demo

# What go test would vet, make check vets.
GOTEST := go test -vet=off

.PHONY: test
test: tools build ## all tests: pure packages with -race, the engine, real processes
	$(GOTEST) -race -parallel 4 -timeout 10m $(PURE_PKGS) # daemons wait most of the time
	$(GOTEST) ./internal/sim -seeds 2000 -timeout 10m # a world is one goroutine
	CGO_ENABLED=0 $(GOTEST) ./session/witness -run TestEveryState -timeout 5m
	KEVLARD_BIN=$(CURDIR)/$(BIN) $(GOTEST) -timeout 18m -p 1 $(ENGINE_PKGS)
	$(MAKE) test-sdk

# -count=1: go test does not see that the binary under test changed.
.PHONY: test-sdk
test-sdk: tools build ## OpenAI's own clients against a mesh whose hosts die (needs Node and npm)
	@scripts/check-tools.sh sdk
	cd e2e/sdk && KEVLARD_BIN=$(CURDIR)/$(BIN) $(GOTEST) -count=1 -timeout 15m ./...

.PHONY: test-long
test-long: tools build ## the tests that take an hour: saturation, long freezes, many kills
	KEVLARD_BIN=$(CURDIR)/$(BIN) KEVLARD_E2E_LONG=1 go test -v -timeout 120m -p 1 ./e2e/...

# Emulated hosts with Soft-RoCE (scripts/rdma/exec): the packages that have RDMA in
# them. What is skipped there fails.
RDMA_PKGS := ./rdma/...
GUEST     := go test -vet=off -count=1 -p 1 -timeout 60m -exec $(CURDIR)/scripts/rdma/exec
.PHONY: test-rdma
test-rdma: tools static rdma-headers ## RDMA in emulated hosts: one, its speed to that of TCP, two, a dead one, a link that goes and comes, loss
	$(GUEST) -v -skip '^TestPeer' $(RDMA_PKGS)
	$(GUEST) -v -run '^TestRDMA$$' ./internal/kvbench
	RDMA_GUESTS=2 $(GUEST) -v -run '^TestPeer' ./rdma ./rdma/verbs
	RDMA_GUESTS=2 RDMA_SHARE=$(CURDIR)/bin/static:$(CURDIR)/model/fairy KEVLARD_BIN=$(CURDIR)/bin/static/kevlard KEVLARD_MODELS=$(CURDIR)/model/fairy \
		$(GUEST) -v ./e2e/rdma

.PHONY: test-rdma-smoke
test-rdma-smoke: tools rdma-headers ## the part of test-rdma that one emulated host does in a minute
	RDMA_SMOKE=1 $(GUEST) -run '^TestCard' ./rdma # the others run on a card in memory, in make test
	RDMA_SMOKE=1 $(GUEST) -skip '^TestPeer' ./rdma/verbs

# Fails where make would build without.
.PHONY: rdma-headers
rdma-headers:
	@[ "$$(scripts/rdma/headers)" = rdma ] || { echo "kevlard: RDMA can't be tested: see above"; exit 1; }

.PHONY: check
check: tools ## formatting, vet, staticcheck, a build without cgo, no built file in the tree
	@out=$$($(GOFUMPT) -l .); if [ -n "$$out" ]; then echo "not gofumpt-clean:"; echo "$$out"; exit 1; fi
	@big=$$(git ls-files -z | xargs -0 stat -c '%s %n' | awk '$$1 > 262144 && $$2 !~ /\.gguf$$/'); if [ -n "$$big" ]; then echo "larger than 256 KiB, a built program perhaps; git rm it:"; echo "$$big"; exit 1; fi
	go vet ./...
	$(STATICCHECK) ./...
	cd e2e/sdk && go vet ./... && $(STATICCHECK) ./...
	CGO_ENABLED=0 go build -o /dev/null ./cmd/kevlard
	GOFLAGS= go vet ./rdma/...

# Not part of the tests: the data base of known faults is fetched, or is a copy of it
# (VULNDB=file:///DIR). Without cgo, since of the module that brings ggml the data base names
# every package for what is wrong in its server: see docs/security.md.
.PHONY: vuln
vuln: tools ## known vulnerabilities in what the code calls (needs the network, or VULNDB=file:///DIR)
	CGO_ENABLED=0 $(GOVULNCHECK) $(if $(VULNDB),-db $(VULNDB)) ./...
	cd e2e/sdk && $(GOVULNCHECK) $(if $(VULNDB),-db $(VULNDB)) ./...

.PHONY: readme
readme: tools ## follows README.md and docs/operating.md word by word on a clean clone (as root)
	scripts/readme-check

.PHONY: sim
SEEDS ?= 10000
sim: tools ## the simulator over SEEDS seeds (default 10000)
	go test ./internal/sim -run TestSeeds -seeds $(SEEDS) -timeout 180m

.PHONY: fuzz
fuzz: tools ## every fuzz target for FUZZTIME (default 20s)
	scripts/fuzz.sh $(or $(FUZZTIME),20s)

.PHONY: bench
bench: tools ## go benchmarks
	go test -run '^$$' -bench . -benchtime 1s ./engine/... ./mesh/... ./scheduler/...

# Minutes to build, and the machine must be quiet: not part of the tests.
.PHONY: compare
compare: build ## one node against ollama, built from its Go module (needs cmake)
	scripts/compare/build.sh bin/compare
	[ -e bin/compare/110m.gguf ] || $(BIN) model synth --preset 110m bin/compare/110m.gguf
	go build -o bin/compare/compare ./scripts/compare
	bin/compare/compare -ollama bin/compare/$(or $(VARIANT),haswell)/bin/ollama -models model/fairy/fairy-7m-q8_0.gguf
	bin/compare/compare -ollama bin/compare/$(or $(VARIANT),haswell)/bin/ollama -models bin/compare/110m.gguf -temperature 1

.PHONY: clean
clean: ## removes what make made
	rm -rf bin
