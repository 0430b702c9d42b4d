package command_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/id"
)

// fakeCluster behaves like a coordinator with one node that runs everything.
type fakeCluster struct {
	coordinatorv1.UnimplementedResourceServiceServer

	address, ca, cert, key string

	caKey  *ecdsa.PrivateKey
	caCert *x509.Certificate

	mu       sync.Mutex
	revision uint64
	changed  chan struct{}
	records  map[string]*resourcev1.Resource // by kind/name
	// rival is called once, before the next update is looked at.
	rival func()
	// creates counts the records that were made.
	creates int

	secrets fakeSecrets
}

func newCluster(t *testing.T) *fakeCluster {
	t.Helper()
	c := &fakeCluster{changed: make(chan struct{}), records: map[string]*resourcev1.Resource{}}
	dir := t.TempDir()
	c.ca, c.cert, c.key = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "op.crt"), filepath.Join(dir, "op.key")
	serverTLS := writeIdentities(t, c)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = l.Addr().String()
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(serverTLS)),
		grpc.ChainUnaryInterceptor(fault.UnaryServer), grpc.ChainStreamInterceptor(fault.StreamServer))
	coordinatorv1.RegisterResourceServiceServer(server, c)
	coordinatorv1.RegisterSecretServiceServer(server, &c.secrets)
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
	return c
}

// flags name this cluster.
func (c *fakeCluster) flags(args ...string) []string {
	return append([]string{"--coordinator", c.address, "--ca", c.ca, "--cert", c.cert, "--key", c.key}, args...)
}

func writeIdentities(t *testing.T, c *fakeCluster) *tls.Config {
	t.Helper()
	caKey, caCert := issue(t, nil, nil, "")
	c.caKey, c.caCert = caKey, caCert
	opKey, opCert := issue(t, caKey, caCert, "spiffe://staddle.local/user/admin")
	srvKey, srvCert := issue(t, caKey, caCert, "spiffe://staddle.local/coordinator/c1")
	keyDER, err := x509.MarshalPKCS8PrivateKey(opKey)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		c.ca:   {Type: "CERTIFICATE", Bytes: caCert.Raw},
		c.cert: {Type: "CERTIFICATE", Bytes: opCert.Raw},
		c.key:  {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AddCert(caCert)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		Certificates: []tls.Certificate{{Certificate: [][]byte{srvCert.Raw}, PrivateKey: srvKey}},
	}
}

// issue makes a certificate; without a parent, a CA.
func issue(t *testing.T, parentKey *ecdsa.PrivateKey, parent *x509.Certificate, uri string) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		parent, parentKey = template, key
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	} else {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{u}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, cert
}

func keyOf(m *resourcev1.Metadata) string { return fmt.Sprintf("%s/%s", m.GetKind(), m.GetName()) }

// change runs fn under the lock with the next revision and wakes the watchers.
func (c *fakeCluster) change(fn func(revision uint64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
	fn(c.revision)
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *fakeCluster) CreateResource(_ context.Context, r *coordinatorv1.CreateResourceRequest) (*coordinatorv1.CreateResourceResponse, error) {
	var out *resourcev1.Resource
	c.change(func(revision uint64) {
		rec := proto.CloneOf(r.GetResource())
		if c.records[keyOf(rec.GetMeta())] != nil {
			return
		}
		rec.Meta.Uid, rec.Meta.Revision, rec.Meta.Generation, rec.Meta.CreatedAt = id.New(), revision, 1, timestamppb.Now()
		place(rec)
		c.records[keyOf(rec.GetMeta())] = rec
		c.creates++
		out = proto.CloneOf(rec)
	})
	if out == nil {
		return nil, fault.New(fault.Exists, "name is taken")
	}
	return &coordinatorv1.CreateResourceResponse{Resource: out}, nil
}

// place is the scheduler and the node.
func place(r *resourcev1.Resource) {
	box := r.GetSandbox()
	if box == nil {
		return
	}
	box.Placement = &resourcev1.SandboxPlacement{Node: "node1"}
	phase := resourcev1.SandboxPhase_SANDBOX_PHASE_RUNNING
	if box.GetSpec().GetDesired() == resourcev1.DesiredState_DESIRED_STATE_STOPPED {
		phase = resourcev1.SandboxPhase_SANDBOX_PHASE_STOPPED
	}
	box.Status = &resourcev1.SandboxStatus{ObservedGeneration: r.GetMeta().GetGeneration(), Attempt: 1, Phase: phase, Node: "node1"}
}

func (c *fakeCluster) GetResource(_ context.Context, r *coordinatorv1.GetResourceRequest) (*coordinatorv1.GetResourceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rec := range c.records {
		if m := rec.GetMeta(); m.GetKind() == r.GetKind() && (m.GetUid() == r.GetUid() || r.GetName() != "" && m.GetName() == r.GetName()) {
			return &coordinatorv1.GetResourceResponse{Resource: proto.CloneOf(rec)}, nil
		}
	}
	return nil, fault.New(fault.NotFound, "no such record")
}

func (c *fakeCluster) ListResources(_ context.Context, r *coordinatorv1.ListResourcesRequest) (*coordinatorv1.ListResourcesResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &coordinatorv1.ListResourcesResponse{Revision: c.revision}
	for _, key := range slices.Sorted(maps.Keys(c.records)) {
		if rec := c.records[key]; rec.GetMeta().GetKind() == r.GetKind() {
			resp.Resources = append(resp.Resources, proto.CloneOf(rec))
		}
	}
	return resp, nil
}

func (c *fakeCluster) UpdateResource(_ context.Context, r *coordinatorv1.UpdateResourceRequest) (*coordinatorv1.UpdateResourceResponse, error) {
	if rival := c.rival; rival != nil {
		c.rival = nil
		rival()
	}
	var out *resourcev1.Resource
	c.change(func(revision uint64) {
		now := c.records[keyOf(r.GetResource().GetMeta())]
		if now.GetMeta().GetRevision() != r.GetResource().GetMeta().GetRevision() {
			return
		}
		next := proto.CloneOf(r.GetResource())
		next.Meta.Revision = revision
		next.Meta.Generation = now.GetMeta().GetGeneration() + 1
		place(next)
		c.records[keyOf(next.GetMeta())] = next
		out = proto.CloneOf(next)
	})
	if out == nil {
		return nil, fault.WithReason(fault.New(fault.Conflict, "the record was changed meanwhile"), "REVISION")
	}
	return &coordinatorv1.UpdateResourceResponse{Resource: out}, nil
}

func (c *fakeCluster) DeleteResource(_ context.Context, r *coordinatorv1.DeleteResourceRequest) (*coordinatorv1.DeleteResourceResponse, error) {
	var out *resourcev1.Resource
	c.change(func(uint64) {
		key := keyOf(&resourcev1.Metadata{Kind: r.GetKind(), Name: r.GetName()})
		out = c.records[key]
		delete(c.records, key)
	})
	if out == nil {
		return nil, fault.New(fault.NotFound, "no such record")
	}
	return &coordinatorv1.DeleteResourceResponse{Resource: out}, nil
}

func (c *fakeCluster) WatchResources(r *coordinatorv1.WatchResourcesRequest, stream grpc.ServerStreamingServer[coordinatorv1.WatchResourcesResponse]) error {
	sent := map[string]*resourcev1.Resource{}
	for first := true; ; first = false {
		c.mu.Lock()
		var msgs []*coordinatorv1.WatchResourcesResponse
		for key, rec := range c.records {
			if slices.Contains(r.GetKinds(), rec.GetMeta().GetKind()) && !proto.Equal(sent[key], rec) {
				sent[key] = proto.CloneOf(rec)
				msgs = append(msgs, &coordinatorv1.WatchResourcesResponse{Event: &coordinatorv1.WatchResourcesResponse_Changed{Changed: sent[key]}})
			}
		}
		for key, rec := range sent {
			if c.records[key] == nil {
				delete(sent, key)
				msgs = append(msgs, &coordinatorv1.WatchResourcesResponse{Event: &coordinatorv1.WatchResourcesResponse_Deleted{Deleted: rec}})
			}
		}
		wake := c.changed
		c.mu.Unlock()
		if first {
			msgs = append(msgs, &coordinatorv1.WatchResourcesResponse{Event: &coordinatorv1.WatchResourcesResponse_Synced{Synced: &coordinatorv1.SnapshotMarker{}}})
		}
		for _, m := range msgs {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-wake:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// record returns a copy, or nil.
func (c *fakeCluster) record(kind resourcev1.Kind, name string) *resourcev1.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	rec := c.records[keyOf(&resourcev1.Metadata{Kind: kind, Name: name})]
	if rec == nil {
		return nil
	}
	return proto.CloneOf(rec)
}
