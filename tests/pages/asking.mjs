// Requests to a service that a test has started, beside those of its page.
import { Agent, request } from "node:http";
import { join } from "node:path";

function answer(options, text, agent) {
  return new Promise((done, fail) => {
    const asked = request({ ...options, agent, headers: { ...options.headers, "Content-Length": Buffer.byteLength(text) } }, reply => {
      let all = "";
      reply.setEncoding("utf8").on("data", part => { all += part; });
      reply.on("end", () => done({ status: reply.statusCode, text: all }));
    });
    asked.on("error", fail);
    asked.end(text);
  });
}

/** Over the unix socket of the service in this folder: ask() gives what it answered, or throws that; end() closes. */
export function asking(folder) {
  const agent = new Agent({ keepAlive: true, maxSockets: 8 });
  return { end: () => agent.destroy(), ask: async (method, path, body = undefined) => {
    const { status, text } = await answer({ socketPath: join(folder, "api.sock"), method, path },
      body === undefined ? "" : JSON.stringify(body), agent);
    if (status >= 300) throw new Error(`${method} ${path}: ${text}`);
    return JSON.parse(text);
  } };
}

/** What who has this token is answered over the port of this machine, with its status. */
export async function askByToken(port, token, path) {
  const { status, text } = await answer({ host: "127.0.0.1", port, path, headers: { Authorization: `Bearer ${token}` } }, "");
  return { status, ...JSON.parse(text) };
}
