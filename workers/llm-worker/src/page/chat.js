// The chat page. The conversation is only kept in memory.
const [log, scroll, prompt_, send, stop] = ["log", "scroll", "prompt", "send", "stop"].map(at);
const DEFAULTS = { system: "", temperature: 0.7, top_p: 0.95, max_tokens: "" };
const SUGGESTIONS = {
  chat: ["Explain how a GPU hides memory latency", "Write a haiku about winter mornings", "Write a Rust function that checks for balanced brackets", "Plan a quiet weekend in three sentences"],
  text: ["Once upon a time", "The three laws of thermodynamics are", "def fibonacci(n):"],
};
let options = { ...DEFAULTS, ...stored(localStorage, "chat-settings", {}) };
let turns = []; // { role, content, view }
let running = null; // AbortController of the response that is being generated

function model_changed() {
  const chat = model.chat_template !== false;
  at("model").textContent = model.id;
  document.title = `${model.id} – Chat`;
  at("system-field").hidden = !chat;
  prompt_.placeholder = chat ? "Send a message" : "Enter the start of a text";
  at("empty").querySelector("h2").textContent = chat ? "How can I help?" : "Text completion";
  at("suggestions").replaceChildren(...SUGGESTIONS[chat ? "chat" : "text"].map(suggestion => {
    const button = element("button", { type: "button" }, suggestion);
    button.addEventListener("click", () => { prompt_.value = suggestion; resize_prompt(); submit(); });
    return button;
  }));
}

function ready_words() {
  const ready = model.chat_template !== false ? "Ready" : "Ready for text completion (the model has no chat template)";
  return [ready, model.max_model_len && `context length ${model.max_model_len.toLocaleString("en")} tokens`].filter(Boolean).join(" · ");
}

// ---- the conversation

function update() {
  at("empty").hidden = turns.length > 0;
  at("suggestions").hidden = !usable();
  at("clear").disabled = !turns.length;
  send.hidden = Boolean(running);
  stop.hidden = !running;
  send.disabled = !usable() || !prompt_.value.trim();
  const last = turns.findLastIndex(turn => turn.role === "assistant");
  turns.forEach((turn, i) => turn.view.regenerate?.toggleAttribute("hidden", i !== last || Boolean(running)));
}

const ICONS = {
  copy: "M9 9h10v10H9zM5 15V5h10",
  regenerate: "M20 11a8 8 0 1 0-2.3 6.7M20 5v6h-6",
  edit: "M4 20h4L19 9l-4-4L4 16z",
};
function action(icon, label, act) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS(svg.namespaceURI, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[icon]);
  svg.append(path);
  const button = element("button", { type: "button", className: "quiet" }, svg, element("span", {}, label));
  button.addEventListener("click", () => act(button));
  return button;
}

function add_turn(role, content) {
  const body = element("div", { className: "body" }), figures = element("span", { className: "figures" });
  const foot = element("div", { className: "foot" });
  const turn = { role, content, view: { body, figures, foot } };
  foot.append(action("copy", "Copy", button => clip(turn.content, button)));
  if (role === "user") {
    body.textContent = content;
    foot.append(action("edit", "Edit", () => edit(turn)));
  } else {
    turn.view.regenerate = action("regenerate", "Regenerate", () => regenerate(turn));
    foot.append(turn.view.regenerate, figures);
  }
  const who = element("span", { className: "hidden" }, role === "user" ? "You:" : "Assistant:");
  turn.view.item = element("li", { className: `turn ${role}` }, who, body, foot);
  log.append(turn.view.item);
  turns.push(turn);
  return turn;
}

function remove_turns(from) {
  turns.splice(from).forEach(turn => turn.view.item.remove());
}
function edit(turn) {
  running?.abort();
  remove_turns(turns.indexOf(turn));
  prompt_.value = turn.content;
  resize_prompt();
  prompt_.focus();
  update();
}
function regenerate(turn) {
  remove_turns(turns.indexOf(turn));
  generate();
}

function submit() {
  const text = prompt_.value.trim();
  if (!text || running || !usable()) return;
  add_turn("user", text);
  prompt_.value = "";
  resize_prompt();
  stick_to_bottom = true;
  generate();
}

// Returns path and body of the request: a chat, or a completion of the whole text for models without a chat template.
function request() {
  const body = { model: model.id, stream: true, stream_options: { include_usage: true }, temperature: Number(options.temperature), top_p: Number(options.top_p) };
  if (Number(options.max_tokens) >= 1) body.max_tokens = Math.floor(Number(options.max_tokens));
  if (model.chat_template === false) {
    return ["v1/completions", { ...body, max_tokens: body.max_tokens ?? 256, prompt: turns.slice(0, -1).map(turn => turn.content).join("") }];
  }
  const system = options.system.trim() ? [{ role: "system", content: options.system }] : [];
  // The model's reasoning is not sent back to it.
  const messages = turns.slice(0, -1).map(({ role, content }) => ({ role, content: role === "assistant" ? content.replace(/^\s*<think>[\s\S]*?(<\/think>\s*|$)/, "") : content }));
  return ["v1/chat/completions", { ...body, messages: [...system, ...messages] }];
}

async function generate() {
  const turn = add_turn("assistant", ""), { body, figures, foot } = turn.view;
  running = new AbortController();
  log.setAttribute("aria-busy", "true");
  body.classList.add("caret");
  foot.hidden = true;
  update();
  let drawn = 0, first = 0, usage = null, end = "";
  const draw = () => {
    drawn = 0;
    const was = body.querySelector(".thought");
    body.replaceChildren(...answer(turn.content));
    const thought = body.querySelector(".thought");
    // Keeps the reasoning open or closed as the user left it, and closes it once it is complete.
    if (was && thought && was.firstChild.textContent === thought.firstChild.textContent) thought.open = was.open;
    follow();
  };
  try {
    const [path, body_json] = request();
    const response = await ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body_json), signal: running.signal });
    if (!response.ok) throw await refusal(response);
    let done = false;
    for await (const [name, chunk] of events(response.body)) {
      if (done = name === "done") break;
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const choice = chunk.choices?.[0];
      end = choice?.finish_reason ?? end;
      const text = choice?.delta?.content ?? choice?.text ?? "";
      if (!text) continue;
      first ||= performance.now();
      turn.content += text;
      drawn ||= requestAnimationFrame(draw);
    }
    if (!done) throw new Error("The connection was interrupted.");
    announce("Response complete.");
  } catch (error) {
    if (error.name === "AbortError") end = "stopped";
    else {
      end = "error";
      turn.failed = error.message;
      announce(error.message);
    }
  }
  const seconds = (performance.now() - first) / 1000;
  cancelAnimationFrame(drawn);
  running = null;
  draw();
  body.classList.remove("caret");
  if (turn.failed) body.append(element("div", { className: "error", role: "alert" }, turn.failed));
  else if (!turn.content) body.append(element("p", {}, element("em", {}, end === "stopped" ? "Stopped." : "Empty response.")));
  const notes = { length: "token limit reached", stopped: "stopped" };
  const tokens = usage?.completion_tokens;
  figures.textContent = [tokens && `${tokens} tokens`, tokens > 1 && first && seconds > 0 && `${((tokens - 1) / seconds).toFixed(1)} tokens/s`, notes[end]].filter(Boolean).join(" · ");
  foot.hidden = false;
  log.removeAttribute("aria-busy");
  update();
  follow();
}

// ---- scrolling, keys, settings

let stick_to_bottom = true;
const follow = () => { if (stick_to_bottom) scroll.scrollTop = scroll.scrollHeight; update_scroll_button(); };
const update_scroll_button = () => { at("down").hidden = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80; };
scroll.addEventListener("scroll", () => { stick_to_bottom = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 40; update_scroll_button(); }, { passive: true });
at("down").addEventListener("click", () => { stick_to_bottom = true; follow(); });

function resize_prompt() {
  prompt_.style.height = "auto";
  prompt_.style.height = `${prompt_.scrollHeight}px`;
  update();
}
prompt_.addEventListener("input", resize_prompt);
prompt_.addEventListener("keydown", event => {
  // During input-method composition, Enter confirms the composed text.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
at("form").addEventListener("submit", event => { event.preventDefault(); submit(); });
stop.addEventListener("click", () => { running?.abort(); prompt_.focus(); });
document.addEventListener("keydown", event => { if (event.key === "Escape" && !settings.open) running?.abort(); });
at("clear").addEventListener("click", () => { running?.abort(); remove_turns(0); announce("New chat started."); prompt_.focus(); update(); update_scroll_button(); });

const FIELDS = Object.keys(DEFAULTS);
const show_settings = () => FIELDS.forEach(name => {
  at(name).value = options[name];
  const shown = at(`${name}-value`);
  if (shown) shown.textContent = Number(options[name]).toFixed(2);
});
FIELDS.forEach(name => at(name).addEventListener("input", () => {
  options[name] = at(name).value;
  store(localStorage, "chat-settings", options);
  const shown = at(`${name}-value`);
  if (shown) shown.textContent = Number(options[name]).toFixed(2);
}));
at("reset").addEventListener("click", () => { options = { ...DEFAULTS }; store(localStorage, "chat-settings", options); show_settings(); });
settings.addEventListener("close", () => prompt_.focus());

show_settings();
update();
if (matchMedia("(hover: hover)").matches) prompt_.focus();
watch();
