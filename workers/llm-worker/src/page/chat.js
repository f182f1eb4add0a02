// Settings, keyboard and start of the chat page.
const DEFAULTS = { system: "", temperature: 0.7, top_p: 0.95, max_tokens: "" };
const SUGGESTIONS = {
  chat: ["Explain how a GPU hides memory latency", "Write a haiku about winter mornings", "Write a Rust function that checks for balanced brackets", "Plan a quiet weekend in three sentences"],
  text: ["Once upon a time", "The three laws of thermodynamics are", "def fibonacci(n):"],
};
let options = { ...DEFAULTS, ...stored(localStorage, "chat-settings", {}) };

function model_changed() {
  const chat = model.chat_template !== false;
  at("model-field").hidden = models.length < 2;
  at("model-choice").replaceChildren(...models.map(({ id }) => element("option", { value: id, selected: id === model.id }, id)));
  at("model").textContent = model.id;
  document.title = `${model.id} – Chat`;
  at("system-field").hidden = !chat;
  prompt_.placeholder = chat ? "Send a message" : "Enter the start of a text";
  at("empty").querySelector("h2").textContent = chat ? "How can I help?" : "Text completion";
  at("suggestions").replaceChildren(...SUGGESTIONS[chat ? "chat" : "text"].map(suggestion => {
    const button = element("button", { type: "button" }, suggestion);
    button.addEventListener("click", () => {
      set_prompt(suggestion);
      submit();
    });
    return button;
  }));
}

function ready_words() {
  const ready = model.chat_template !== false ? "Ready" : "Ready for text completion (the model has no chat template)";
  return [ready, model.max_model_len && `context length ${model.max_model_len.toLocaleString("en")} tokens`].filter(Boolean).join(" · ");
}

function update() {
  const busy = runs.has(current.id);
  at("empty").hidden = current.turns.length > 0;
  at("suggestions").hidden = !usable();
  at("new-chat").disabled = !current.turns.length;
  send.hidden = busy;
  stop.hidden = !busy;
  send.disabled = !usable() || !(prompt_.value.trim() || attached.length);
  log.classList.toggle("busy", busy);
  log.ariaBusy = String(busy);
}

// ---- settings

const FIELDS = Object.keys(DEFAULTS);
function show_settings() {
  for (const name of FIELDS) {
    if (at(name).value !== String(options[name])) at(name).value = options[name];
    const shown = at(`${name}-value`);
    if (shown) shown.textContent = Number(options[name]).toFixed(2);
  }
}
FIELDS.forEach(name => at(name).addEventListener("input", () => {
  options[name] = at(name).value;
  store(localStorage, "chat-settings", options);
  show_settings();
}));
at("reset").addEventListener("click", () => {
  options = { ...DEFAULTS };
  store(localStorage, "chat-settings", options);
  show_settings();
});
settings.addEventListener("close", () => prompt_.focus());

at("model-choice").addEventListener("change", () => {
  store(localStorage, "model", at("model-choice").value);
  choose_model(at("model-choice").value);
});

function show_theme() {
  const theme = stored(localStorage, "theme", "system");
  at("theme").value = theme;
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
at("theme").addEventListener("change", () => {
  store(localStorage, "theme", at("theme").value);
  show_theme();
});

// ---- keyboard

const shortcuts = at("shortcuts");
at("open-shortcuts").addEventListener("click", () => shortcuts.showModal());
shortcuts.addEventListener("click", event => { if (event.target === shortcuts) shortcuts.close(); });
document.addEventListener("keydown", event => {
  if (document.querySelector("dialog[open]")) return;
  const control = event.ctrlKey || event.metaKey, typing = event.target.matches?.("input, textarea, select");
  const act = event.key === "Escape" ? () => narrow.matches && !at("history").hidden ? toggle_list() : runs.get(current.id)?.controller.abort()
    : control && !event.shiftKey && !event.altKey ? { k: focus_search, b: toggle_list, "/": () => shortcuts.showModal() }[event.key.toLowerCase()]
    : control && event.shiftKey && event.key.toLowerCase() === "o" ? new_chat
    : event.key === "?" && !typing ? () => shortcuts.showModal() : null;
  if (!act) return;
  event.preventDefault();
  act();
});

// ---- start

async function start() {
  show_settings();
  show_theme();
  show_list(!narrow.matches && stored(localStorage, "chat-list", true));
  const open = stored(sessionStorage, "open-chat", ""), draft = stored(sessionStorage, "chat-draft", "");
  try {
    await keep_unfinished();
    const conversation = open && await storage.read(open);
    if (conversation) show_conversation(conversation);
  } catch (error) {
    notify(`The conversations could not be read: ${error?.message ?? error}`);
  }
  set_prompt(draft);
  follow();
  if (matchMedia("(hover: hover)").matches) prompt_.focus();
  refresh_list();
  if (!await storage.persistent()) notify("This browser stores no data for this page. Conversations are lost when the tab closes.");
}
start();
watch();
