// A conversation is a tree of turns in one array, so that an edited message or a regenerated answer keeps the older version. `parent` is
// the index of the turn before, or -1. `chosen` maps a parent to the turn that is shown after it.
const FORMAT = "llm-worker-chat";

function new_conversation() {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(12)), byte => byte.toString(16).padStart(2, "0")).join("");
  const now = Date.now();
  return { id, title: "", created: now, updated: now, turns: [], chosen: {} };
}

function children(conversation, parent) {
  const found = [];
  conversation.turns.forEach((turn, index) => { if (turn.parent === parent) found.push(index); });
  return found;
}

// Returns the indices of the turns that are shown, in their order.
function path(conversation) {
  const after = new Map(conversation.turns.map((turn, index) => [turn.parent, index])), shown = [];
  for (let at = -1; after.has(at);) {
    at = conversation.chosen[at] ?? after.get(at);
    shown.push(at);
  }
  return shown;
}

// Appends a turn, shows it, and returns its index.
function add_turn(conversation, parent, turn) {
  const index = conversation.turns.push({ parent, ...turn }) - 1;
  conversation.chosen[parent] = index;
  conversation.updated = Date.now();
  return index;
}

// Makes `path` lead to this turn.
function choose(conversation, index) {
  for (let at = index; at >= 0; at = conversation.turns[at].parent) conversation.chosen[conversation.turns[at].parent] = at;
}

// Returns the turns that lead to `index`, the first one first.
function ancestors(conversation, index) {
  const found = [];
  for (let at = index; at >= 0; at = conversation.turns[at].parent) found.unshift(conversation.turns[at]);
  return found;
}

const title_of = ({ title }) => title || "New chat";
const title_from = text => [...text.trim().replace(/\s+/g, " ")].slice(0, 60).join("");

// Splits an answer into the reasoning that some models write first, and the rest. `open` is true while the reasoning is incomplete.
function parts_of(turn) {
  if (turn.reasoning) return { reasoning: turn.reasoning, content: turn.content, open: !turn.content };
  const match = /^\s*<think>([\s\S]*?)(<\/think>\s*|$)/.exec(turn.content);
  return match ? { reasoning: match[1].trim(), content: turn.content.slice(match[0].length), open: !match[2] } : { reasoning: "", content: turn.content, open: false };
}

function file_block({ name, text }) {
  const longest = (text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
  const fence = "`".repeat(longest + 1), extension = /\.(\w+)$/.exec(name)?.[1] ?? "";
  return `${name}\n${fence}${extension}\n${text.replace(/\n$/, "")}\n${fence}`;
}

// Returns the message of a turn as the model reads it: attached pictures and files first, and without reasoning.
function message_of(turn) {
  if (turn.role === "assistant") return { role: turn.role, content: parts_of(turn).content };
  const files = turn.files ?? [], pictures = files.filter(({ url }) => url);
  const text = [...files.filter(({ url }) => !url).map(file_block), turn.content].filter(Boolean).join("\n\n");
  if (!pictures.length) return { role: turn.role, content: text };
  const parts = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return { role: turn.role, content: [...parts, ...(text ? [{ type: "text", text }] : [])] };
}

// ---- search

// Returns where a conversation contains all `words`, which are in lower case: a turn, or -1 for the title, and the text around the first word.
function find_in(conversation, words) {
  const texts = [conversation.title, ...conversation.turns.map(turn => [turn.content, ...(turn.files ?? []).map(file => `${file.name}\n${file.text ?? ""}`)].join("\n"))];
  const lower = texts.map(text => text.toLowerCase());
  if (!words.every(word => lower.some(text => text.includes(word)))) return null;
  // A word in a turn says more than the title, which is displayed anyway.
  const found = lower.findIndex((text, i) => i > 0 && text.includes(words[0])), place = Math.max(found, 0);
  const at = lower[place].indexOf(words[0]), from = Math.max(0, at - 30);
  const extract = found < 0 ? "" : `${from ? "…" : ""}${texts[place].slice(from, at + 90).replace(/\s+/g, " ")}`;
  return { turn: place - 1, extract };
}

// ---- export and import

const exported = conversations => JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);

// Returns the conversations of an exported file. Only known fields are kept.
function imported(text) {
  const file = JSON.parse(text);
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("it is not an export of this page");
  if (file.version !== 1) throw new Error(`version ${file.version} is not supported, only version 1`);
  return file.conversations.map(imported_conversation);
}

function imported_conversation(entry) {
  const valid = (is, what) => { if (!is) throw new Error(`${what} is missing or invalid`); };
  const time = value => Number.isSafeInteger(value) ? value : Date.now();
  valid(typeof entry?.id === "string" && /^[0-9a-f]{24}$/.test(entry.id), "the id of a conversation");
  valid(Array.isArray(entry.turns), "the list of turns");
  const turns = entry.turns.map((turn, index) => {
    valid(["user", "assistant"].includes(turn?.role) && typeof turn.content === "string", "the role or content of a turn");
    // Parents come first, so the turns form no circle.
    valid(Number.isInteger(turn.parent) && turn.parent >= -1 && turn.parent < index, "the parent of a turn");
    const kept = { parent: turn.parent, role: turn.role, content: turn.content };
    for (const field of ["reasoning", "model", "end", "error"]) if (typeof turn[field] === "string") kept[field] = turn[field];
    for (const field of ["tokens", "speed"]) if (Number.isFinite(turn[field])) kept[field] = turn[field];
    if (Array.isArray(turn.files)) {
      kept.files = turn.files.map(({ name, text, url }) => {
        const is_picture = typeof url === "string" && /^data:image\/(png|jpeg|webp);base64,/.test(url);
        valid(typeof name === "string" && (is_picture || typeof text === "string"), "the name or content of a file");
        return is_picture ? { name, url } : { name, text };
      });
    }
    return kept;
  });
  const chosen = {};
  for (const [parent, child] of Object.entries(entry.chosen ?? {})) if (turns[child]?.parent === Number(parent)) chosen[parent] = child;
  return { id: entry.id, title: typeof entry.title === "string" ? entry.title : "", created: time(entry.created), updated: time(entry.updated), turns, chosen };
}
