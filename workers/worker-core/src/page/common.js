// Shared by the pages of all workers: DOM access, API token, server state, event streams. Each page defines model_changed(), called
// for a new model, ready_words(), which returns the status line, and update(), which updates its controls.
const at = id => document.getElementById(id);
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const stored = (storage, key, fallback) => { try { return JSON.parse(storage.getItem(key)) ?? fallback; } catch { return fallback; } };
const store = (storage, key, value) => { try { storage.setItem(key, JSON.stringify(value)); } catch { /* storage may be unavailable in private windows */ } };
const announce = text => { at("announcement").textContent = text; };

let token = stored(sessionStorage, "api-token", "");
let models = []; // the entries of GET /v1/models, once the worker is ready
let model = null; // one of them
let token_requested = false; // true if the settings were opened for the current token
const settings = at("settings");
const ask = (path, init = {}) => fetch(path, { ...init, cache: "no-store", headers: { ...init.headers, ...(token && { Authorization: `Bearer ${token}` }) } });
const usable = () => model && at("lamp").classList.contains("ready");

async function watch() {
  let delay = 15000;
  try {
    const ready = await ask("ready");
    const state = await ready.json().catch(() => ({}));
    if (ready.ok) {
      if (!usable()) await load_model();
    } else {
      delay = 1000;
      const { state: phase, progress, what } = state.lifecycle ?? {};
      if (phase === "loading") {
        const share = Math.round(100 * progress);
        show("wait", `Loading: ${what}, ${share} %`, share);
      } else show(phase === "failed" ? "bad" : "wait", state.why ?? "The server is not ready");
    }
  } catch {
    delay = 3000;
    show("bad", "The server does not respond");
  }
  setTimeout(watch, delay);
}

async function load_model() {
  const answer = await ask("v1/models");
  if (answer.status === 401) {
    show("wait", "A token is required");
    if (!settings.open && !token_requested) open_settings(true);
    token_requested = true;
    return;
  }
  models = (await answer.json()).data;
  choose_model(stored(localStorage, "model", ""));
}

// Selects the model named `id`, or a loaded one, or the first.
function choose_model(id) {
  const before = model?.id;
  model = models.find(model => model.id === id) ?? models.find(model => model.status?.value === "loaded") ?? models[0];
  if (model.id !== before) model_changed();
  show("ready", ready_words());
}

function show(lamp, words, share = null) {
  at("lamp").className = `lamp ${lamp}`;
  if (at("state").textContent !== words) at("state").textContent = words;
  const bar = at("loading");
  bar.hidden = share === null;
  if (share !== null) {
    bar.setAttribute("aria-valuenow", share);
    bar.firstElementChild.style.width = `${share}%`;
  }
  update();
}

async function refusal(answered) {
  const message = (await answered.json().catch(() => ({}))).error?.message;
  if (answered.status === 401) {
    open_settings(true);
    return new Error("The server requires a token. Enter it in the settings.");
  }
  if (answered.status === 429) return new Error(`The server is busy. Try again in ${answered.headers.get("Retry-After") ?? "a few"} seconds.`);
  return new Error(message ?? `The server returned status ${answered.status}.`);
}

// Yields the name and JSON of each server-sent event; ["done", null] for [DONE].
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  // An image is one long line in many chunks. Joining them once per line avoids quadratic time.
  let pieces = [], name = "message", data = "";
  const line = text => {
    if (text.startsWith("event:")) name = text.slice(6).trim();
    else if (text.startsWith("data:")) data += text.slice(5);
    else if (text === "" && data) {
      const event = data.trim() === "[DONE]" ? ["done", null] : [name, JSON.parse(data)];
      [name, data] = ["message", ""];
      return event;
    }
    return null;
  };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const [end, ...rest] = value.split("\n");
    pieces.push(end);
    for (const begin of rest) {
      const event = line(pieces.join(""));
      pieces = [begin];
      if (event) yield event;
    }
  }
}

function open_settings(token_required = false) {
  at("token-why").hidden = !token_required;
  at("token").value = token;
  if (!settings.open) settings.showModal();
  if (token_required) at("token").focus();
}
at("open-settings").addEventListener("click", () => open_settings());
settings.addEventListener("click", event => { if (event.target === settings) settings.close(); });
settings.addEventListener("close", () => {
  const value = at("token").value.trim();
  if (value === token) return;
  token = value;
  token_requested = false;
  store(sessionStorage, "api-token", token);
  load_model().catch(() => show("bad", "The server does not respond"));
});

