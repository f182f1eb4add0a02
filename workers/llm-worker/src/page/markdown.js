// Renders the Markdown of language models. marked splits it into tokens, and this file makes elements and text nodes of them. Text is
// never parsed as HTML.
marked.use({ breaks: true });

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–", times: "×", deg: "°", rarr: "→", larr: "←", le: "≤", ge: "≥", ne: "≠" };
const decode = text => text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (entity, decimal, hex, name) => {
  if (name) return ENTITIES[name] ?? entity;
  const point = decimal ? Number(decimal) : parseInt(hex, 16);
  return point && point <= 0x10ffff ? String.fromCodePoint(point) : entity;
});

// Returns a link, or only its text if the address is relative or might run a script.
function link(href, children) {
  let url;
  try {
    url = new URL(decode(href));
  } catch {
    return children;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return children;
  return [element("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children)];
}

const BLOCKS = {
  space: () => [],
  def: () => [],
  hr: () => [element("hr")],
  // The page itself has headings of the levels 1 and 2.
  heading: ({ depth, tokens }) => [element(`h${Math.min(depth + 2, 6)}`, {}, ...inline(tokens))],
  paragraph: ({ tokens }) => [element("p", {}, ...inline(tokens))],
  text: token => inline(token.tokens ?? [token]),
  blockquote: ({ tokens }) => [element("blockquote", {}, ...blocks(tokens))],
  list: ({ ordered, start, items }) => [element(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {}, ...items.map(list_item))],
  code: ({ text, lang }) => [code(text, (lang ?? "").split(/\s/)[0])],
  table: token => [table(token)],
  checkbox: () => [],
  html: ({ text }) => [element("p", {}, ...lines(text.trim()))],
  tex_block: token => [formula(token)],
};
const INLINE = {
  text: ({ text, tokens }) => tokens ? inline(tokens) : [decode(text)],
  escape: ({ text }) => [text],
  codespan: ({ text }) => [element("code", {}, text)],
  strong: ({ tokens }) => [element("strong", {}, ...inline(tokens))],
  em: ({ tokens }) => [element("em", {}, ...inline(tokens))],
  del: ({ tokens }) => [element("s", {}, ...inline(tokens))],
  br: () => [element("br")],
  link: ({ href, tokens }) => link(href, inline(tokens)),
  // Images are not loaded: the request would tell another server what was read.
  image: ({ href, text }) => link(href, [decode(text) || href]),
  checkbox: () => [],
  html: ({ text }) => /^<br\s*\/?>$/i.test(text) ? [element("br")] : [text],
  tex: token => [formula(token)],
};
// HTML elements without attributes that models use in text.
const PAIRED = /^<(sub|sup|kbd|mark|u|b|i|s)>$/i;

const blocks = tokens => tokens.flatMap(token => (BLOCKS[token.type] ?? (({ raw }) => [element("p", {}, raw)]))(token));
const lines = text => text.split("\n").flatMap((line, i) => i ? [element("br"), line] : [line]);

function inline(tokens) {
  const made = [];
  for (let i = 0; i < tokens.length; i++) {
    const token = tokens[i], name = token.type === "html" && PAIRED.exec(token.text)?.[1].toLowerCase();
    const end = name ? tokens.findIndex((other, j) => j > i && other.type === "html" && other.text.toLowerCase() === `</${name}>`) : -1;
    if (end > 0) {
      made.push(element(name, {}, ...inline(tokens.slice(i + 1, end))));
      i = end;
    } else {
      made.push(...(INLINE[token.type] ?? (({ raw }) => [raw]))(token));
    }
  }
  return made;
}

function list_item({ task, checked, tokens }) {
  const item = element("li", {}, ...blocks(tokens));
  if (!task) return item;
  item.className = "task";
  const box = element("input", { type: "checkbox", checked, disabled: true, ariaLabel: checked ? "Done" : "Not done" });
  (item.firstElementChild?.localName === "p" ? item.firstElementChild : item).prepend(box, " ");
  return item;
}

function table({ header, rows }) {
  const cell = (name, { tokens, align }) => element(name, { ...(name === "th" && { scope: "col" }), ...(align && { className: align }) }, ...inline(tokens));
  const row = (name, cells) => element("tr", {}, ...cells.map(entry => cell(name, entry)));
  const made = element("table", {}, element("thead", {}, row("th", header)), element("tbody", {}, ...rows.map(entry => row("td", entry))));
  return element("div", { className: "table", tabIndex: 0, role: "region", ariaLabel: "Table" }, made);
}

function code(text, language) {
  const copy = element("button", { type: "button", className: "quiet" }, "Copy");
  copy.addEventListener("click", () => clip(text, copy));
  const pre = element("pre", { tabIndex: 0, ariaLabel: language ? `Code in ${language}` : "Code" }, element("code", {}, ...highlighted(text, language)));
  return element("div", { className: "code" }, element("div", { className: "bar" }, element("span", {}, language || "text"), copy), pre);
}

// Returns code as text and elements with the class of each token. Long code stays plain, because it is coloured again with each new token.
function highlighted(text, language) {
  if (!language || text.length > 60000 || !hljs.getLanguage(language)) return [text];
  const node = entry => typeof entry === "string" ? entry : element("span", { className: `hl-${entry.scope?.split(".")[0] ?? ""}` }, ...entry.children.map(node));
  return hljs.highlight(text, { language, ignoreIllegals: true })._emitter?.rootNode?.children.map(node) ?? [text];
}

// What `draw_markdown` has drawn in an element: the text, and its blocks with their source, nodes and end in the text.
const drawn = new WeakMap();

// Renders `text` into `parent`. Unchanged blocks keep their elements, and so selections and scroll positions survive while a text grows.
// If `growing`, the text is drawn again when it is complete, and only its last blocks are parsed.
function draw_markdown(parent, text, growing = false) {
  text = text.replace(/\r\n?/g, "\n");
  const before = drawn.get(parent) ?? { text: "", links: 0, made: [] };
  const kept = growing && text.startsWith(before.text) ? Math.max(0, before.made.length - 2) : 0;
  let tokens;
  let end = before.made[kept - 1]?.end ?? 0;
  try {
    tokens = marked.lexer(text.slice(end));
  } catch {
    // The nesting is too deep for the stack.
    tokens = Object.assign([{ type: "html", raw: text.slice(end), text: text.slice(end) }], { links: {} });
  }
  const links = Object.keys(tokens.links).length;
  const found = tokens.map(token => ({ token, raw: token.raw, end: end += token.raw.length, nodes: [] }));
  let same = 0;
  // A new link definition may change any block.
  if (growing || links === before.links) while (same < found.length && before.made[kept + same]?.raw === found[same].raw) same++;
  const made = before.made.slice(0, kept + same);
  made.slice(kept).forEach((block, i) => { block.end = found[i].end; });
  before.made.slice(made.length).forEach(({ nodes }) => nodes.forEach(node => node.remove()));
  for (const { token, ...block } of found.slice(same)) {
    block.nodes = blocks([token]).map(node => typeof node === "string" ? document.createTextNode(node) : node);
    parent.append(...block.nodes);
    made.push(block);
  }
  drawn.set(parent, { text, links, made });
}
