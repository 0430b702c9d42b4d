package sandbox_test

import (
	"strings"
	"testing"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/sandbox"
)

func TestFind(t *testing.T) {
	all := []sandbox.Named{
		{Name: "web", UID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Hint: "local"},
		{Name: "web", UID: "01ARZ3NDEKTSV4RRFFQ69G5FB0", Removing: true},
		{Name: "db", UID: "01BX5ZZKBKACTAV9WEVGEMMVRZ"},
		{Name: "01bx5zzkbk", UID: "01CX5ZZKBKACTAV9WEVGEMMVS0"},
		{Name: "twin", UID: "01DX5ZZKBKACTAV9WEVGEMMVS1", Hint: "local"},
		{Name: "twin", UID: "01DX5ZZKBKACTAV9WEVGEMMVS2", Hint: "cluster"},
	}
	tests := []struct {
		name, ref string
		want      int
		kind      fault.Kind
		text      string
	}{
		{"a name", "db", 2, 0, ""},
		{"the one of a name that stays", "web", 0, 0, ""},
		{"a whole uid", "01BX5ZZKBKACTAV9WEVGEMMVRZ", 2, 0, ""},
		{"a uid in lower case", "01bx5zzkbkactav9wevgemmvrz", 2, 0, ""},
		{"a unique beginning", "01BX5Z", 2, 0, ""},
		{"a name wins over the beginning of another's uid", "01bx5zzkbk", 3, 0, ""},
		{"an ambiguous beginning lists its candidates", "01ARZ3NDEK", 0, fault.Conflict, "01ARZ3NDEKTSV4RRFFQ69G5FB0"},
		{"two of one name are told apart", "twin", 0, fault.Conflict, "cluster"},
		{"a beginning that is too short", "01BX5", 0, fault.NotFound, "at least 6"},
		{"nothing", "nothing", 0, fault.NotFound, `sandbox "nothing": not found`},
		{"the empty text", "", 0, fault.NotFound, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := sandbox.Find("sandbox", tt.ref, all)
			if fault.KindOf(err) != tt.kind || err == nil && got != tt.want {
				t.Fatalf("Find(%q) = %d, %v; want %d, %v", tt.ref, got, err, tt.want, tt.kind)
			}
			if err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %q does not contain %q", err, tt.text)
			}
		})
	}
}
