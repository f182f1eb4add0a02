// Tests Vercel's AI SDK with its providers of chats and of responses, and prints the number of successful checks.
//
//     node vercel_ai.mjs http://127.0.0.1:8081
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

import { MESSAGES, check, greedy_chat, model_name, raised, report, without_space } from "./checks.mjs";

const base = process.argv[2];
const name = await model_name(base);
const { text, usage } = await greedy_chat(base);
const bias = await without_space(base);

// Sends a request with the fields that keep the tiny model from repeating white space in JSON.
async function fetch_compact(url, init) {
  return fetch(url, { ...init, body: JSON.stringify({ ...JSON.parse(init.body), ...bias }) });
}

// Returns the models of both providers by name.
function models(model, options) {
  const place = { baseURL: `${base}/v1`, apiKey: "unused", ...options };
  const compatible = createOpenAICompatible({ ...place, name: "worker", includeUsage: true, supportsStructuredOutputs: true });
  return { compatible: compatible(model), responses: createOpenAI(place).responses(model) };
}

const person = z.object({ mood: z.enum(["glad", "sad"]), age: z.number().int().min(0).max(99) });
const plain = { prompt: "Anna lives", maxOutputTokens: 16, temperature: 0, maxRetries: 0 };
// Without this option, the provider of responses refers to stored items instead of sending them.
const unstored = { providerOptions: { openai: { store: false } } };
const compact = models(name, { fetch: fetch_compact });
const unknown = models("none", {});
for (const [kind, model] of Object.entries(models(name, {}))) {
  const one = await generateText({ ...plain, model });
  check(`${kind}: text`, one.text === text, one.text);
  check(`${kind}: finish reason`, one.finishReason === "length", one.finishReason);
  check(`${kind}: usage`, one.usage.outputTokens === usage.completion_tokens, one.usage);
  check(`${kind}: input tokens`, one.usage.inputTokens === usage.prompt_tokens, one.usage);
  const stream = streamText({ ...plain, model });
  const pieces = [];
  for await (const piece of stream.textStream) pieces.push(piece);
  check(`${kind}: stream`, pieces.length > 2 && pieces.join("") === text, pieces);
  check(`${kind}: streamed usage`, (await stream.usage).totalTokens === usage.total_tokens, await stream.usage);
  const listed = await generateText({ ...plain, prompt: MESSAGES, model });
  check(`${kind}: messages`, listed.text === text, listed.text);

  const held = { ...plain, ...unstored, maxOutputTokens: 80, model: compact[kind] };
  const { object } = await generateObject({ ...held, schema: person });
  check(`${kind}: object`, person.safeParse(object).success, object);
  let partial;
  for await (partial of streamObject({ ...held, schema: person }).partialObjectStream);
  check(`${kind}: streamed object`, JSON.stringify(partial) === JSON.stringify(object), partial);
  const { output } = await generateText({ ...held, output: Output.object({ schema: person }) });
  check(`${kind}: output`, JSON.stringify(output) === JSON.stringify(object), output);

  const saved = [];
  const save = tool({ description: "Saves a person.", inputSchema: person, execute: async (input) => saved.push(input) && "saved" });
  const tools = { save };
  const called = await generateText({ ...held, tools, toolChoice: "required" });
  check(`${kind}: call`, called.finishReason === "tool-calls" && called.toolCalls[0].toolName === "save", called.steps);
  check(`${kind}: input`, person.safeParse(saved[0]).success, saved);
  const calls = [];
  for await (const part of streamText({ ...held, tools, toolChoice: { type: "tool", toolName: "save" } }).fullStream) {
    check(`${kind}: part`, part.type !== "error", part);
    if (part.type === "tool-call") calls.push(part);
  }
  check(`${kind}: streamed call`, JSON.stringify(calls[0].input) === JSON.stringify(saved[0]), calls);
  const choose = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
  const steps = await generateText({ ...held, tools, prepareStep: choose, stopWhen: stepCountIs(2) });
  check(`${kind}: steps`, steps.steps.length === 2 && steps.steps[0].toolResults[0].output === "saved", steps.steps);
  check(`${kind}: after the call`, steps.text && steps.toolCalls.length === 0, steps.text);

  let error = await raised(`${kind}: temperature`, APICallError, () => generateText({ ...plain, model, temperature: 9 }));
  check(`${kind}: status`, error.statusCode === 400 && error.message.includes("temperature"), error);
  error = await raised(`${kind}: unknown model`, APICallError, () => generateText({ ...plain, model: unknown[kind] }));
  check(`${kind}: status`, error.statusCode === 404 && !error.isRetryable, error);
}

const place = { baseURL: `${base}/v1`, apiKey: "unused", name: "worker" };
const { embeddings } = await embedMany({ model: createOpenAICompatible(place).embeddingModel(name), values: ["Anna lives", "the king"], maxRetries: 0 });
check("embeddings", embeddings.length === 2 && Math.abs(embeddings[0].reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3, embeddings);
report("vercel_ai");
