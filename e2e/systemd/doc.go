// Package systemd holds the end-to-end tests of a node that systemd keeps: units,
// users, sockets and the fd store of the real one, without our supervisor.
//
// The tests share one machine: systemd as process 1 in namespaces of its own, on a
// Debian root. They need root and the build tag systemd; run make test-systemd.
// They must never touch the systemd of the machine that they run on.
package systemd
