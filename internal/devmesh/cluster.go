package devmesh

import "github.com/kevlard/kevlard/daemon/report"

// member returns the named member of one node's view.
func member(c report.Members, name string) (report.Member, bool) {
	for _, m := range c.Nodes {
		if m.Name == name {
			return m, true
		}
	}
	return report.Member{}, false
}

// missing says what a complete mesh of these nodes still lacks in one node's view:
// the first problem found, or "".
func missing(c report.Members, specs []spec) string {
	for _, s := range specs {
		m, ok := member(c, s.name)
		switch {
		case !ok:
			return "does not see " + s.name
		case m.State != "alive":
			return "sees " + s.name + " as " + m.State
		case s.role == "host" && !s.auto && len(m.Stages) == 0:
			return "knows no stage of " + s.name
		}
		for _, st := range m.Stages {
			if st.State != "ready" {
				return "sees a stage of " + s.name + " as " + st.State
			}
		}
	}
	return ""
}
