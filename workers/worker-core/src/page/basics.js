// Shared by the workers' pages: elements, the token, the server's state, streams of events. A page defines met() for a new
// model, ready_words() for its state line, and update() for its controls.
const at = id => document.getElementById(id);
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const stored = (store, key, otherwise) => { try { return JSON.parse(store.getItem(key)) ?? otherwise; } catch { return otherwise; } };
const store = (where, key, value) => { try { where.setItem(key, JSON.stringify(value)); } catch { /* a private window: kept until it is closed */ } };
const say = text => { at("said").textContent = text; };

let token = stored(sessionStorage, "api-token", "");
let model = null; // what the server says of it, once it has one
let nagged = false; // whether the token was asked for, since it last changed
const settings = at("settings");
const ask = (path, init = {}) => fetch(path, { ...init, cache: "no-store", headers: { ...init.headers, ...(token && { Authorization: `Bearer ${token}` }) } });
const usable = () => model && at("lamp").classList.contains("ready");

async function watch() {
  let pause = 15000;
  try {
    const ready = await ask("ready");
    const state = await ready.json().catch(() => ({}));
    if (ready.ok) {
      if (!usable()) await meet();
    } else {
      pause = 1000;
      const { state: phase, progress, what } = state.lifecycle ?? {};
      if (phase === "loading") {
        const share = Math.round(100 * progress);
        show("wait", `Loading: ${what}, ${share} %`, share);
      } else show(phase === "failed" ? "bad" : "wait", state.why ?? "The server is not ready");
    }
  } catch {
    pause = 3000;
    show("bad", "The server does not answer");
  }
  setTimeout(watch, pause);
}

async function meet() {
  const answer = await ask("v1/models");
  if (answer.status === 401) {
    show("wait", "A token is required");
    if (!settings.open && !nagged) open_settings(true);
    nagged = true;
    return;
  }
  const before = model?.id;
  model = (await answer.json()).data[0];
  if (model.id !== before) met();
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
  const told = (await answered.json().catch(() => ({}))).error?.message;
  if (answered.status === 401) {
    open_settings(true);
    return new Error("The server requires a token: see the settings.");
  }
  if (answered.status === 429) return new Error(`The server is busy: try again in ${answered.headers.get("Retry-After") ?? "a few"} seconds.`);
  return new Error(told ?? `The server answered ${answered.status}.`);
}

// Name and JSON of each server-sent event; ["done", null] for [DONE].
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  // A picture is one long line in many pieces: joined once, not each time that a piece comes.
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

function open_settings(asked = false) {
  at("token-why").hidden = !asked;
  at("token").value = token;
  if (!settings.open) settings.showModal();
  if (asked) at("token").focus();
}
at("open-settings").addEventListener("click", () => open_settings());
settings.addEventListener("click", event => { if (event.target === settings) settings.close(); });
settings.addEventListener("close", () => {
  const given = at("token").value.trim();
  if (given === token) return;
  token = given;
  nagged = false;
  store(sessionStorage, "api-token", token);
  meet().catch(() => show("bad", "The server does not answer"));
});

