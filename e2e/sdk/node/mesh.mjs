// The mesh, as the Go side of the tests offers it: what to test, and when to kill.
const url = process.env.SDK_MESH_URL;

async function ask(path, body = {}) {
  const answer = await fetch(url + path, { method: 'POST', body: JSON.stringify(body) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${path}: ${text}`);
  return JSON.parse(text);
}

export const suite = await ask('/suite');

// arm prepares to kill the host of a stage of the next request: at a count of tokens,
// the prompt's included, or, with 0, at kill().
export const arm = (at) => ask('/arm', { at });
export const kill = () => ask('/kill');
// settle starts the victim again and tells whether the request was hit.
export const settle = () => ask('/settle');
// idle returns when no node has a session.
export const idle = () => ask('/idle');
// tokens returns how many the running session knows.
export const tokens = async () => (await ask('/tokens')).tokens;
// join says that our stream is ready for the outage.
export const join = () => ask('/join');
