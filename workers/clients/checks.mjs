// Checks for client tests in JavaScript, as checks.py: counts successful checks and exits at the first failure.
import { exit } from "node:process";

let count = 0;
// Timeout of requests in milliseconds; long, because the worker may run on a software GPU on a busy machine.
export const TIMEOUT = 1_800_000;
// Conversation that the tests of different libraries continue.
export const MESSAGES = [{ role: "user", content: "Anna lives" }];

// Replaces the object that sends the requests of Node's `fetch`, whose own timeout is 5 minutes. Its first request creates it.
const DISPATCHER = Symbol.for("undici.globalDispatcher.1");
await fetch("data:,");
globalThis[DISPATCHER] = new globalThis[DISPATCHER].constructor({ headersTimeout: TIMEOUT, bodyTimeout: TIMEOUT });

function fail(what, seen) {
  console.error(`${what}: ${JSON.stringify(seen, null, 1)}`);
  exit(1);
}

// Counts a successful check, or exits with a message.
export function check(what, condition, seen) {
  if (!condition) fail(what, seen);
  count += 1;
}

// Returns the error of type `kind` that a request throws, or exits with a message.
export async function raised(what, kind, work) {
  try {
    fail(`${what}: expected an error`, await work());
  } catch (error) {
    const is_expected = kind.isInstance ? kind.isInstance(error) : error instanceof kind;
    return is_expected ? error : fail(`${what}: wrong error`, `${error?.stack}`);
  }
}

// Returns the worker's answer to a GET request, or to a POST request with `body`, without a client library.
export async function request(base, path, body) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(base + path, body && { method: "POST", headers, body: JSON.stringify(body) });
  return answer.json();
}

// Returns the name of the served model.
export async function model_name(base) {
  return (await request(base, "/v1/models")).data[0].id;
}

// Returns the text and the usage of a chat at temperature 0, with which the answers of libraries are compared.
export async function greedy_chat(base) {
  const answer = await request(base, "/v1/chat/completions", { messages: MESSAGES, max_tokens: 16, temperature: 0 });
  return { text: answer.choices[0].message.content, usage: answer.usage };
}

// Returns fields of a request without white space, which the tiny model repeats until the limit in JSON.
export async function without_space(base) {
  const { tokens } = await request(base, "/tokenize", { content: " " });
  check("space", tokens.length === 1, tokens);
  return { logit_bias: { [tokens[0]]: -100 } };
}

// Prints the number of successful checks, as the last line of output.
export function report(name) {
  console.log(`${name}=${count}`);
}
