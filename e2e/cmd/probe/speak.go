package main

import (
	"bufio"
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
