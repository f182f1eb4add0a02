// Generates answers. Each conversation may have one answer in progress, also while another conversation is shown.
const runs = new Map(); // { conversation, index, controller } by the id of the conversation
const SAVE_INTERVAL = 1000; // milliseconds

// Returns the path and the body of a request: a chat, or a completion of the whole text for models without a chat template.
function request(turns) {
  const body = { model: model.id, stream: true, stream_options: { include_usage: true }, temperature: Number(options.temperature), top_p: Number(options.top_p) };
  if (Number(options.max_tokens) >= 1) body.max_tokens = Math.floor(Number(options.max_tokens));
  if (model.chat_template === false) {
    return ["v1/completions", { ...body, max_tokens: body.max_tokens ?? 256, prompt: turns.map(turn => message_of(turn).content).join("") }];
  }
  const system = options.system.trim() ? [{ role: "system", content: options.system }] : [];
  return ["v1/chat/completions", { ...body, messages: [...system, ...turns.map(message_of)] }];
}

// Returns the tokens per second between the first and the last token, or undefined if they are too few or too close to measure.
const speed_of = (tokens, milliseconds) => tokens >= 5 && milliseconds >= 50 ? Math.round(10000 * (tokens - 1) / milliseconds) / 10 : undefined;

// Returns the index of the answer that follows `parent`: a new branch, or an answer without text, which is generated again.
function answer_turn(conversation, parent) {
  const last = children(conversation, parent).at(-1), turn = conversation.turns[last];
  if (!turn || turn.role !== "assistant" || turn.content || turn.reasoning) return add_turn(conversation, parent, { role: "assistant", content: "", model: model.id });
  conversation.turns[last] = { parent, role: "assistant", content: "", model: model.id };
  choose(conversation, last);
  if (conversation === current) forget_view(last);
  return last;
}

async function generate(conversation, parent) {
  if (runs.has(conversation.id) || !usable()) return;
  const index = answer_turn(conversation, parent), turn = conversation.turns[index], controller = new AbortController();
  runs.set(conversation.id, { conversation, index, controller });
  stick_to_bottom = true;
  show_path();
  follow();
  await save(conversation);
  refresh_list();

  let timer = 0, cost = 0, saved = performance.now(), first = 0, last = 0, usage = null;
  const draw = () => {
    timer = 0;
    const view = conversation === current && views.get(index);
    if (!view) return;
    const begin = performance.now();
    draw_turn(view);
    cost = performance.now() - begin;
    follow();
  };
  try {
    const [address, body] = request(ancestors(conversation, parent));
    const response = await ask(address, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: controller.signal });
    if (!response.ok) throw await refusal(response);
    let done = false;
    for await (const [name, chunk] of events(response.body)) {
      if (done = name === "done") break;
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const choice = chunk.choices?.[0], delta = choice?.delta ?? {};
      turn.end = choice?.finish_reason ?? turn.end;
      const reasoning = delta.reasoning_content ?? delta.reasoning ?? "", text = delta.content ?? choice?.text ?? "";
      if (!reasoning && !text) continue;
      last = performance.now();
      first ||= last;
      if (reasoning) turn.reasoning = (turn.reasoning ?? "") + reasoning;
      turn.content += text;
      // Long answers take longer to draw, and are drawn less often.
      timer ||= setTimeout(draw, Math.max(16, 6 * cost));
      if (last - saved > SAVE_INTERVAL) {
        saved = last;
        save(conversation);
      }
    }
    if (!done) throw new Error("The response ended before it was complete.");
    turn.end ??= "stop";
    turn.tokens = usage?.completion_tokens;
    turn.speed = speed_of(turn.tokens, last - first);
  } catch (error) {
    turn.end = error.name === "AbortError" ? "stopped" : "error";
    if (turn.end === "error") {
      turn.error = error.message;
      announce(error.message);
    }
  }
  clearTimeout(timer);
  runs.delete(conversation.id);
  conversation.updated = Date.now();
  draw();
  update();
  await save(conversation);
  refresh_list();
}

// A page that is being closed can no longer write to IndexedDB, but to the storage of its tab.
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden") runs.forEach(({ conversation }) => save(conversation));
});
addEventListener("pagehide", () => {
  const unfinished = [...runs.values()].map(({ conversation: { id, turns }, index }) => ({ id, index, content: turns[index].content, reasoning: turns[index].reasoning }));
  store(sessionStorage, "chat-unfinished", unfinished);
});

// Stores what was written of answers after the last save before the page was closed.
async function keep_unfinished() {
  for (const { id, index, content, reasoning } of stored(sessionStorage, "chat-unfinished", [])) {
    const conversation = await storage.read(id), turn = conversation?.turns[index];
    if (!turn || turn.end) continue;
    Object.assign(turn, { content }, reasoning && { reasoning });
    await storage.write(conversation);
  }
  store(sessionStorage, "chat-unfinished", []);
}
