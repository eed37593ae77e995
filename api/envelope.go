package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// sealed is what the mesh keeps with a session, so that another connection to any
// node can write its answer on.
type sealed struct {
	Version int    `json:"v"`
	Client  string `json:"client,omitempty"` // clientSalt of whose it was
	Request string `json:"request"`          // fingerprint of the body
	Answer  string `json:"answer"`           // the answer's id, without prefix
	Created int64  `json:"created"`
}

// sealedVersion grows with changes that an older node must not overlook.
const sealedVersion = 1

func (s sealed) seal() []byte {
	body, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("api: %+v does not marshal: %v", s, err))
	}
	return body
}

// unseal reads an envelope of this version.
func unseal(raw []byte) (sealed, bool) {
	var s sealed
	if len(raw) > maxEnvelope {
		return s, false
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if dec.Decode(&s) != nil || s.Version != sealedVersion {
		return sealed{}, false
	}
	return s, true
}

// fingerprint tells requests apart by what they ask for. The session's name is left
// out: a client that comes back may have learned it from the answer.
func fingerprint(path string, body requestBody) string {
	f := body.common()
	name := f.Session
	f.Session = ""
	text, err := json.Marshal(body)
	f.Session = name
	if err != nil {
		panic(fmt.Sprintf("api: %T does not marshal: %v", body, err)) // it came from JSON
	}
	sum := sha256.Sum256(append([]byte(path+"\n"), text...))
	return hex.EncodeToString(sum[:])
}
