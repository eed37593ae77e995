package chat

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// strftime formats t in the C locale. It knows what templates use: dates and times,
// with "-" for no leading zeros.
func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		verb := format[i:min(i+2, len(format))]
		if verb == "%-" {
			verb = format[i:min(i+3, len(format))]
		}
		i += len(verb) - 1
		text, ok := directive(t, verb)
		if !ok {
			return "", fmt.Errorf("strftime_now does not know %q", verb)
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// directive formats one directive, such as %d or %-d.
func directive(t time.Time, verb string) (string, bool) {
	layouts := map[string]string{
		"%a": "Mon", "%A": "Monday", "%b": "Jan", "%h": "Jan", "%B": "January", "%d": "02", "%-d": "2", "%e": "_2", "%m": "01", "%-m": "1",
		"%y": "06", "%Y": "2006", "%H": "15", "%I": "03", "%-I": "3", "%M": "04", "%-M": "4", "%S": "05", "%-S": "5", "%p": "PM",
		"%D": "01/02/06", "%F": "2006-01-02", "%R": "15:04", "%T": "15:04:05", "%Z": "MST", "%z": "-0700",
		"%j": "002", "%c": "Mon Jan _2 15:04:05 2006", "%x": "01/02/06", "%X": "15:04:05",
	}
	if layout, ok := layouts[verb]; ok {
		return t.Format(layout), true
	}
	switch verb {
	case "%-H":
		return strconv.Itoa(t.Hour()), true
	case "%-j":
		return strconv.Itoa(t.YearDay()), true
	case "%s":
		return strconv.FormatInt(t.Unix(), 10), true
	case "%u":
		return strconv.Itoa((int(t.Weekday())+6)%7 + 1), true
	case "%w":
		return strconv.Itoa(int(t.Weekday())), true
	case "%n":
		return "\n", true
	case "%t":
		return "\t", true
	case "%%":
		return "%", true
	}
	return "", false
}
