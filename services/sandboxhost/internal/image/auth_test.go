package image

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestAuthFile_Chooses(t *testing.T) {
	var file authFile
	if err := json.Unmarshal([]byte(`{"auths": {
		"https://index.docker.io/v1/": {"auth": "aHViOnB3"},
		"reg.example:5000": {"username": "host", "password": "pw"},
		"reg.example:5000/team": {"username": "team", "password": "pw"},
		"https://reg.example:5000/team/app/v2/": {"identitytoken": "tok"},
		"empty.example": {},
		"wrong.example": {"auth": "c2VjcmV0"}
	}, "credHelpers": {"helped.example": "ecr"}}`), &file); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ host, repository, user, secret string }{
		{"registry-1.docker.io", "library/web", "hub", "pw"},
		{"docker.io", "library/web", "hub", "pw"},
		{"reg.example:5000", "other", "host", "pw"},
		{"reg.example:5000", "teams/app", "host", "pw"},
		{"reg.example:5000", "team", "team", "pw"},
		{"reg.example:5000", "team/other/deep", "team", "pw"},
		{"reg.example:5000", "team/app", "", "tok"},
		{"reg.example", "team", "", ""},
		{"empty.example", "a", "", ""},
	} {
		got, ok, err := file.choose(c.host, c.repository)
		if err != nil || got.user != c.user || got.secret != c.secret || ok != (c.secret != "") {
			t.Errorf("%s/%s: got %+v, %t, %v", c.host, c.repository, got, ok, err)
		}
	}
	if _, _, err := file.choose("wrong.example", "a"); err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "c2VjcmV0") {
		t.Errorf("an entry without a colon: got %v", err)
	}
	if !file.helped("helped.example") || file.helped("reg.example") {
		t.Error("helpers are taken for another host's")
	}
}
