package mem_test

import (
	"strconv"
	"syscall"
	"testing"

	"staddle.internal/kit/id"
	"staddle.internal/services/sandboxhost/internal/engine"
	"staddle.internal/services/sandboxhost/internal/engine/enginetest"
	"staddle.internal/services/sandboxhost/internal/engine/mem"
)

func TestEngine_Conforms(t *testing.T) {
	enginetest.Run(t, enginetest.Fixture{
		Image: mem.Image, Missing: "example.org/none:1",
		Sleep: []string{"sleep"}, IgnoreTerm: []string{mem.CommandIgnoreTerm}, Absent: []string{mem.CommandAbsent}, Hang: []string{mem.CommandHang},
		Exit:    func(code int) []string { return []string{mem.CommandExit, strconv.Itoa(code)} },
		Network: true,
	}, func(*testing.T) *enginetest.Control {
		e := mem.New()
		return &enginetest.Control{
			Engine: e,
			Restart: func(_ *testing.T, meanwhile func()) engine.Engine {
				meanwhile()
				return e
			},
			Silence: func(_ *testing.T, uid id.Sandbox, silent bool) { e.Silence(uid, silent) },
			End: func(t *testing.T, c engine.Container, s syscall.Signal) {
				t.Helper()
				uid := id.Sandbox(c.Note.GetWish().GetUid())
				if err := e.End(uid, c.Note.GetContainer(), engine.Exit{Code: 128 + uint32(s)}); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}
