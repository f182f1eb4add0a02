// The conversation on the page: its turns with their buttons, branches, and editing in place.
const [log, scroll] = ["log", "scroll"].map(at);
const NOTES = { length: "token limit reached", stopped: "stopped", interrupted: "interrupted" };
let current = new_conversation();
const views = new Map(); // elements of the turns that are shown, by index and in order
const removed = new Set(); // ids of deleted conversations, which are not stored again

async function save(conversation) {
  if (removed.has(conversation.id)) return;
  try {
    await storage.write(conversation);
  } catch (error) {
    notify(`The conversation could not be stored: ${error?.message ?? error}`);
  }
}

function show_conversation(conversation) {
  current = conversation;
  views.forEach(view => view.item.remove());
  views.clear();
  show_path();
}

// Shows the chosen branch. Turns that were shown before keep their elements.
function show_path() {
  const shown = path(current), before = [...views.keys()];
  let same = 0;
  while (same < shown.length && before[same] === shown[same]) same++;
  before.slice(same).forEach(forget_view);
  shown.slice(same).forEach(show_turn);
  store(sessionStorage, "open-chat", current.id);
  update();
}
function forget_view(index) {
  views.get(index)?.item.remove();
  views.delete(index);
}

function show_turn(index) {
  const turn = current.turns[index], user = turn.role === "user";
  const view = { index, text: element("div", { className: user ? "text" : "markdown" }), figures: element("span", { className: "figures" }) };
  view.body = element("div", { className: "body" }, view.text);
  view.foot = element("div", { className: "foot" }, ...branch_buttons(index), action("copy", "Copy", button => clip(parts_of(turn).content, button)));
  const edit_button = action("edit", "Edit", () => edit(view));
  edit_button.classList.add("when-idle");
  view.foot.append(edit_button);
  if (user) {
    view.body.prepend(...(turn.files ?? []).map(file_details));
  } else {
    const again = action("regenerate", "Regenerate", () => generate(current, turn.parent));
    again.classList.add("when-idle");
    view.foot.append(again, view.figures);
    view.thought = element("details", { className: "thought" }, element("summary"), element("div", { className: "markdown" }));
    view.thought.addEventListener("toggle", () => draw_turn(view));
    view.body.prepend(view.thought);
  }
  view.item = element("article", { className: `turn ${turn.role}`, ariaLabel: user ? "You" : "Assistant" }, view.body, view.foot);
  views.set(index, view);
  log.append(view.item);
  draw_turn(view);
}

function draw_turn({ index, body, text, foot, figures, thought }) {
  const turn = current.turns[index];
  if (turn.role === "user") {
    text.textContent = turn.content;
    text.hidden = !turn.content;
    return;
  }
  const running = runs.get(current.id)?.index === index, { reasoning, content, open } = parts_of(turn);
  const summary = open && running ? "Thinking…" : "Reasoning";
  if (thought.firstChild.textContent !== summary) thought.firstChild.textContent = summary;
  thought.hidden = !reasoning;
  if (thought.open) draw_markdown(thought.lastChild, reasoning, running);
  draw_markdown(text, content, running);
  text.classList.toggle("caret", running && !(open && reasoning));
  foot.hidden = running;
  body.querySelectorAll(".ending").forEach(note => note.remove());
  if (running) return;
  const end = turn.end ?? "interrupted";
  if (turn.error) body.append(element("div", { className: "error ending", role: "alert" }, turn.error));
  else if (!content.trim()) body.append(element("p", { className: "ending" }, element("em", {}, { stopped: "Stopped.", interrupted: "Interrupted." }[end] ?? "Empty response.")));
  const rate = turn.speed && `${turn.speed < 100 ? turn.speed.toFixed(1) : Math.round(turn.speed)} tokens/s`;
  const other_model = turn.model && model && turn.model !== model.id && turn.model;
  figures.textContent = [other_model, turn.tokens && `${turn.tokens} ${turn.tokens === 1 ? "token" : "tokens"}`, rate, NOTES[end]].filter(Boolean).join(" · ");
}

const size_of = text => text.length < 1000 ? `${text.length} B` : `${(text.length / 1000).toFixed(1)} kB`;
const thumbnail = ({ name, url }) => element("img", { src: url, alt: name });
function file_details({ name, text, url }) {
  if (url) return element("img", { src: url, alt: name, className: "picture" });
  return element("details", { className: "file" }, element("summary", {}, `${name} `, element("span", {}, size_of(text))), element("pre", { tabIndex: 0, ariaLabel: name }, text));
}

// Returns the buttons that switch between the versions of a turn.
function branch_buttons(index) {
  const versions = children(current, current.turns[index].parent), place = versions.indexOf(index);
  if (versions.length < 2) return [];
  const go = (step, which) => () => {
    choose(current, versions[place + step]);
    save(current);
    show_path();
    views.get(versions[place + step])?.foot.querySelector(`.${which}:enabled, .branches button:enabled`)?.focus();
  };
  const [back, forward] = [tool("previous", "Previous version", go(-1, "back")), tool("next", "Next version", go(1, "forward"))];
  back.classList.add("back");
  forward.classList.add("forward");
  back.disabled = place === 0;
  forward.disabled = place === versions.length - 1;
  return [element("span", { className: "branches when-idle", role: "group", ariaLabel: "Versions" }, back, element("span", {}, `${place + 1}/${versions.length}`), forward)];
}

// Replaces a turn by a form. A changed message is a new branch with a new answer, a changed answer a new branch.
function edit(view) {
  if (runs.has(current.id) || view.item.classList.contains("editing")) return;
  const turn = current.turns[view.index], user = turn.role === "user";
  const field = element("textarea", { value: turn.content, ariaLabel: user ? "Edit your message" : "Edit the answer", rows: 1 });
  const cancel = element("button", { type: "button", className: "quiet" }, "Cancel");
  const form = element("form", { className: "edit" }, field, element("div", {}, cancel, element("button", { className: "main" }, user ? "Send" : "Save")));
  const close = () => {
    form.remove();
    view.item.classList.remove("editing");
    prompt_.focus();
  };
  const finish = () => {
    const content = field.value.trim();
    if (!content && !turn.files?.length || user && !usable()) return;
    close();
    if (content === turn.content) return;
    const { parent, role, files, reasoning } = turn;
    const index = add_turn(current, parent, { role, content, ...(files && { files }), ...(reasoning && { reasoning }), ...(!user && { end: "stop" }) });
    if (user) return generate(current, index);
    save(current);
    show_path();
  };
  cancel.addEventListener("click", close);
  form.addEventListener("submit", event => { event.preventDefault(); finish(); });
  field.addEventListener("input", () => resize(field));
  field.addEventListener("keydown", event => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (sends(event) && (user || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      finish();
    }
  });
  view.item.classList.add("editing");
  view.item.append(form);
  resize(field);
  field.focus();
}

// Enter sends; Shift+Enter inserts a line. During input-method composition, Enter confirms the composed text.
const sends = event => event.key === "Enter" && !event.shiftKey && !event.isComposing;
function resize(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

// ---- scrolling

let stick_to_bottom = true;
const to_bottom = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight;
const update_scroll_button = () => { at("down").hidden = to_bottom() < 80; };
const follow = () => {
  if (stick_to_bottom) scroll.scrollTop = scroll.scrollHeight;
  update_scroll_button();
};
scroll.addEventListener("scroll", () => {
  stick_to_bottom = to_bottom() < 40;
  update_scroll_button();
}, { passive: true });
at("down").addEventListener("click", () => {
  stick_to_bottom = true;
  follow();
});
