package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// chatToken is the expected JSON of one token of a chat and its alternatives, which
// the toy takes from the bytes that follow.
func chatToken(text, bytes string, value float64, top ...string) string {
	return fmt.Sprintf(`{"token":%q,"logprob":%v,"bytes":%s,"top_logprobs":[%s]}`, text, value, bytes, strings.Join(top, ","))
}

func alternative(text, bytes string, value float64) string {
	return fmt.Sprintf(`{"token":%q,"logprob":%v,"bytes":%s}`, text, value, bytes)
}

func chatTokens(tokens ...string) string {
	return `{"content":[` + strings.Join(tokens, ",") + `],"refusal":null}`
}

// withLogprobs puts the logprobs of a choice into an expected chunk.
func withLogprobs(chunk, logprobs string) string {
	return strings.Replace(chunk, `"logprobs":null`, `"logprobs":`+logprobs, 1)
}

// TestChatLogprobs compares streams and documents, byte by byte. Tokens whose text is
// held back come with it, or not at all if a stop string cuts it off.
func TestChatLogprobs(t *testing.T) {
	_, ts := newTestServer(t, &toy{lessons: chatLessons()}, 0)
	var (
		a     = chatToken("a", "[97]", -97.0/128)
		b     = chatToken("b", "[98]", -98.0/128)
		euro1 = chatToken(`\xe2`, "[226]", -226.0/128)
		euro2 = chatToken(`\x82`, "[130]", -130.0/128)
		euro3 = chatToken(`\xac`, "[172]", -172.0/128)
		o     = chatToken("o", "[111]", -111.0/128)
		n     = chatToken("n", "[110]", -110.0/128)
		e     = chatToken("e", "[101]", -101.0/128)
		a2    = chatToken("a", "[97]", -97.0/128, alternative("a", "[97]", -97.0/128), alternative("b", "[98]", -97.0/128-1))
	)
	for _, c := range []struct {
		name, body, stream, document string
	}{
		{
			"alone", said("plain") + `,"logprobs":true`,
			role + withLogprobs(content("a"), chatTokens(a)) + withLogprobs(content("b"), chatTokens(b)) + stop,
			chatTokens(a, b),
		},
		{
			"alternatives", said("plain") + `,"logprobs":true,"top_logprobs":2,"max_tokens":1`,
			role + withLogprobs(content("a"), chatTokens(a2)) + delta(`{}`, "length"),
			chatTokens(a2),
		},
		{
			"a character over tokens", said("utf8") + `,"logprobs":true`,
			role + withLogprobs(content("a"), chatTokens(a)) + withLogprobs(content("€"), chatTokens(euro1, euro2, euro3)) +
				withLogprobs(content("b"), chatTokens(b)) + stop,
			chatTokens(a, euro1, euro2, euro3, b),
		},
		{
			"half a character", said("half") + `,"logprobs":true`,
			role + withLogprobs(content("a"), chatTokens(a)) + withLogprobs(content("\uFFFD"), chatTokens(euro1, euro2)) + stop,
			chatTokens(a, euro1, euro2),
		},
		{
			"cut by a stop", said("stop") + `,"logprobs":true,"stop":"\n\n"`,
			role + withLogprobs(content("o"), chatTokens(o)) + withLogprobs(content("n"), chatTokens(n)) + withLogprobs(content("e"), chatTokens(e)) + stop,
			chatTokens(o, n, e),
		},
		{
			"cut in one update", said("burst") + `,"logprobs":true,"stop":"\n\n"`,
			role + withLogprobs(content("one"), chatTokens(o, n, e)) + stop,
			chatTokens(o, n, e),
		},
		{
			"held and let go", said("burst") + `,"logprobs":true,"stop":"ex","max_tokens":3`,
			role + withLogprobs(content("one"), chatTokens(o, n, e)) + delta(`{}`, "length"),
			chatTokens(o, n, e),
		},
		{"nothing", said("empty") + `,"logprobs":true`, role + stop, chatTokens()},
		{"not asked for", said("empty") + `,"logprobs":false,"top_logprobs":0`, role + stop, "null"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := postTo(t, ts, chatPath, `{"stream":true,`+c.body+`}`)
			if got, want := normalChat(t, text), c.stream+done; got != want || resp.StatusCode != http.StatusOK {
				t.Errorf("got %d\n%s\nwant\n%s", resp.StatusCode, got, want)
			}
			_, text = postTo(t, ts, chatPath, `{`+c.body+`}`)
			if want := `"logprobs":` + c.document + `,`; !strings.Contains(text, want) {
				t.Errorf("got\n%s\nwant in it\n%s", text, want)
			}
		})
	}
}

// TestLegacyLogprobs compares the lists of completions.
func TestLegacyLogprobs(t *testing.T) {
	g := &toy{lessons: map[string]lesson{"plain": {answer: "ab"}, "utf8": {answer: "a€\nb", burst: 3}, "same": {answer: "\xff\xff", burst: 2}}}
	_, ts := newTestServer(t, g, 0)
	lists := func(tokens, values, top, offsets string) string {
		return fmt.Sprintf(`{"tokens":[%s],"token_logprobs":[%s],"top_logprobs":[%s],"text_offset":[%s]}`, tokens, values, top, offsets)
	}
	for _, c := range []struct {
		name, body, stream, document string
	}{
		{
			"none but the chosen", `"prompt":"plain","logprobs":0`,
			withLogprobs(chunk("a", "null"), lists(`"a"`, `-0.7578125`, `{"a":-0.7578125}`, `0`)) +
				withLogprobs(chunk("b", "stop"), lists(`"b"`, `-0.765625`, `{"b":-0.765625}`, `1`)),
			lists(`"a","b"`, `-0.7578125,-0.765625`, `{"a":-0.7578125},{"b":-0.765625}`, `0,1`),
		},
		{
			"two", `"prompt":"plain","logprobs":2,"max_tokens":1`,
			withLogprobs(chunk("a", "length"), lists(`"a"`, `-0.7578125`, `{"a":-0.7578125,"b":-1.7578125}`, `0`)),
			lists(`"a"`, `-0.7578125`, `{"a":-0.7578125,"b":-1.7578125}`, `0`),
		},
		{
			// The offsets count characters.
			"characters", `"prompt":"utf8","logprobs":0`,
			withLogprobs(chunk("a", "null"), lists(`"a"`, `-0.7578125`, `{"a":-0.7578125}`, `0`)) +
				withLogprobs(chunk("€\nb", "stop"), lists(`"bytes:\\xe2","bytes:\\x82","bytes:\\xac","\n","b"`, `-1.765625,-1.015625,-1.34375,-0.078125,-0.765625`,
					`{"bytes:\\xe2":-1.765625},{"bytes:\\x82":-1.015625},{"bytes:\\xac":-1.34375},{"\n":-0.078125},{"b":-0.765625}`, `1,1,1,2,3`)),
			"",
		},
		{
			// 255 is followed by control tokens, which have names and no bytes.
			"names", `"prompt":"same","logprobs":2,"max_tokens":1`,
			withLogprobs(chunk("\uFFFD", "length"), lists(`"bytes:\\xff"`, `-1.9921875`, `{"\u003c256\u003e":-2.9921875,"bytes:\\xff":-1.9921875}`, `0`)),
			"",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, text := post(t, ts, `{"model":"toy","stream":true,`+c.body+`}`)
			if got, want := normal(t, text), c.stream+done; got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			_, text = post(t, ts, `{"model":"toy",`+c.body+`}`)
			if want := `"logprobs":` + c.document; !strings.Contains(text, want) {
				t.Errorf("got\n%s\nwant in it\n%s", text, want)
			}
		})
	}
}

// TestLegacyTopKeepsTheLikeliest of tokens that have the same text.
func TestLegacyTopKeepsTheLikeliest(t *testing.T) {
	list := []entry{{token: toyEOS, Logprobs: kevlard.Logprobs{Chosen: -3, Top: []kevlard.TokenLogprob{{Token: 65, Logprob: -1}, {Token: 65, Logprob: -2}, {Token: 300, Logprob: -2.5}}}}}
	got := newLegacyLogprobs(toyTokenizer{}, list).TopLogprobs[0]
	if want := map[string]float32{"A": -1, "<300>": -2.5, "<256>": -3}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLogprobsAreCounted: a generator that forgets them is an error, not a hole.
func TestLogprobsAreCounted(t *testing.T) {
	_, ts := newTestServer(t, &toy{lessons: map[string]lesson{"p": {answer: "ab", mute: true}}}, 0)
	resp, text := post(t, ts, `{"model":"toy","prompt":"p","logprobs":1}`)
	if resp.StatusCode != http.StatusInternalServerError || !strings.Contains(text, "1 tokens came with 0 logprobs") {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
}

// TestEntriesGoWithTheirText draws answers, stop strings and updates: whatever they
// are, the entries are those of the tokens that have a part in the text, in order,
// none is late, and the updates do not matter.
func TestEntriesGoWithTheirText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.SampledFrom([]string{"a", "b", "€", "\xe2\x82", "\xff", "ab"})
		answer := strings.Join(rapid.SliceOfN(bits, 1, 12).Draw(t, "answer"), "")
		stops := rapid.SliceOfN(rapid.SampledFrom([]string{"ab", "ba", "bb", "€a", "a€", "\uFFFD", "aaa"}), 0, 3).Draw(t, "stops")
		read := func(burst int) (text string, list []entry) {
			g := &toy{lessons: map[string]lesson{"p": {answer: answer, burst: burst}}}
			models := g.Models()
			c := &completion{model: models[0], stops: stops, logprobs: true, n: 1, prompts: []prompt{{ids: []kevlard.Token{'p'}}}}
			c.gen.Sampling.Logprobs = true
			c.choose(len(answer) + 1)
			streams, err := c.start(t.Context(), g)
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.run(t.Context(), streams, func(_ int, p piece, reason *string) error {
				text += p.text
				list = append(list, p.logprobs...)
				for _, e := range list {
					if e.begin > len(text) || e.begin == len(text) && reason == nil {
						t.Fatalf("the entry of byte %d came with %d bytes of text", e.begin, len(text))
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return text, list
		}
		text, list := read(1)
		burst := rapid.IntRange(2, 20).Draw(t, "burst")
		if text2, list2 := read(burst); text2 != text || !reflect.DeepEqual(list2, list) {
			t.Fatalf("with updates of %d: %q and %v, with single tokens %q and %v", burst, text2, list2, text, list)
		}
		// The definition: where each token's text begins, found by decoding again.
		var want []int
		d, at := toyTokenizer{}.NewDecoder(), 0
		for _, b := range []byte(answer) {
			if at < len(text) || len(stops) == 0 {
				want = append(want, at)
			}
			at += len(d.Push(kevlard.Token(b)))
		}
		var got []int
		for i, e := range list {
			got = append(got, e.begin)
			if e.token != kevlard.Token(answer[i]) || e.Chosen != -float32(e.token)/128 {
				t.Fatalf("entry %d is %+v of %q", i, e, answer)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("entries at %v, want %v: answer %q, stops %q, text %q", got, want, answer, stops, text)
		}
	})
}

// TestLogprobsAsked checks what the generator is asked for.
func TestLogprobsAsked(t *testing.T) {
	g := &toy{}
	_, ts := newTestServer(t, g, 0)
	for _, c := range []struct {
		path, body string
		want       bool
		top        int
	}{
		{chatPath, `{` + said("hi") + `}`, false, 0},
		{chatPath, `{` + said("hi") + `,"logprobs":null,"top_logprobs":null}`, false, 0},
		{chatPath, `{` + said("hi") + `,"logprobs":true}`, true, 0},
		{chatPath, `{` + said("hi") + `,"logprobs":true,"top_logprobs":20}`, true, 20},
		{"/v1/completions", `{"model":"toy","prompt":"hi","logprobs":false}`, false, 0},
		{"/v1/completions", `{"model":"toy","prompt":"hi","logprobs":0}`, true, 0},
		{"/v1/completions", `{"model":"toy","prompt":"hi","logprobs":5}`, true, 5},
	} {
		if resp, text := postTo(t, ts, c.path, c.body); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", c.body, resp.StatusCode, text)
			continue
		}
		s := g.requests[len(g.requests)-1].Sampling
		if s.Logprobs != c.want || s.TopLogprobs != c.top {
			t.Errorf("%s: asked for %v and %d", c.body, s.Logprobs, s.TopLogprobs)
		}
	}
}

// TestLogprobsAreNumbers: every value that a stage may send is a number in JSON.
func TestLogprobsAreNumbers(t *testing.T) {
	for _, v := range []float32{0, -1e-45, -3.4028235e38} {
		if b, err := json.Marshal(newTokenLogprob(toyTokenizer{}, 65, v)); err != nil {
			t.Errorf("%v: %s, %v", v, b, err)
		}
	}
}
