// Package bench runs the measurements of `kevlard bench failover` and `bench
// overhead` on local meshes of real daemons. It says what a client saw (package
// internal/devmesh/load) and, where only the mesh knows, what the owner's event log
// says; how figures are made of that is package internal/measure.
//
// Everything here shares the machine's processors with the meshes that it measures,
// so each report says how busy the machine was. A run that leaves too little idle
// time measures the waiting for a processor.
package bench
