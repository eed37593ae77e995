package engine

// Devices lists the devices that this build and this host can compute on, by the
// names that Info has.
func Devices() []string { return []string{"cpu"} }
