// The official client for Node against a mesh whose hosts are killed. The Go side starts
// this and names the tests to run; see node_test.go.
import assert from 'node:assert/strict';
import { test as define } from 'node:test';
import OpenAI from 'openai';
import { ask, check, endpoint, same } from './answer.mjs';
import * as mesh from './mesh.mjs';

const { suite } = mesh;
// No retries, so that no fault hides behind a second request.
const settings = { baseURL: process.env.SDK_BASE_URL, apiKey: 'none', maxRetries: 0, timeout: 60_000 };
const client = new OpenAI(settings);

const test = (name, run) => {
  if (name.startsWith(process.env.SDK_TEST)) define(name, run);
};

const ready = (row, more = {}) => ({ ...row, body: { model: suite.model, ...row.body, ...more } });

// stops makes the stop strings out of the answer without them, and what it then is.
function stops(row, whole) {
  const text = Array.from(whole);
  const slice = ([from, to]) => text.slice(from, to).join('');
  const out = row.stop_at ? [slice(row.stop_at)] : [];
  const want = row.stop_at ? whole.slice(0, whole.indexOf(out[0])) : whole;
  for (const decoy of row.decoys ?? []) out.push(slice(decoy) + '\u2603');
  return { stop: out.length === 1 ? out[0] : out, want };
}

async function failure(promise, kind) {
  try {
    await promise;
  } catch (e) {
    assert.ok(e instanceof kind, `${e?.constructor?.name}: ${e}`);
    return e;
  }
  assert.fail('it did not fail');
}

// A kill that comes too late has shown nothing and is tried again, a little earlier.
const moments = {
  'kill at token 1': () => 1,
  'kill half way': (n) => Math.floor(n / 2),
  'kill as the last chunk is due': (n, attempt) => Math.max(1, n - 1 - attempt),
};

async function killed(row, want, stream, of) {
  for (let attempt = 0; attempt < suite.tries; attempt++) {
    const size = want.sizes[of(want.sizes.length, attempt) - 1];
    const prompt = want.usage.prompt_tokens / Math.max(1, row.prompts);
    await mesh.arm(stream ? 0 : prompt + of(want.usage.completion_tokens / want.choices.length, attempt));
    let shot;
    let got, error;
    try {
      got = await ask(client, row, stream, async (text) => {
        if (stream && text.length >= size) await (shot ??= mesh.kill());
      });
    } catch (e) {
      error = e;
    }
    const { hit } = await mesh.settle();
    if (error) throw error;
    check(got, row, suite.model, stream);
    same({ ...got, sizes: null }, { ...want, sizes: null });
    if (hit) return;
  }
  assert.fail(`the host was killed too late ${suite.tries} times: nothing was shown`);
}

for (const given of suite.rows) {
  test(`row: ${given.name}`, async (t) => {
    let row = ready(given);
    let text;
    if (row.stop_at || row.decoys) {
      const made = stops(row, (await ask(client, row, false)).choices[0].text);
      row = ready(row, { stop: made.stop });
      text = made.want;
    }
    const want = await ask(client, row, false);
    check(want, row, suite.model, false);
    if (text !== undefined) assert.equal(want.choices[0].text, text);
    const streamed = await ask(client, row, true);
    check(streamed, row, suite.model, true);
    same(streamed, want);
    if (row.endpoint === 'chat') {
      // The client's own accumulator.
      const whole = await client.chat.completions.stream(row.body).finalChatCompletion();
      assert.deepEqual(whole.choices.map((c) => [c.message.content, c.message.role, c.finish_reason]), want.choices.map((c) => [c.text, 'assistant', c.finish]));
    }
    for (const [name, of] of Object.entries(moments)) {
      await t.test(name, () => killed(row, { ...want, sizes: streamed.sizes }, false, of));
      await t.test(`${name}, streamed`, () => killed(row, { ...want, sizes: streamed.sizes }, true, of));
    }
  });
}

for (const r of suite.refused) {
  test(`refused: ${r.name}`, async () => {
    for (const stream of [false, true]) {
      const e = await failure(ask(client, ready(r), stream), OpenAI.APIError);
      assert.equal(e.status, r.status);
      assert.equal(e.param, r.param);
      assert.equal(e.type, 'invalid_request_error');
      assert.ok(e.error.message);
      if (r.code) assert.equal(e.code, r.code);
    }
  });
}

test('one: models', async () => {
  const list = [];
  for await (const m of client.models.list()) list.push(m);
  assert.equal(list.length, 1);
  assert.equal(list[0].id, suite.model);
  assert.equal(list[0].object, 'model');
  assert.ok(list[0].created > 0 && list[0].owned_by);
  assert.equal((await client.models.retrieve(suite.model)).id, suite.model);
  const e = await failure(client.models.retrieve('no-such-model'), OpenAI.NotFoundError);
  assert.equal(e.code, 'model_not_found');
});

test('one: a session that runs is busy, and a retry waits for it', async () => {
  const headers = { 'X-Kevlard-Session': 'node-the-same' };
  const want = await ask(client, suite.short, true);
  const long = await endpoint(client, suite.long).create({ ...suite.long.body, stream: true }, { headers });
  const read = (async () => {
    for await (const chunk of long) void chunk;
  })();
  const e = await failure(ask(client, suite.short, true, undefined, { headers }), OpenAI.ConflictError);
  assert.equal(e.code, 'session_busy');
  const statuses = [];
  const patient = new OpenAI({
    ...settings,
    maxRetries: 2,
    fetch: async (...args) => {
      const answer = await fetch(...args);
      statuses.push(answer.status);
      if (answer.status === 409) long.controller.abort();
      return answer;
    },
  });
  same(await ask(patient, suite.short, true, undefined, { headers }), want);
  assert.equal(statuses[0], 409);
  await read;
});

test('one: cancelled while it streams', async () => {
  const stop = new Error('enough');
  const run = ask(client, suite.long, true, async (text, stream) => {
    if (text.length > 20) {
      stream.controller.abort();
      throw stop;
    }
  });
  await assert.rejects(run, stop);
  await mesh.idle();
});

test('one: cancelled while it collects', async () => {
  const controller = new AbortController();
  const run = failure(ask(client, suite.long, false, undefined, { signal: controller.signal }), OpenAI.APIUserAbortError);
  const deadline = Date.now() + 30_000;
  while ((await mesh.tokens()) < 50) assert.ok(Date.now() < deadline, 'no session has got so far');
  controller.abort();
  await run;
  await mesh.idle();
});

test('a silence that ends', async () => {
  const want = await ask(client, suite.story, true);
  let joined;
  const got = await ask(client, suite.story, true, async (text) => {
    if (text) joined ??= mesh.join();
  });
  await joined;
  check(got, suite.story, suite.model, true);
  same(got, want);
});

test('an outage that lasts', async () => {
  let joined;
  const e = await failure(
    ask(client, suite.story, true, async (text) => {
      if (text) joined ??= mesh.join();
    }),
    OpenAI.APIError,
  );
  await joined;
  assert.equal(e.code, 'no_route');
  assert.equal(e.type, 'server_error');
  assert.ok(e.error.message);
  const refused = await failure(ask(client, suite.short, true), OpenAI.InternalServerError);
  assert.equal(refused.status, 503);
  assert.ok(refused.headers.get('retry-after'));
});
