// Answers of the official client in one shape, whether chat or completion, streamed or
// not: {id, model, created, choices: [{text, finish, logprobs}], usage, sizes}.
import assert from 'node:assert/strict';

const objects = { chat: ['chat.completion', 'chat.completion.chunk'], completion: ['text_completion', 'text_completion'] };

export const endpoint = (client, row) => (row.endpoint === 'chat' ? client.chat.completions : client.completions);

// ask makes the row's request; progress gets the text so far of the first choice.
export async function ask(client, row, stream, progress = async () => {}, options = {}) {
  const body = { ...row.body };
  if (stream) {
    body.stream = true;
    if (row.usage) body.stream_options = { include_usage: true };
  }
  const got = await endpoint(client, row).create(body, options);
  const answer = { choices: [], sizes: [], usage: null };
  if (!stream) {
    take(answer, row, got, false);
    answer.usage = got.usage;
    return answer;
  }
  const began = new Set();
  for await (const chunk of got) {
    assert.equal(answer.usage, null, 'a chunk comes after the usage');
    take(answer, row, chunk, true, began);
    takeUsage(answer, row, chunk);
    await progress(answer.choices[0]?.text ?? '', got);
  }
  return answer;
}

function take(answer, row, got, stream, began) {
  assert.equal(got.object, objects[row.endpoint][stream ? 1 : 0]);
  for (const field of ['id', 'model', 'created']) {
    assert.ok(got[field], `${field} is missing`);
    answer[field] ??= got[field];
    assert.equal(got[field], answer[field], `${field} differs between chunks`);
  }
  for (const c of got.choices) {
    const choice = (answer.choices[c.index] ??= { text: '', finish: null, logprobs: [] });
    assert.equal(choice.finish, null, 'a choice goes on after its finish_reason');
    if (row.endpoint === 'chat') takeRole(c, stream, began);
    const text = (row.endpoint === 'chat' ? (c.delta ?? c.message).content : c.text) ?? '';
    choice.text += text;
    if (c.index === 0 && text !== '') answer.sizes.push(choice.text.length);
    choice.logprobs.push(...entries(row, c.logprobs));
    if (c.finish_reason !== null) assert.match(c.finish_reason, /^(stop|length)$/);
    choice.finish = c.finish_reason;
  }
}

function takeRole(c, stream, began) {
  if (!stream) {
    assert.equal(c.message.role, 'assistant');
  } else if (!began.has(c.index)) {
    began.add(c.index);
    assert.deepEqual(c.delta, { role: 'assistant', content: '' }, 'the first delta');
  } else {
    assert.ok(!('role' in c.delta), 'the role comes twice');
  }
}

function takeUsage(answer, row, chunk) {
  if (!row.usage) {
    assert.ok(!('usage' in chunk), 'usage was not asked for');
    assert.ok(chunk.choices.length > 0, 'a chunk without choices');
  } else if (chunk.choices.length > 0) {
    assert.equal(chunk.usage, null, 'usage must be null in a chunk with choices');
  } else {
    answer.usage = chunk.usage;
  }
}

function entries(row, logprobs) {
  if (!logprobs) return [];
  if (row.endpoint === 'chat') return logprobs.content;
  return logprobs.tokens.map((token, i) => [token, logprobs.token_logprobs[i], logprobs.top_logprobs[i], logprobs.text_offset[i]]);
}

// check says what every answer to the row must be.
export function check(answer, row, model, stream) {
  assert.equal(answer.model, model);
  assert.equal(answer.choices.length, Math.max(1, row.choices));
  for (const c of answer.choices) {
    assert.equal(c.finish, row.finish);
    assert.equal(c.logprobs.length, row.needs === 'logprobs' ? row.tokens : 0, 'entries of logprobs');
  }
  if (stream && !row.usage) return assert.equal(answer.usage, null);
  const u = answer.usage;
  assert.equal(u.total_tokens, u.prompt_tokens + u.completion_tokens);
  if (row.tokens) assert.equal(u.completion_tokens, row.tokens);
}

// same demands that an answer is the unbroken one, but for its id and for what of its
// prompt was cached.
export function same(got, want) {
  assert.deepEqual(got.choices, want.choices);
  if (got.usage && want.usage) assert.deepEqual(counts(got.usage), counts(want.usage));
  assert.notEqual(got.id, want.id);
}

// counts leaves out of a usage what was cached.
function counts({ prompt_tokens_details: _, ...rest }) {
  return rest;
}
