package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"staddle.internal/kit/backoff"
	"staddle.internal/kit/journal"
	"staddle.internal/kit/logging"
)

const (
	// bucketSettings is of the ledger: settings of the kernel that this node changed, each with the
	// boot in which it did.
	bucketSettings = "settings"
	// noteForwards6 is the key of that IPv6 is passed on.
	noteForwards6 = "ipv6-forwarding"
	// learnAgain is the pause before a lost subscription to changes of interfaces is made anew.
	learnAgain = time.Second
)

// goesOn says whether an interface has to be told to go on learning its routers: one that would
// learn (accept_ra 1) if the node did not pass IPv6 on. Ours never learn, nor do ports of a
// bridge, which have no packets of their own; one that learns nothing (0) was made so.
func goesOn(a *netlink.LinkAttrs, acceptRA string) bool {
	return acceptRA == "1" && a.MasterIndex == 0 && a.Flags&net.FlagLoopback == 0 && !namedAsOurs(a.Name)
}

// goOn tells an interface so, if it has to be told.
func goOn(a *netlink.LinkAttrs) error {
	path := setting6(a.Name, "accept_ra")
	have, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) { // it has gone, or has no IPv6
		return nil
	}
	if err != nil {
		return fmt.Errorf("read setting of the kernel: %w", err)
	}
	if !goesOn(a, string(have[:min(1, len(have))])) {
		return nil
	}
	if err := set(path, "2"); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// allGoOn tells all interfaces that there are.
func (n *Network) allGoOn() error {
	links, err := listLinks()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, goOn(l.Attrs()))
	}
	return errors.Join(errs...)
}

// forward6 has the node pass IPv6 on. That this node began it is noted first: interfaces that
// come later are told only then.
func (n *Network) forward6() error {
	n.mu.Lock()
	ledger := n.ledger
	n.mu.Unlock()
	if ledger != nil {
		err := ledger.Update(func(tx journal.Tx) error { return tx.Put(bucketSettings, noteForwards6, []byte(n.boot)) })
		if err != nil {
			return fmt.Errorf("note that IPv6 is passed on: %w", err)
		}
	}
	n.mu.Lock()
	n.forwards6 = true
	n.mu.Unlock()
	if err := n.allGoOn(); err != nil {
		return err
	}
	return set(setting6("all", "forwarding"), "1")
}

// loadForwards6 reads whether this node passes IPv6 on since this boot, and nobody else began it.
func loadForwards6(tx journal.Tx, boot string) (ours bool, err error) {
	err = tx.ForEach(bucketSettings, func(key string, v []byte) error {
		ours = ours || key == noteForwards6 && boot != "" && string(v) == boot
		return nil
	})
	return ours, err
}

// began6 says whether this node began to pass IPv6 on.
func (n *Network) began6() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.forwards6 && n.cfg.Subnet6.IsValid()
}

// KeepLearning has interfaces that come go on learning their routers, though this node passes
// IPv6 on, until ctx ends.
func (n *Network) KeepLearning(ctx context.Context) {
	if !n.cfg.Subnet6.IsValid() {
		return
	}
	for ctx.Err() == nil {
		if err := n.learnFrom(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("new interfaces may not learn their routers", logging.Err(err))
		}
		_ = backoff.Wait(ctx, learnAgain) // ctx has ended: the loop sees it
	}
}

// learnFrom does so until the subscription is lost: the kernel ends it when too much happens at
// once.
func (n *Network) learnFrom(ctx context.Context) error {
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	var lost error // read when updates is closed
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{ErrorCallback: func(err error) { lost = err }})
	if err != nil {
		return fmt.Errorf("ask for changes of interfaces: %w", err)
	}
	defer func() {
		close(done)
		for range updates { //nolint:revive // its sender ends
		}
	}()
	if n.began6() {
		if err := n.allGoOn(); err != nil { // those that came before
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, open := <-updates:
			if !open {
				return lost
			}
			if !n.began6() {
				continue
			}
			if err := goOn(u.Attrs()); err != nil {
				n.log.Warn("interface may not learn its routers", logging.Component(u.Attrs().Name), logging.Err(err))
			}
		}
	}
}
