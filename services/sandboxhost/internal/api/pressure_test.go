package api

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"
)

func TestAppArmor_IsAConditionWithAReasonIfThereIsNone(t *testing.T) {
	const yes, no = resourcev1.ConditionState_CONDITION_STATE_TRUE, resourcev1.ConditionState_CONDITION_STATE_FALSE
	since := time.Unix(1, 0)
	for lacking, want := range map[string]resourcev1.ConditionState{"": yes, "there is no parser": no} {
		got := appArmor(lacking, since)
		if got.GetType() != "AppArmor" || got.GetState() != want || got.GetReason() != lacking || !got.GetSince().AsTime().Equal(since) {
			t.Errorf("lacking %q: got %v, want %v since %v", lacking, got, want, since)
		}
	}
	long := appArmor(strings.Repeat("€", maxReason), since).GetReason()
	if len(long) > maxReason || !utf8.ValidString(long) {
		t.Errorf("a reason of %d bytes, valid %t", len(long), utf8.ValidString(long))
	}
}
