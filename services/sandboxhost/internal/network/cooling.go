package network

import (
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"staddle.internal/kit/boottime"
	"staddle.internal/kit/journal"
)

// coolDown is how long a freed address is given to nobody. Neighbours remember for 30 s
// whose hardware address it was (base_reachable_time_ms of the kernel), and resolvers for
// the 5 s that we tell them.
const coolDown = 30 * time.Second

// bucketFreed has the addresses that were freed a moment ago: boot id and time since boot.
const bucketFreed = "freed"

// cooling says whether an address was freed too short a time ago.
func cooling(freed map[netip.Addr]time.Duration, a netip.Addr, now time.Duration) bool {
	at, ok := freed[a]
	return ok && now-at < coolDown
}

// soonest is how long it takes until one of the freed addresses of a subnet can be had.
func soonest(freed map[netip.Addr]time.Duration, subnet netip.Prefix, now time.Duration) (wait time.Duration, ok bool) {
	for a, at := range freed {
		if left := at + coolDown - now; subnet.Contains(a) && left > 0 && (!ok || left < wait) {
			wait, ok = left, true
		}
	}
	return wait, ok
}

// cooled lists the addresses that may be given out again.
func cooled(freed map[netip.Addr]time.Duration, now time.Duration) []netip.Addr {
	var all []netip.Addr
	for a := range freed {
		if !cooling(freed, a, now) {
			all = append(all, a)
		}
	}
	return all
}

// noteFreed writes down that an address was freed at a time of this boot.
func noteFreed(tx journal.Tx, a netip.Addr, boot string, at time.Duration) error {
	return tx.Put(bucketFreed, a.String(), []byte(boot+" "+strconv.FormatInt(int64(at), 10)))
}

// loadFreed reads what was freed in this boot: nobody remembers an address from the
// life before.
func loadFreed(tx journal.Tx, log *slog.Logger, boot string, now time.Duration) (map[netip.Addr]time.Duration, error) {
	freed := map[netip.Addr]time.Duration{}
	err := tx.ForEach(bucketFreed, func(key string, v []byte) error {
		addr, err := netip.ParseAddr(key)
		if err != nil {
			skipped(log, bucketFreed, key, err)
			return nil
		}
		when, ofBoot := strings.CutPrefix(string(v), boot+" ")
		if !ofBoot {
			return nil
		}
		at, err := strconv.ParseInt(when, 10, 64)
		if err != nil { // as if it was now: nobody gets it too early
			skipped(log, bucketFreed, key, err)
			at = int64(now)
		}
		freed[addr] = min(time.Duration(at), now)
		return nil
	})
	return freed, err
}

// bootID is the id of the running kernel; "" where it cannot be read, which equals no
// id that was ever noted.
func bootID() string {
	boot, err := boottime.ID()
	if err != nil {
		return ""
	}
	return boot
}
