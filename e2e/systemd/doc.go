// Package systemd tests the packages, their units and Slurm's scripts on hosts of their own:
// containers with a real systemd, a root file system, a network namespace and a link to a
// bridge each. scripts/systemd-suite makes what they need (make test-systemd, as root).
package systemd
