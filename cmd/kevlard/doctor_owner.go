package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// checkOwners looks whose the files are that the daemon reads and writes: kevlard that was
// once started by hand as root leaves some that its own user can't read, and so does who
// copies the secret as root.
func (d *doctor) checkOwners(context.Context) []finding {
	const check = "owner"
	dir, secret := d.cfg.Node.DataDir, d.cfg.Ring.SecretFile
	owner, err := d.probe.owner(dir)
	switch {
	case d.status != nil:
		return one(check, statusOK, "", "the daemon could open its files")
	case errors.Is(err, fs.ErrNotExist):
		return one(check, statusOK, "", "%s is not there yet: the daemon makes it", dir)
	case err != nil:
		return one(check, statusWarn, "run doctor as root or as the daemon's user", "%v", err)
	}
	var out []finding
	for _, path := range []string{filepath.Join(dir, "node.key"), secret} {
		other, err := d.probe.owner(path)
		// Root's directory is no hint: root reads all, and what else is wrong with a file
		// another check says.
		if err != nil || other == owner || owner == rootName {
			continue
		}
		out = append(out, one(check, statusFail, fmt.Sprintf("chown %s %s, if kevlard runs as %s", owner, path, owner),
			"%s belongs to %s, and %s to %s, who can't read it", path, other, dir, owner)...)
	}
	if len(out) == 0 {
		return one(check, statusOK, "", "%s belongs to %s, as whom kevlard has to run", dir, owner)
	}
	return out
}

// rootName is the owner of what root owns.
const rootName = "root"

// fileOwner names the user that a file belongs to, by its number where it has no name.
func fileOwner(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("see whose file it is: %w", err)
	}
	uid, err := ownerOf(info)
	if err != nil {
		return "", fmt.Errorf("see whose file %s is: %w", path, err)
	}
	if uid == 0 {
		return rootName, nil
	}
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username, nil
	}
	return id, nil
}
