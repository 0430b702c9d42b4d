//go:build vm

package vm_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// answerLimit is what an answer may take beyond the limit of what was asked.
const answerLimit = 30 * time.Second

// result is what a script on the machine gave.
type result struct {
	text string // standard output and error
	code int    // -1 if the machine did not answer
}

// agent is the machine's end of a serial line, over which scripts go and their
// results come back; see guest/agent. One script runs at a time.
type agent struct {
	socket string

	mu     sync.Mutex // held while a script runs; guards what follows
	conn   net.Conn
	reader *bufio.Reader
	asked  int
}

// run runs a shell script on the machine, for so long at most.
func (a *agent) run(limit time.Duration, script string) result {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, err := a.ask(limit, script)
	if err != nil {
		return result{fmt.Sprintf("the machine does not answer: %v", err), -1}
	}
	return r
}

func (a *agent) ask(limit time.Duration, script string) (result, error) {
	if a.conn == nil {
		conn, err := net.Dial("unix", a.socket)
		if err != nil {
			return result{}, err
		}
		a.conn, a.reader = conn, bufio.NewReader(conn)
	}
	a.asked++
	id := strconv.Itoa(int(time.Now().UnixNano())) + "-" + strconv.Itoa(a.asked)
	err := errors.Join(
		a.conn.SetDeadline(time.Now().Add(limit+answerLimit)),
		write(a.conn, id, strconv.Itoa(int(limit/time.Second)), script))
	for err == nil {
		var r result
		var named bool
		if r, named, err = a.read(id); named {
			return r, nil
		}
	}
	return result{}, errors.Join(err, a.close())
}

func write(w io.Writer, fields ...string) error {
	_, err := io.WriteString(w, strings.Join(fields, "\x00")+"\x00")
	return err
}

// read takes one answer from the line, and says whether it is the one with this id;
// another is to a question that nobody waits for any more.
func (a *agent) read(id string) (r result, named bool, err error) {
	line, err := a.reader.ReadString('\n')
	if err != nil {
		return r, false, err
	}
	var got string
	var size int
	// A line of another form is the rest of an answer that a reboot cut short.
	const fields = 3
	if n, _ := fmt.Sscan(line, &got, &r.code, &size); n < fields || got != id {
		return r, false, nil
	}
	text := make([]byte, size)
	_, err = io.ReadFull(a.reader, text)
	r.text = string(text)
	return r, err == nil, err
}

// hangUp drops the line, with what was asked and is not answered.
func (a *agent) hangUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.close() // the line of a machine that is off
}

func (a *agent) close() error {
	if a.conn == nil {
		return nil
	}
	err := a.conn.Close()
	a.conn = nil
	return err
}
