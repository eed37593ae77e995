package main

import (
	"context"
	"errors"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// readyTimeout bounds how long a server may take to load its model.
const readyTimeout = 2 * time.Minute

// kevlardServer is one node with all layers.
type kevlardServer struct {
	mesh        *devmesh.Mesh
	client      *load.Client
	temperature float64
}

// topK is how many tokens both sides draw from when they are not greedy.
const topK = 40

func startKevlard(ctx context.Context, set settings, model string, threads int) (*kevlardServer, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	base, err := devmesh.FreeBase(devmesh.DefaultBasePort, 1)
	if err != nil {
		return nil, err
	}
	mesh, err := devmesh.Start(ctx, devmesh.Options{Exe: set.exe, Nodes: 1, Stages: 1, Model: model, Threads: threads, BasePort: base, LogLevel: "warn"})
	if err != nil {
		return nil, err
	}
	if err := mesh.Ready(ctx); err != nil {
		return nil, errors.Join(err, mesh.Close())
	}
	return &kevlardServer{mesh, load.NewClient(mesh.Entry().APIURL()), set.temperature}, nil
}

func (k *kevlardServer) stream(ctx context.Context, prompt string, tokens int) (answer, error) {
	r := k.client.Stream(ctx, load.Request{
		Model: k.mesh.ModelName(), Prompt: prompt, MaxTokens: tokens, IgnoreEOS: true, Temperature: k.temperature, TopK: topK, Seed: 1,
	}, nil)
	if r.Err != nil {
		return answer{}, r.Err
	}
	if len(r.Pieces) == 0 {
		return answer{}, errors.New("an answer without tokens")
	}
	return answer{sent: r.Sent, first: r.Pieces[0].At, last: r.Pieces[len(r.Pieces)-1].At, prompt: r.PromptTokens, tokens: r.Tokens}, nil
}

func (k *kevlardServer) close() error {
	k.client.CloseIdle()
	return k.mesh.Close()
}
