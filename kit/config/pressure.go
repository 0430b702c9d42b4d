package config

import (
	"fmt"
	"time"
)

// maxAge bounds how long images are kept: ten years.
const maxAge = 10 * 365 * 24 * time.Hour

func (c *checks) number(key string, n, least, most int) {
	c.must(n >= least && n <= most, key, fmt.Sprintf("%d is out of bounds", n), fmt.Sprintf("write a number from %d to %d", least, most))
}

func (c *checks) size(key string, s, most Size) {
	c.must(s >= 0 && s <= most, key, fmt.Sprintf("%s is out of bounds", s), fmt.Sprintf("write a size from 0B to %s", most))
}

func (c *checks) imageGC(g ImageGC) {
	const key = "images.gc."
	c.number(key+"high_percent", g.HighPercent, 0, 100)
	c.must(g.LowPercent >= 0 && (g.HighPercent <= 0 || g.LowPercent <= g.HighPercent), key+"low_percent", fmt.Sprintf("%d is out of bounds", g.LowPercent),
		fmt.Sprintf("write a number from 0 to high_percent, which is %d", g.HighPercent))
	c.size(key+"min_free", g.MinFree, 1<<40)
	c.between(key+"min_age", g.MinAge, 0, maxAge/10)
	if g.MaxAge != 0 {
		c.between(key+"max_age", g.MaxAge, max(g.MinAge.Std(), time.Minute), maxAge)
	}
	c.between(key+"import_grace", g.ImportGrace, 0, maxAge)
}

func (c *checks) pressure(p Pressure) {
	const key = "pressure."
	c.size(key+"memory_min_free", p.MemoryMinFree, 1<<40)
	c.number(key+"memory_stall_percent", p.MemoryStallPercent, 0, 100)
	c.size(key+"disk_min_free", p.DiskMinFree, 1<<40)
	c.number(key+"disk_min_free_percent", p.DiskMinFreePercent, 0, 50)
	c.number(key+"pid_min_free_percent", p.PIDMinFreePercent, 0, 50)
	c.between(key+"hold", p.Hold, 0, time.Hour)
}
