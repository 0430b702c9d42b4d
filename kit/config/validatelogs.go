package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func (c *checks) logs(l Logs) {
	for _, s := range []struct {
		key  string
		size Size
	}{{"logs.max_size_per_stream", l.MaxSizePerStream}, {"logs.max_size_removed", l.MaxSizeRemoved}, {"logs.cri.max_size", l.CRI.MaxSize}} {
		c.must(s.size >= 64<<10 && s.size <= 1<<40, s.key, fmt.Sprintf("%s is out of bounds", s.size), "write a size from 64KiB to 1TiB")
	}
	c.must(l.KeepAttempts >= 1 && l.KeepAttempts <= 1000, "logs.keep_attempts", fmt.Sprintf("%d is out of bounds", l.KeepAttempts), "write a number from 1 to 1000")
	c.between("logs.keep_removed", l.KeepRemoved, 0, 87600*time.Hour)
	dir := l.CRI.Directory
	c.must(dir == "" || filepath.IsAbs(dir) && filepath.Clean(dir) == dir && dir != "/", "logs.cri.directory",
		fmt.Sprintf("%q is no absolute path without . and ..", dir), `write the path of a folder for this node alone, like /var/log/staddle, or "" for no files`)
	c.must(l.CRI.MaxFiles >= 2 && l.CRI.MaxFiles <= 1000, "logs.cri.max_files", fmt.Sprintf("%d is out of bounds", l.CRI.MaxFiles), "write a number from 2 to 1000")
	c.otlp(l.OTLP)
}

func (c *checks) otlp(o LogsOTLP) {
	c.absolute("logs.otlp.ca", o.CA)
	c.absolute("logs.otlp.headers_file", o.HeadersFile)
	c.must(o.CA == "" || !o.Insecure, "logs.otlp.ca", "without TLS no certificate is checked", "remove it, or insecure")
	if o.Endpoint == "" {
		c.must(!o.Insecure && o.CA == "" && o.HeadersFile == "", "logs.otlp.endpoint", "the others of logs.otlp are set, and it is not", "write host:port of the collector")
		return
	}
	host, port, err := net.SplitHostPort(o.Endpoint)
	number, numberErr := strconv.ParseUint(port, 10, 16)
	c.must(err == nil && numberErr == nil && number > 0 && host != "" && !strings.Contains(o.Endpoint, "/"), "logs.otlp.endpoint",
		fmt.Sprintf("%q is no host:port", o.Endpoint), "write one like collector.example.com:4317")
	at, err := netip.ParseAddr(host)
	c.must(!o.Insecure || host == "localhost" || err == nil && at.IsLoopback(), "logs.otlp.insecure",
		fmt.Sprintf("%q is another machine: what workloads write, and the headers, would be readable on the way", o.Endpoint), "remove it, and give the collector a certificate")
}
