// Package rdma tests a mesh whose KV goes over RDMA: real daemons in two emulated hosts with
// Soft-RoCE. It runs only there, see scripts/rdma/exec.
package rdma
