package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// ollamaServer is an `ollama serve` with one model, imported into a directory of its
// own that goes with it.
type ollamaServer struct {
	base    string // of the API
	cmd     *exec.Cmd
	dir     string
	set     settings
	threads int
	http    http.Client
}

// ollamaModel is the name under which the file is imported.
const ollamaModel = "compare"

func startOllama(ctx context.Context, set settings, model string, threads int) (*ollamaServer, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "compare-ollama-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for ollama: %w", err)
	}
	o := &ollamaServer{dir: dir, set: set, threads: threads}
	if err := o.start(ctx, set.ollama, model); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log")) // it only adds to the error
		return nil, errors.Join(fmt.Errorf("start ollama: %w\n%s", err, log[max(0, len(log)-2000):]), o.close())
	}
	return o, nil
}

func (o *ollamaServer) start(ctx context.Context, exe, model string) error {
	// The port is free now; if another process takes it before ollama does, the start
	// fails and says so.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	host := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	o.base = "http://" + host
	log, err := os.Create(filepath.Join(o.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	env := append(os.Environ(), "HOME="+o.dir, "OLLAMA_HOST="+host, "OLLAMA_MODELS="+filepath.Join(o.dir, "models"),
		"OLLAMA_NUM_PARALLEL=4", "OLLAMA_KEEP_ALIVE=-1", "OLLAMA_NOPRUNE=1")
	o.cmd = exec.Command(exe, "serve")
	o.cmd.Env, o.cmd.Stdout, o.cmd.Stderr = env, log, log
	o.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with its runners
	if err := o.cmd.Start(); err != nil {
		o.cmd = nil
		return err
	}
	if err := o.await(ctx); err != nil {
		return err
	}
	path, err := filepath.Abs(model)
	if err != nil {
		return err
	}
	modelfile := filepath.Join(o.dir, "Modelfile")
	if err := os.WriteFile(modelfile, fmt.Appendf(nil, "FROM %s\n", path), 0o600); err != nil {
		return err
	}
	create := exec.CommandContext(ctx, exe, "create", ollamaModel, "-f", modelfile)
	create.Env = env
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("import %s: %w: %s", path, err, out)
	}
	return nil
}

// await polls until the server answers.
func (o *ollamaServer) await(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.base+"/api/version", nil)
		if err != nil {
			return err
		}
		resp, err := o.http.Do(req)
		if err == nil {
			return resp.Body.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer from %s: %w", o.base, err)
		case <-tick.C:
		}
	}
}

func (o *ollamaServer) stream(ctx context.Context, prompt string, tokens int) (answer, error) {
	body, err := json.Marshal(map[string]any{
		"model": ollamaModel, "prompt": prompt, "raw": true, "stream": true,
		"options": map[string]any{
			"temperature": o.set.temperature, "top_k": topK, "top_p": 1, "min_p": 0, "seed": 1, "repeat_penalty": 1, "num_predict": tokens, "num_thread": o.threads, "num_ctx": 1024,
		},
	})
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.base+"/api/generate", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	a := answer{sent: time.Now()}
	resp, err := o.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // it only adds to the error
		return answer{}, fmt.Errorf("HTTP %d: %s", resp.StatusCode, text)
	}
	err = a.read(resp.Body)
	return a, err
}

// read takes the lines of an answer.
func (a *answer) read(r io.Reader) error {
	for d := json.NewDecoder(r); ; {
		var line struct {
			Response string `json:"response"`
			Done     bool   `json:"done"`
			Prompt   int    `json:"prompt_eval_count"`
			Tokens   int    `json:"eval_count"`
			Error    string `json:"error"`
		}
		if err := d.Decode(&line); err != nil {
			return fmt.Errorf("the answer broke off (ollama cuts one that says a word 30 times; random weights do so when greedy): %w", err)
		}
		now := time.Now()
		if line.Error != "" {
			return fmt.Errorf("the answer failed: %s", line.Error)
		}
		if line.Response != "" {
			a.last = now
			if a.first.IsZero() {
				a.first = now
			}
		}
		if line.Done {
			a.prompt, a.tokens = line.Prompt, line.Tokens
			return nil
		}
	}
}

func (o *ollamaServer) close() error {
	o.http.CloseIdleConnections()
	var err error
	if o.cmd != nil {
		err = syscall.Kill(-o.cmd.Process.Pid, syscall.SIGKILL)
		_ = o.cmd.Wait() // it was killed
	}
	return errors.Join(err, os.RemoveAll(o.dir))
}
