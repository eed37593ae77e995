package api

import (
	"net/http"
	"strings"
)

// modelObject is a model in OpenAI's JSON, with what vLLM and we add.
type modelObject struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"`
	Digest      string `json:"digest"`
}

func (m Model) object() modelObject {
	o := modelObject{ID: m.Name, Object: "model", OwnedBy: "kevlard", MaxModelLen: m.Context, Digest: m.ID.String()}
	if !m.Created.IsZero() {
		o.Created = m.Created.Unix()
	}
	return o
}

// models answers GET /v1/models. Models that share a name are listed by digest,
// since requests must name them so.
func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	if !allow(w, r, http.MethodGet) {
		return
	}
	models := s.gen.Models()
	shared := map[string]int{}
	for _, m := range models {
		shared[m.Name]++
	}
	data := make([]modelObject, 0, len(models))
	for _, m := range models {
		o := m.object()
		if shared[m.Name] > 1 {
			o.ID = o.Digest
		}
		data = append(data, o)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

// model answers GET /v1/models/NAME.
func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	if !allow(w, r, http.MethodGet) {
		return
	}
	m, err := findModel(s.gen.Models(), strings.TrimPrefix(r.URL.Path, "/v1/models/"))
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, m.object())
}
