package main

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
)

func FuzzParseSecret(f *testing.F) {
	secret := []byte("0123456789abcdef0123456789abcdef")
	f.Add(hex.EncodeToString(secret) + "\n")
	f.Add(base64.StdEncoding.EncodeToString(secret))
	f.Add(base64.RawURLEncoding.EncodeToString(secret))
	f.Add("short")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseSecret(text)
		if err == nil && len(got) != secretBytes || err != nil && got != nil {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		// It goes to logs and screens.
		if len(text) >= secretBytes && err != nil && strings.Contains(err.Error(), text) {
			t.Fatalf("the error quotes %q", text)
		}
	})
}
