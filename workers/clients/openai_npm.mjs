// Tests OpenAI's client for JavaScript, and prints the number of successful checks.
//
//     node openai_npm.mjs http://127.0.0.1:8081
import OpenAI, { BadRequestError, NotFoundError } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { MESSAGES, TIMEOUT, check, greedy_chat, model_name, raised, report, without_space } from "./checks.mjs";

const base = process.argv[2];
const model = await model_name(base);
const { text, usage } = await greedy_chat(base);
const compact = await without_space(base);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "unused", maxRetries: 0, timeout: TIMEOUT });

const models = [];
for await (const listed of client.models.list()) models.push(listed.id);
check("models", models.length === 1 && models[0] === model, models);

const plain = { model, messages: MESSAGES, max_completion_tokens: 16, temperature: 0 };
const one = await client.chat.completions.create(plain);
check("text", one.choices[0].message.content === text, one);
check("usage", JSON.stringify(one.usage) === JSON.stringify(usage), one.usage);
let joined = "";
let counted;
const stream = await client.chat.completions.create({ ...plain, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  joined += chunk.choices[0]?.delta.content ?? "";
  counted = chunk.usage;
}
check("stream", joined === text, joined);
check("streamed usage", counted.total_tokens === usage.total_tokens, counted);
const final = await client.chat.completions.stream(plain).finalChatCompletion();
check("stream helper", final.choices[0].message.content === text, final);
const word = text.split(" ").filter(Boolean)[2];
const stopped = await client.chat.completions.create({ ...plain, stop: word });
check("stop", stopped.choices[0].message.content === text.slice(0, text.indexOf(word)), stopped);
const logged = (await client.chat.completions.create({ ...plain, logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content;
check("logprobs", logged.map(({ token }) => token).join("") === text, logged);
check("alternatives", logged.every((token) => token.top_logprobs.length === 2 && token.logprob <= 0), logged);
const choice = { structured_outputs: { choice: ["red", "green"] } };
const chosen = await client.chat.completions.create({ model, messages: MESSAGES, temperature: 0, ...choice });
check("choice", ["red", "green"].includes(chosen.choices[0].message.content), chosen);

const person = z.object({ mood: z.enum(["glad", "sad"]), age: z.number().int().min(0).max(99) });
const held = { ...plain, max_completion_tokens: 80, ...compact };
const parsed = await client.chat.completions.parse({ ...held, response_format: zodResponseFormat(person, "person") });
check("schema", person.safeParse(parsed.choices[0].message.parsed).success, parsed);
const save = { name: "save", description: "Saves a person.", parameters: z.toJSONSchema(person), strict: true };
const forced = { ...held, tools: [{ type: "function", function: save }], tool_choice: "required" };
const called = (await client.chat.completions.create(forced)).choices[0];
const call = called.message.tool_calls[0];
check("call", called.finish_reason === "tool_calls" && call.function.name === "save", called);
check("arguments", person.safeParse(JSON.parse(call.function.arguments)).success, call);
const streamed = (await client.chat.completions.stream(forced).finalChatCompletion()).choices[0].message.tool_calls[0];
check("streamed call", streamed.function.arguments === call.function.arguments, streamed);
const turns = [...MESSAGES, called.message, { role: "tool", tool_call_id: call.id, content: "saved" }];
const follow = await client.chat.completions.create({ ...plain, messages: turns, tools: forced.tools, tool_choice: "none" });
check("after the call", follow.choices[0].message.content, follow);

const asked = { model, input: "Anna lives", max_output_tokens: 16, temperature: 0 };
const response = await client.responses.create(asked);
check("responses", response.output_text === text, response);
const deltas = [];
for await (const event of await client.responses.create({ ...asked, stream: true })) {
  if (event.type === "response.output_text.delta") deltas.push(event.delta);
}
check("streamed responses", deltas.join("") === text, deltas);
const formatted = { ...asked, max_output_tokens: 80, ...compact, text: { format: zodTextFormat(person, "person") } };
const last = await client.responses.stream(formatted).finalResponse();
check("stream helper of responses", person.safeParse(last.output_parsed).success && last.usage.output_tokens > 0, last);
const completed = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 16, temperature: 0 });
check("completion", completed.choices[0].text && completed.usage.completion_tokens <= 16, completed);
// The client asks for base64 if no format is given.
const { data: vectors } = await client.embeddings.create({ model, input: ["Anna lives", "the king"] });
const { data: floats } = await client.embeddings.create({ model, input: "Anna lives", encoding_format: "float" });
check("embeddings", vectors.length === 2 && vectors[0].embedding.length === floats[0].embedding.length, vectors);
check("base64", floats[0].embedding.every((x, i) => Math.abs(x - vectors[0].embedding[i]) < 1e-4), vectors[0]);

for (const [kind, param, changed] of [
  [NotFoundError, "model", { model: "none" }],
  [BadRequestError, "temperature", { temperature: 9 }],
  [BadRequestError, "messages", { messages: [{ role: "user", content: "story ".repeat(20000) }] }],
]) {
  const error = await raised(param, kind, () => client.chat.completions.create({ ...plain, ...changed }));
  check(`${param}: param`, error.param === param, error);
}
const abandoned = await client.chat.completions.create({ ...plain, max_completion_tokens: 200, stream: true });
for await (const chunk of abandoned) {
  check("abandoned stream", chunk.choices, chunk);
  break;
}
report("openai_npm");
