package chat

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// load reads a fixture as a template with a fixed date.
func load(t *testing.T, name, bos, eos string) *Template {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".jinja")
	if err != nil {
		t.Fatal(err)
	}
	return compile(t, string(text), bos, eos)
}

func compile(t *testing.T, text, bos, eos string) *Template {
	t.Helper()
	tmpl, err := New(text, bos, eos)
	if err != nil {
		t.Fatal(err)
	}
	tmpl.now = func() time.Time { return time.Date(2025, 3, 7, 23, 30, 0, 0, time.FixedZone("", -3600)) }
	return tmpl
}

// The conversations that every format renders. Texts have what templates trip over:
// white space around, quotes, markup, other languages, Jinja's own signs.
func single() []Message { return []Message{{"user", "Who are you?"}} }

func system() []Message {
	return []Message{{"system", "Answer in one word."}, {"user", "What is 1 < 2 & \"true\"?"}}
}

func several() []Message {
	return []Message{
		{"system", "Be kind."},
		{"user", "  Hei, {{ bos_token }} {% if %}\n"},
		{"assistant", " Hyvää päivää! "},
		{"user", "再见"},
	}
}

// TestFormats compares with what the publishers' documentation of each format says.
func TestFormats(t *testing.T) {
	const (
		llamaTurn = "<|start_header_id|>"
		llamaMid  = "<|end_header_id|>\n\n"
		date      = "system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 08 Mar 2025\n\n" // in UTC
	)
	llama3, llama31 := load(t, "llama3", "<|begin_of_text|>", "<|eot_id|>"), load(t, "llama31", "<|begin_of_text|>", "<|eot_id|>")
	qwen2, mistral := load(t, "qwen2", "", "<|im_end|>"), load(t, "mistral", "<s>", "</s>")
	for _, c := range []struct {
		name     string
		template *Template
		messages []Message
		open     bool
		want     string
	}{
		{"llama3 single", llama3, single(), true, "<|begin_of_text|>" + llamaTurn + "user" + llamaMid + "Who are you?<|eot_id|>" + llamaTurn + "assistant" + llamaMid},
		{"llama3 closed", llama3, single(), false, "<|begin_of_text|>" + llamaTurn + "user" + llamaMid + "Who are you?<|eot_id|>"},
		{
			"llama3 system", llama3, system(), true, "<|begin_of_text|>" + llamaTurn + "system" + llamaMid + "Answer in one word.<|eot_id|>" +
				llamaTurn + "user" + llamaMid + "What is 1 < 2 & \"true\"?<|eot_id|>" + llamaTurn + "assistant" + llamaMid,
		},
		{
			"llama3 several", llama3, several(), true, "<|begin_of_text|>" + llamaTurn + "system" + llamaMid + "Be kind.<|eot_id|>" +
				llamaTurn + "user" + llamaMid + "Hei, {{ bos_token }} {% if %}<|eot_id|>" + llamaTurn + "assistant" + llamaMid + "Hyvää päivää!<|eot_id|>" +
				llamaTurn + "user" + llamaMid + "再见<|eot_id|>" + llamaTurn + "assistant" + llamaMid,
		},
		{
			"llama3.1 single", llama31, single(), true, "<|begin_of_text|>" + llamaTurn + date + "<|eot_id|>" +
				llamaTurn + "user" + llamaMid + "Who are you?<|eot_id|>" + llamaTurn + "assistant" + llamaMid,
		},
		{
			"llama3.1 several", llama31, several(), false, "<|begin_of_text|>" + llamaTurn + date + "Be kind.<|eot_id|>" +
				llamaTurn + "user" + llamaMid + "Hei, {{ bos_token }} {% if %}<|eot_id|>" + llamaTurn + "assistant" + llamaMid + "Hyvää päivää!<|eot_id|>" +
				llamaTurn + "user" + llamaMid + "再见<|eot_id|>",
		},
		{"qwen2 single", qwen2, single(), true, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"},
		{"qwen2 system", qwen2, system(), true, "<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\nWhat is 1 < 2 & \"true\"?<|im_end|>\n<|im_start|>assistant\n"},
		{
			"qwen2 several", qwen2, several(), false, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n  Hei, {{ bos_token }} {% if %}\n<|im_end|>\n" +
				"<|im_start|>assistant\n Hyvää päivää! <|im_end|>\n<|im_start|>user\n再见<|im_end|>\n",
		},
		{"mistral single", mistral, single(), true, "<s>[INST] Who are you?[/INST]"},
		{"mistral system", mistral, system(), true, "<s>[INST] Answer in one word.\n\nWhat is 1 < 2 & \"true\"?[/INST]"},
		{
			"mistral several", mistral, several(), true, "<s>[INST]   Hei, {{ bos_token }} {% if %}\n[/INST] Hyvää päivää!</s>" +
				"[INST] Be kind.\n\n再见[/INST]",
		},
		{"plain single", Plain(), single(), true, "User: Who are you?\n\nAssistant:"},
		{
			"plain several", Plain(), several(), true, "System: Be kind.\n\nUser: Hei, {{ bos_token }} {% if %}\n\n" +
				"Assistant: Hyvää päivää!\n\nUser: 再见\n\nAssistant:",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.template.Render(c.messages, c.open)
			if err != nil || got != c.want {
				t.Errorf("got  %q, %v\nwant %q", got, err, c.want)
			}
		})
	}
}

// TestRefusals checks that a template's own refusals come through as such.
func TestRefusals(t *testing.T) {
	mistral := load(t, "mistral", "<s>", "</s>")
	for _, c := range []struct {
		template *Template
		messages []Message
		want     string
	}{
		{mistral, []Message{{"user", "a"}, {"user", "b"}}, "the model's chat template refuses: After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."},
		{mistral, []Message{{"assistant", "a"}}, "the model's chat template refuses: After the optional"},
		{mistral, []Message{{"user", "a"}, {"developer", "b"}}, "the model's chat template refuses: Only user and assistant roles"},
		{load(t, "llama31", "", ""), []Message{{"tool", "a"}}, "the model's chat template refuses: this model takes no tool messages here"},
		{Plain(), []Message{{"tool", "a"}}, `the model's chat template refuses: role "tool": want system, user or assistant`},
		{compile(t, "{{ raise_exception() }}", "", ""), nil, "the model's chat template refuses: it does not say why"},
		{compile(t, "{% for m in messages if raise_exception('no') %}{% endfor %}ok", "", ""), single(), "the model's chat template refuses: no"},
		{compile(t, "{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{{ f() }}", "", ""), single(), "the model's chat template refuses: deep"},
	} {
		got, err := c.template.Render(c.messages, true)
		refused, ok := errors.AsType[*RefusedError](err)
		if !ok || !strings.HasPrefix(refused.Error(), c.want) || got != "" {
			t.Errorf("got %q, %v\nwant %q", got, err, c.want)
		}
	}
}

// TestBroken checks that templates that cannot be served are one short error.
func TestBroken(t *testing.T) {
	for text, want := range map[string]string{
		"{% for %}":                        "parse chat template: ",
		"{% if true %}":                    "parse chat template: ",
		"{{ 'a ":                           "parse chat template: ",
		"{% include '/etc/passwd' %}":      "parse chat template: ",
		"{% block a %}{% endblock %}":      "parse chat template: ",
		"{% nonsense %}":                   "parse chat template: ",
		strings.Repeat("x", maxTemplate+1): "chat template of 65537 bytes: want at most 65536",
		"{% for m in messages recursive %}{% endfor %}": "parse chat template: ",
		strings.Repeat("{{ ", 1<<14):                    "parse chat template: ",
		"{{ " + strings.Repeat("(", 129) + " }}":        "parse chat template: line 1: more than 128 brackets or blocks inside one another",
		"{{ " + strings.Repeat("[", 1<<15) + " }}":      "parse chat template: line 1: more than 128 brackets or blocks inside one another",
		strings.Repeat("{% if x %}", 5000):              "parse chat template: line 1: more than 128 brackets or blocks inside one another",
	} {
		_, err := New(text, "", "")
		if err == nil || !strings.HasPrefix(err.Error(), want) || len(err.Error()) > 1<<10 {
			t.Errorf("%.40q: got %.2000v, want %s", text, err, want)
		}
	}
}

// TestBounds checks that a template that would go on for ever, or take all memory,
// is an error.
func TestBounds(t *testing.T) {
	ticks := 0
	slow := compile(t, "{% for i in range(1000) %}{% if i %}{% endif %}{% endfor %}", "", "")
	slow.now = func() time.Time { ticks++; return time.Unix(0, 0).Add(time.Duration(ticks) * maxTime / 100) }
	for _, c := range []struct {
		template *Template
		want     string
	}{
		{compile(t, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "", ""), "render chat template: more than 32 macros call one another"},
		{compile(t, "{% for i in range(300) %}{% for j in range(300) %}{% if i %}{% endif %}{% endfor %}{% endfor %}", "", ""), "render chat template: it took more than 65536 steps"},
		{compile(t, "{% for i in range(16000) %}"+strings.Repeat("x", 1000)+"{% endfor %}", "", ""), "render chat template: the prompt is larger than 8388608 bytes"},
		{compile(t, "{{ range(16385) }}", "", ""), "range returns more than 16384 numbers"},
		{compile(t, "{{ range(1, 5, 0) }}", "", ""), "range with a step of 0 does not end"},
		{compile(t, "{{ strftime_now('%Q') }}", "", ""), `strftime_now does not know "%Q"`},
		{compile(t, "{{ no_such_function() }}", "", ""), "render chat template: "},
		{compile(t, "{{ 1 % 0 }}", "", ""), "render chat template: "},
		{slow, "render chat template: it took longer than 2s"},
	} {
		got, err := c.template.Render(single(), true)
		if err == nil || !strings.Contains(err.Error(), c.want) || got != "" || len(err.Error()) > 2*maxReason {
			t.Errorf("got %.100q, %v\nwant %s", got, err, c.want)
		}
	}
}

// TestStrftime compares with what the C library writes.
func TestStrftime(t *testing.T) {
	at := time.Date(2024, 7, 6, 5, 4, 9, 0, time.UTC) // a Saturday
	for format, want := range map[string]string{
		"%d %b %Y": "06 Jul 2024", "%A, %B %-d, %Y": "Saturday, July 6, 2024", "%Y-%m-%dT%H:%M:%S": "2024-07-06T05:04:09", "%F %T": "2024-07-06 05:04:09",
		"%I:%M %p": "05:04 AM", "%j": "188", "%-j|%-H|%e": "188|5| 6", "%u %w %a": "6 6 Sat", "100 %%": "100 %", "": "", "%s": "1720242249", "%D": "07/06/24",
		"%Z%n%t": "UTC\n\t", "päivä": "päivä",
	} {
		if got, err := strftime(at, format); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", format, got, err, want)
		}
	}
	for _, bad := range []string{"%", "%-", "%Q", "%-Q", "x%"} {
		if got, err := strftime(at, bad); err == nil {
			t.Errorf("%q: got %q, want an error", bad, got)
		}
	}
}

// TestShared renders with one template from many goroutines: sessions share it.
func TestShared(t *testing.T) {
	llama := load(t, "llama31", "<|begin_of_text|>", "")
	want, err := llama.Render(several(), true)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				if got, err := llama.Render(several(), true); err != nil || got != want {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// FuzzRender checks that no content changes the frame around it.
func FuzzRender(f *testing.F) {
	f.Add("hello")
	f.Add("{{ 7 * 7 }}")
	f.Add("%}\n{% if")
	text, err := os.ReadFile("testdata/qwen2.jinja")
	if err != nil {
		f.Fatal(err)
	}
	chatML, err := New(string(text), "", "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content string) {
		got, err := chatML.Render([]Message{{"user", content}}, false)
		if want := "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n" + content + "<|im_end|>\n"; err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	})
}

// FuzzNew checks that every text is a template or one short error. What a made-up
// template does is not tried: one expression may take all memory.
func FuzzNew(f *testing.F) {
	for _, name := range []string{"llama3", "llama31", "qwen2", "mistral"} {
		text, err := os.ReadFile("testdata/" + name + ".jinja")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("{{ messages[0].content|trim }}{% macro f(a, b=1, *c, **d) %}{% endmacro %}{%- raw -%}{% endraw %}")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := New(text, "<s>", "</s>"); err != nil && len(err.Error()) > maxTemplate {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
