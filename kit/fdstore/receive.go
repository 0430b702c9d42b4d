package fdstore

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
)

// maxRights is the kernel's bound on files in one message.
const maxRights = 253

// serveOne waits for one message and obeys it. Reading and obeying are one step
// that Freeze waits for: a file that was read is kept, or closed, when it is over.
func (m *Manager) serveOne(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		m.busy.Lock()
		defer m.busy.Unlock()
		inner = m.receive(int(fd))
		return !errors.Is(inner, unix.EAGAIN)
	})
	if err := errors.Join(err, inner); err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	return nil
}

// receive reads and obeys one message, without waiting. Only an error of the
// socket itself is returned; a bad message is logged and everything in it closed.
func (m *Manager) receive(fd int) error {
	data := make([]byte, maxMessage)
	control := make([]byte, unix.CmsgSpace(4*maxRights)+unix.CmsgSpace(unix.SizeofUcred))
	n, cn, flags, _, err := unix.Recvmsg(fd, data, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return err
	}
	cred, files, err := ancillary(control[:cn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fault.New(fault.Invalid, "read message: longer than %d bytes or %d files", maxMessage, maxRights)
	}
	if err == nil {
		files, err = m.obey(string(data[:n]), cred, files)
	}
	for _, f := range files { // whatever nobody took
		err = errors.Join(err, unix.Close(f))
	}
	if err != nil {
		m.deps.Log.Warn("notification refused", "peer_pid", cred.Pid, "err", err.Error())
	}
	return nil
}

// obey does what the message asks for and returns the files that were not kept.
// A stranger is not worth a warning: anybody may send.
func (m *Manager) obey(text string, cred unix.Ucred, files []int) ([]int, error) {
	owner, ok := m.deps.Owner(int(cred.Pid), cred.Uid)
	if !ok {
		m.deps.Log.Debug("notification ignored", "peer_pid", cred.Pid)
		return files, nil
	}
	o, err := parse(text)
	if err != nil {
		return files, fmt.Errorf("owner %s: %w", owner, err)
	}
	o.Owner, o.PID, o.UID = owner, int(cred.Pid), cred.Uid
	if o.tells() {
		m.deps.Notify(o.Message)
	}
	switch {
	case o.remove:
		return files, m.Remove(owner, o.name)
	case o.store && len(files) != 1:
		return files, fault.New(fault.Invalid, "store file %s of %s: %d files for one name", o.name, owner, len(files))
	case o.store:
		return nil, m.Put(owner, o.name, files[0])
	}
	return files, nil // a barrier is lifted when its file is closed
}

// ancillary takes apart what came beside the text. All files are returned, with
// an error too.
func ancillary(control []byte) (unix.Ucred, []int, error) {
	var cred unix.Ucred
	var files []int
	parts, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return cred, nil, fmt.Errorf("read message: %w", err)
	}
	known := false
	for i := range parts {
		if parts[i].Header.Level != unix.SOL_SOCKET {
			continue
		}
		switch parts[i].Header.Type {
		case unix.SCM_CREDENTIALS:
			c, e := unix.ParseUnixCredentials(&parts[i])
			if e == nil {
				cred, known = *c, true
			}
			err = errors.Join(err, e)
		case unix.SCM_RIGHTS:
			fds, e := unix.ParseUnixRights(&parts[i])
			files = append(files, fds...)
			err = errors.Join(err, e)
		}
	}
	if err == nil && !known {
		err = fault.New(fault.Invalid, "read message: sender is not known")
	}
	return cred, files, err
}
