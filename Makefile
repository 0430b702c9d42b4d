# Two commands do everything on a fresh machine: `make up` and `make test`.
SHELL := /bin/bash
BIN := $(CURDIR)/bin
ROOT ?=
VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo unknown)
export PATH := $(BIN):$(PATH)
export PREFIX DESTDIR SYSTEMD_VERSION
GO_BUILD := go build -trimpath -ldflags "-s -w -X staddle.internal/kit/version.Version=$(VERSION)"
MODULES := kit services/clusteraccess services/coordinator services/presence services/sandboxhost \
	services/storage services/supervisor node cli
TOOL := cd tools && GOWORK=off go build -trimpath -o $(BIN)/
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.DEFAULT_GOAL := help
.PHONY: help up down build compose-up compose-down compose-test prereqs gen fmt lint test explore soak check bench clean install uninstall test-systemd test-vm FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: build ## build, start Staddle on this machine, run a first sandbox
	@$(BIN)/staddle $(if $(ROOT),--root $(ROOT)) up

down: $(if $(wildcard bin/staddle),,build) ## stop it and leave nothing running (data stays)
	@$(BIN)/staddle $(if $(ROOT),--root $(ROOT)) down

build: prereqs $(BIN)/containerd $(BIN)/containerd-shim-runc-v2 $(BIN)/runc $(BIN)/hello.tar ## build all binaries into bin/
	@echo "building staddle $(VERSION)" && $(GO_BUILD) -o $(BIN)/staddle-node ./node/cmd/staddle-node
	@CGO_ENABLED=0 $(GO_BUILD) -o $(BIN)/staddle-init ./services/sandboxhost/cmd/staddle-init
	@$(GO_BUILD) -o $(BIN)/staddle-coordinator ./services/coordinator/cmd/coordinator
	@$(GO_BUILD) -o $(BIN)/staddle ./cli/cmd/staddle

compose-up: build $(BIN)/etcd $(BIN)/etcdctl ## build images, start etcd, coordinator and two runners in containers, run a sandbox on each
	@deploy/compose/up.sh

compose-down: ## stop the stack; VOLUMES=1 removes its data too
	@deploy/compose/down.sh $(if $(VOLUMES),--volumes)

compose-test: build $(BIN)/etcd $(BIN)/etcdctl ## test the stack in a project of its own: kills, restarts, leaves nothing
	@deploy/compose/test.sh

prereqs:
	@tools/prereqs.sh

# So that "make bin/grpcurl" is understood.
bin/%: $(BIN)/% ;

$(BIN)/buf: tools/go.mod
	@echo "building buf (minutes, once)" && $(TOOL) github.com/bufbuild/buf/cmd/buf
$(BIN)/protoc-gen-go $(BIN)/protoc-gen-go-grpc &: tools/go.mod
	@$(TOOL) google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
$(BIN)/golangci-lint: tools/go.mod
	@echo "building golangci-lint (minutes, once)" && $(TOOL) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(BIN)/grpcurl: tools/go.mod
	@echo "building grpcurl (minutes, once)" && $(TOOL) github.com/fullstorydev/grpcurl/cmd/grpcurl
$(BIN)/containerd $(BIN)/containerd-shim-runc-v2 &: tools/go.mod
	@echo "building containerd (minutes, once)" && $(TOOL) github.com/containerd/containerd/v2/cmd/containerd github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
$(BIN)/etcd: tools/go.mod
	@echo "building etcd" && $(TOOL)etcd go.etcd.io/etcd/server/v3
$(BIN)/etcdctl: tools/go.mod
	@$(TOOL) go.etcd.io/etcd/etcdctl/v3
$(BIN)/runc: tools/go.mod
	@echo "building runc" && cd tools && GOWORK=off go build -trimpath -tags seccomp -o $@ github.com/opencontainers/runc
$(BIN)/hello.tar: FORCE
	@go run ./e2e/cmd/mkimage -o $@ -name staddle.local/hello:1 -build ./e2e/cmd/hello

third_party/buf/validate/validate.proto: tools/go.mod
	@tools/third_party.sh

gen: $(BIN)/buf $(BIN)/protoc-gen-go $(BIN)/protoc-gen-go-grpc third_party/buf/validate/validate.proto ## generate code from the contracts
	@buf generate

fmt: $(BIN)/buf third_party/buf/validate/validate.proto ## format Go and proto files
	@gofmt -w $(MODULES) e2e bench && buf format -w proto

lint: $(BIN)/buf $(BIN)/golangci-lint third_party/buf/validate/validate.proto ## check style of Go and proto files
	@buf lint && buf format -d --exit-code proto >/dev/null && tools/lint.sh

test: build $(BIN)/grpcurl ## run all tests as root: units, real containers, end to end
	@$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" GOFLAGS="$(GOFLAGS)" tools/test.sh

explore: ## search every state of every boot graph of up to four components (a quarter of an hour)
	@cd services/supervisor && go test -count=1 -timeout 4h -v -run EveryReachableState ./internal/machine -search everything

soak: build ## 500 sandboxes come and go while every process is killed at random moments; SEED=n repeats one
	@cd e2e && $(SUDO) env "PATH=$$PATH" "HOME=$$HOME" GOFLAGS="$(GOFLAGS)" BINARIES_UNDER_TEST=$(BIN) go test -race -count=1 -v -timeout 3h -run '^TestSoak' . -soak $(or $(CYCLES),500) -soak-seed $(or $(SEED),0)

test-systemd: build ## a whole node under a real systemd, in namespaces of its own
	@cd e2e && $(SUDO) env "PATH=$$PATH" "HOME=$$HOME" GOFLAGS="$(GOFLAGS)" go test -tags systemd -race -count=1 -timeout 12m ./systemd

test-vm: build ## a whole machine in qemu: cgroup v2 alone, reboot, power cuts; SHORT=1 for the half
	@cd e2e && $(SUDO) env "PATH=$$PATH" "HOME=$$HOME" GOFLAGS="$(GOFLAGS)" go test -tags vm -race -count=1 -timeout 90m $(if $(SHORT),-run '^TestShort_') ./vm

# PREFIX=/usr/local; packagers name DESTDIR, and SYSTEMD_VERSION of those who use the package.
install: build ## put binaries, units and sample configuration in place for systemd
	@tools/install.sh install

uninstall: ## take away exactly what install has put there
	@tools/install.sh uninstall

check: ## what CI runs: generated code, lint, breaking changes, tests
	@tools/check.sh

bench: build ## measure against the floor: a table, and bench/result.json
	@$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" BINARIES_UNDER_TEST=$(BIN) go run ./bench/cmd/bench -o bench/result.json
	@cd services/sandboxhost && $(SUDO) env "PATH=$$PATH" "HOME=$$HOME" go test -run '^$$' -bench . -benchtime 100x ./internal/balance

clean: ## remove what was built
	@rm -rf bin third_party bench/result.json
