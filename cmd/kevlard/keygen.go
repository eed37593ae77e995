package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kevlard/kevlard/api"
	"github.com/urfave/cli/v2"
)

// secretBytes is the length of a cluster secret.
const secretBytes = 32

func keygenCommand() *cli.Command {
	return &cli.Command{
		Name:  "keygen",
		Usage: "make a new cluster secret, or an API key",
		Description: "Every node of a ring needs the same secret: copy the file to each of them and\n" +
			"name it in [ring] secret_file. Whoever holds it can join the ring.\n\n" +
			"With --api it makes a key for a client of the HTTP API instead. Give the key to the\n" +
			"client and add the line to the file that [api] keys_file names, on each node that\n" +
			"serves the client; a running daemon reads the file again on SIGHUP.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Usage: "write to `FILE` with mode 0600, which must not exist, instead of stdout"},
			&cli.StringFlag{Name: "api", Usage: "make an API key for the client called `NAME`, and its line for the keys file"},
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.IsSet("api") {
				return keygenAPI(c)
			}
			secret := make([]byte, secretBytes)
			rand.Read(secret) // never fails: crypto/rand ends the program instead
			line := base64.StdEncoding.EncodeToString(secret) + "\n"
			if c.String("out") == "" {
				_, err := fmt.Fprint(c.App.Writer, line)
				return err
			}
			return writeSecret(c.String("out"), line)
		},
	}
}

// keygenAPI prints an API key and the line that lets it in.
func keygenAPI(c *cli.Context) error {
	if c.IsSet("out") {
		return usageError("flag --out is for the cluster secret: with --api, append the line to the keys file yourself")
	}
	name := c.String("api")
	key, line, err := api.NewKey(name)
	if err != nil {
		return usageError("flag --api: %w", err)
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, map[string]string{"name": name, "key": key, "line": line})
	}
	t := newTable("key", key)
	t.row("line", line)
	return t.write(c.App.Writer)
}

// writeSecret creates the file, readable by its owner only. It never replaces one:
// an overwritten secret locks this node out of its ring.
func writeSecret(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write secret %s: it exists already: choose another name, or remove it if no ring uses it", path)
	}
	if err != nil {
		return fmt.Errorf("write secret: %w", err)
	}
	if _, err := f.WriteString(line); err != nil {
		f.Close()
		return fmt.Errorf("write secret %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write secret %s: %w", path, err)
	}
	return nil
}

// noArguments refuses positional arguments where a verb takes none.
func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return usageError("%s takes no arguments, but got %q", c.Command.FullName(), c.Args().First())
	}
	return nil
}

// oneArgument returns the only positional argument, which what names.
func oneArgument(c *cli.Context, what string) (string, error) {
	switch {
	case c.NArg() == 0:
		return "", usageError("%s needs %s", c.Command.FullName(), what)
	case c.NArg() > 1:
		return "", usageError("%s takes one argument, %s, but got a second: %q (quote an argument that has spaces)", c.Command.FullName(), what, c.Args().Get(1))
	}
	return c.Args().First(), nil
}
