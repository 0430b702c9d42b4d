package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// bursts prints many numbered lines of 100 bytes every now and then, then one at a time.
func bursts(lines int, every time.Duration, rounds int) {
	go stay()
	w := bufio.NewWriterSize(os.Stdout, 64<<10)
	n := 0
	line := func() {
		fmt.Fprintf(w, "%099d\n", n)
		n++
	}
	for range rounds {
		for range lines {
			line()
		}
		must(w.Flush())
		time.Sleep(every)
	}
	for {
		line()
		must(w.Flush())
		time.Sleep(100 * time.Millisecond)
	}
}

// flood prints a lot with little work of its own, as fast as it is taken or by a clock.
func flood(size, rate int) {
	const line = 100
	part := bytes.Repeat([]byte(strings.Repeat("x", line-1)+"\n"), 600)
	began := time.Now()
	for written := 0; written < size; {
		n, err := os.Stdout.Write(part[:min(size-written, len(part))])
		must(err)
		written += n
		if rate > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(float64(written) / float64(rate) * float64(time.Second)))))
		}
	}
}

// odd prints lines whose lengths lie around what others cut at, with characters of four
// bytes over each such place, and on standard error in between.
func odd() {
	for _, n := range []int{1, 16_383, 16_384, 16_385, 32_255, 32_256, 32_257, 65_536, 1_000_000} {
		line := strings.Repeat("x", n%4) + strings.Repeat("\U0001F600", n/4)
		fmt.Fprintln(os.Stdout, line)
		fmt.Fprintf(os.Stderr, "after %d\n", n)
	}
	fmt.Fprint(os.Stdout, "carriage\rreturn\r\nzero\x00byte\n\nno end")
}
