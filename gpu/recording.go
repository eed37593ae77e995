package gpu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kevlard/kevlard/gpu/health"
)

// Replay is Watch for a recording: it hands the readings of the file to yield, one for
// each line, those that are appended too, and the last one again and again. A line that
// is no reading ends it with an error.
func Replay(ctx context.Context, path string, every time.Duration, yield func(health.Reading)) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the GPU recording: %w", err)
	}
	defer f.Close()
	if every <= 0 {
		every = followEvery
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	r := bufio.NewReader(f)
	var last health.Reading
	var line []byte
	for n := 1; ; {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxRecording:
			return fmt.Errorf("GPU recording %s, line %d: more than %d bytes", path, n, maxRecording)
		case err == nil:
			if last, err = parseReading(line); err != nil {
				return fmt.Errorf("GPU recording %s, line %d: %w", path, n, err)
			}
			n++
			line = nil
			yield(last)
			last.Kernel = nil // they are reported once
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("read the GPU recording: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			yield(last)
		}
	}
}

// parseReading reads one line of a recording.
func parseReading(line []byte) (health.Reading, error) {
	var r health.Reading
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("want the JSON of a reading: %w", err)
	}
	return r, nil
}
