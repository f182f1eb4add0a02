// The list of conversations: search, open, rename, delete, export and import.
const list = at("list"), search = at("search");
const narrow = matchMedia("(max-width: 860px)");
const DAY = 86400000;

// ---- the list

let refreshing = 0;
async function refresh_list() {
  const now = ++refreshing, words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const entries = await (words.length ? found(words) : storage.list());
  if (now !== refreshing) return; // a later call shows a newer list
  const groups = Map.groupBy ? Map.groupBy(entries, ({ updated }) => words.length ? "Found" : age_of(updated)) : new Map([["", entries]]);
  list.replaceChildren(...[...groups].flatMap(([name, group]) => [element("h3", {}, name), element("ul", {}, ...group.map(entry_item))]));
  at("list-empty").hidden = entries.length > 0;
  at("list-empty").textContent = words.length ? "No conversation contains this." : "No conversations yet.";
  for (const id of ["export-all", "delete-all"]) at(id).disabled = !entries.length && !words.length;
}

function age_of(time) {
  const days = Math.floor((new Date().setHours(24, 0, 0, 0) - time) / DAY);
  if (days < 1) return "Today";
  if (days < 2) return "Yesterday";
  return days < 8 ? "Previous 7 days" : days < 31 ? "Previous 30 days" : "Older";
}

async function found(words) {
  const results = [];
  await storage.each(conversation => {
    const place = find_in(conversation, words);
    if (place) results.push({ ...summary_of(conversation), ...place });
  });
  return results.sort((a, b) => b.updated - a.updated);
}

function entry_item(entry) {
  const title = title_of(entry);
  const open = element("button", { type: "button", className: "open" }, element("span", { className: "name" }, title));
  if (entry.extract) open.append(element("small", {}, entry.extract));
  open.addEventListener("click", () => open_conversation(entry.id, entry.turn ?? -1));
  const tools = element("div", { className: "tools" },
    tool("edit", `Rename ${title}`, () => rename(entry, item)),
    tool("download", `Export ${title}`, () => export_conversations([entry.id])),
    tool("remove", `Delete ${title}`, () => delete_conversations([entry.id], `Delete “${title}”?`)));
  const item = element("li", { className: "entry" }, open, tools);
  item.dataset.id = entry.id;
  mark_entry(item);
  return item;
}

function mark_entry(item) {
  const id = item.dataset.id;
  item.classList.toggle("running", runs.has(id));
  item.classList.toggle("current", id === current.id);
  item.firstChild.ariaCurrent = id === current.id ? "true" : null;
}
const mark_entries = () => list.querySelectorAll(".entry").forEach(mark_entry);
const focus_entry = id => list.querySelector(`[data-id="${id}"] .open`)?.focus();

let opening = "";
async function open_conversation(id, turn = -1) {
  opening = id;
  const conversation = runs.get(id)?.conversation ?? await storage.read(id);
  if (opening !== id) return;
  if (!conversation) return refresh_list();
  if (turn >= 0) choose(conversation, turn);
  show_conversation(conversation);
  mark_entries();
  stick_to_bottom = turn < 0;
  if (turn < 0) follow();
  else show_found(views.get(turn)?.item);
  if (narrow.matches) show_list(false);
  if (matchMedia("(hover: hover)").matches) prompt_.focus();
}

// Scrolls to the first word of the search in a turn, and marks it.
function show_found(item) {
  const word = search.value.trim().toLowerCase().split(/\s+/)[0], nodes = document.createTreeWalker(item, NodeFilter.SHOW_TEXT);
  let node, place = -1;
  while (place < 0 && (node = nodes.nextNode())) place = node.data.toLowerCase().indexOf(word);
  (node?.parentElement ?? item).scrollIntoView({ block: "center" });
  if (place < 0 || !CSS.highlights) return;
  const range = new Range();
  range.setStart(node, place);
  range.setEnd(node, Math.min(node.length, place + word.length));
  CSS.highlights.set("found", new Highlight(range));
}

function new_chat() {
  opening = "";
  show_conversation(new_conversation());
  mark_entries();
  announce("New chat started.");
  update_scroll_button();
  if (narrow.matches) show_list(false);
  prompt_.focus();
}

// ---- rename and delete

function rename(entry, item) {
  const field = element("input", { value: title_of(entry), ariaLabel: "New title", maxLength: 200 });
  let closed = false;
  const close = async keep => {
    if (closed) return;
    closed = true;
    const title = field.value.trim();
    if (keep && title && title !== entry.title) {
      const conversation = await live(entry.id);
      if (conversation) {
        conversation.title = title;
        await save(conversation);
      }
    }
    await refresh_list();
    if (document.activeElement === document.body) focus_entry(entry.id);
  };
  field.addEventListener("keydown", event => {
    if (event.key !== "Escape" && (event.key !== "Enter" || event.isComposing)) return;
    event.preventDefault();
    event.stopPropagation();
    close(event.key === "Enter");
  });
  field.addEventListener("blur", () => close(true));
  item.replaceChildren(field);
  field.select();
}

// Returns the conversation, as it is in this tab if it is open here.
const live = async id => runs.get(id)?.conversation ?? (id === current.id ? current : storage.read(id));

async function delete_conversations(ids, question) {
  if (!ids.length || !await confirmed(`${question} This cannot be undone.`, "Delete")) return;
  ids.forEach(id => {
    removed.add(id);
    runs.get(id)?.controller.abort();
  });
  await storage.remove(ids);
  if (ids.includes(current.id)) new_chat();
  await refresh_list();
  if (document.activeElement === document.body) search.focus();
  announce("Deleted.");
}

// ---- export and import

async function export_conversations(ids) {
  const conversations = [];
  for (const id of ids) conversations.push(await live(id));
  const kept = conversations.filter(Boolean);
  if (!kept.length) return;
  const name = kept.length === 1 ? title_of(kept[0]).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 50) : "conversations";
  download(`${name || "conversation"}.json`, exported(kept));
}
const all_ids = async () => (await storage.list()).map(({ id }) => id);

async function import_file(file) {
  let read = 0, skipped = 0;
  try {
    for (const conversation of imported(await file.text())) {
      const known = await live(conversation.id);
      if (known && known.updated >= conversation.updated && known.turns.length >= conversation.turns.length) {
        skipped++;
        continue;
      }
      // A conversation that has changed here is kept beside the imported one.
      if (known) conversation.id = new_conversation().id;
      removed.delete(conversation.id);
      await storage.write(conversation);
      read++;
    }
    notify(`${read} imported${skipped ? `, ${skipped} already here` : ""}.`);
  } catch (error) {
    notify(`${file.name} could not be imported: ${error.message}`);
  }
  refresh_list();
}

// ---- the panel

function show_list(open) {
  at("history").hidden = !open;
  at("toggle-list").ariaExpanded = String(open);
  const modal = open && narrow.matches;
  at("shade").hidden = !modal;
  document.querySelectorAll("header, main, footer").forEach(part => { part.inert = modal; });
  if (!narrow.matches) store(localStorage, "chat-list", open);
}
function toggle_list() {
  const open = at("history").hidden;
  show_list(open);
  if (narrow.matches) at(open ? "close-list" : "toggle-list").focus();
}
function focus_search() {
  show_list(true);
  search.focus();
  search.select();
}
at("toggle-list").addEventListener("click", toggle_list);
at("close-list").addEventListener("click", toggle_list);
at("shade").addEventListener("click", toggle_list);
narrow.addEventListener("change", () => show_list(!narrow.matches && stored(localStorage, "chat-list", true)));

let search_timer = 0;
search.addEventListener("input", () => {
  clearTimeout(search_timer);
  search_timer = setTimeout(refresh_list, 150);
});
for (const id of ["new-chat", "new-chat-2"]) at(id).addEventListener("click", new_chat);
at("export-all").addEventListener("click", async () => export_conversations(await all_ids()));
at("delete-all").addEventListener("click", async () => {
  const ids = await all_ids();
  delete_conversations(ids, `Delete all ${ids.length} conversations?`);
});
at("import").addEventListener("click", () => at("import-file").click());
at("import-file").addEventListener("change", async () => {
  const [file] = at("import-file").files;
  at("import-file").value = "";
  if (file) import_file(file);
});

// Another tab has changed conversations.
channel.addEventListener("message", async ({ data: ids }) => {
  refresh_list();
  if (!ids.includes(current.id) || runs.has(current.id) || log.querySelector(".editing")) return;
  const conversation = await storage.read(current.id);
  if (conversation) show_conversation(conversation);
  else if (current.turns.length) new_chat();
});
