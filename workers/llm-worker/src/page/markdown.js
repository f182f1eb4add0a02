// Renders the Markdown of language models to elements and text nodes. Text is never parsed as HTML.
// A library would also need a sanitizer, and both are larger than this.

// Inline elements: pattern, and function of its match. The earliest match in the text wins.
const INLINE = [
  [/`` ?(.+?) ?``|`([^`\n]+)`/, m => element("code", {}, m[1] ?? m[2])],
  [/\*\*(?=\S)(.+?\S?)\*\*|__(?=\S)(.+?)__(?!\w)/s, m => element("strong", {}, ...inline(m[1] ?? m[2]))],
  [/(?<!\w)\*(?=[^\s*])([^*]*[^\s*])\*(?!\w)|(?<!\w)_(?=[^\s_])([^_]*[^\s_])_(?!\w)/, m => element("em", {}, ...inline(m[1] ?? m[2]))],
  [/~~(?=\S)(.+?)~~/, m => element("s", {}, ...inline(m[1]))],
  [/\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/, m => link(m[2], inline(m[1]))],
  [/https?:\/\/[^\s<>()"'`*]*[^\s<>()"'`*.,;:!?]/, m => link(m[0], [m[0]])],
];
const link = (href, children) => element("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);

function inline(text) {
  const made = [];
  while (text) {
    let first = null;
    for (const [pattern, make] of INLINE) {
      const match = pattern.exec(text);
      if (match && (!first || match.index < first.match.index)) first = { match, make };
    }
    if (!first) break;
    if (first.match.index) made.push(text.slice(0, first.match.index));
    made.push(first.make(first.match));
    text = text.slice(first.match.index + first.match[0].length);
  }
  if (text) made.push(text);
  return made;
}

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.+?)\s*#*\s*$/;
const RULE = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const cells = line => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll("\\|", "|"));

// Returns the block elements of `text`. An unfinished code block extends to the end.
function blocks(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n"), made = [];
  let at = 0;
  const starts = line => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || /^\s{0,3}>/.test(line);
  while (at < lines.length) {
    const line = lines[at];
    let match;
    if (!line.trim()) at++;
    else if ((match = FENCE.exec(line))) {
      const end = new RegExp(`^\\s*${match[1][0]}{${match[1].length},}\\s*$`), from = ++at;
      while (at < lines.length && !end.test(lines[at])) at++;
      made.push(code(lines.slice(from, at++).join("\n"), match[2]));
    } else if ((match = HEADING.exec(line))) {
      made.push(element(match[1].length < 3 ? "h3" : "h4", {}, ...inline(match[2])));
      at++;
    } else if (RULE.test(line)) {
      made.push(element("hr"));
      at++;
    } else if (/^\s{0,3}>/.test(line)) {
      const from = at;
      while (at < lines.length && /^\s{0,3}>/.test(lines[at])) at++;
      made.push(element("blockquote", {}, ...blocks(lines.slice(from, at).map(l => l.replace(/^\s{0,3}> ?/, "")).join("\n"))));
    } else if (ITEM.test(line)) {
      const from = at++;
      while (at < lines.length && (ITEM.test(lines[at]) || /^\s+\S/.test(lines[at]) || (!lines[at].trim() && /^\s+\S|^\s*(?:[-*+]|\d{1,9}[.)])\s/.test(lines[at + 1] ?? "")))) at++;
      made.push(...lists(lines.slice(from, at)));
    } else if (line.includes("|") && DASHES.test(lines[at + 1] ?? "") && cells(line).length === cells(lines[at + 1]).length) {
      const head = element("tr", {}, ...cells(line).map(cell => element("th", { scope: "col" }, ...inline(cell)))), body = element("tbody");
      for (at += 2; at < lines.length && lines[at].includes("|"); at++) body.append(element("tr", {}, ...cells(lines[at]).map(cell => element("td", {}, ...inline(cell)))));
      made.push(element("div", { className: "table", tabIndex: 0 }, element("table", {}, element("thead", {}, head), body)));
    } else {
      const from = at++;
      while (at < lines.length && lines[at].trim() && !starts(lines[at])) at++;
      const paragraph = element("p");
      lines.slice(from, at).forEach((l, i) => paragraph.append(...(i ? [element("br")] : []), ...inline(l.trim())));
      made.push(paragraph);
    }
  }
  return made;
}

// Returns the lists in `lines`, which are items or their indented content. A different kind of marker starts a new list.
function lists(lines) {
  const made = [], depth = ITEM.exec(lines[0])[1].length;
  let list = null, inner = [];
  const close = () => {
    if (!list || !inner.length) return;
    const indents = inner.slice(1).filter(l => l.trim()).map(l => /^\s*/.exec(l)[0].length);
    const cut = indents.length ? Math.min(...indents) : 0;
    const content = blocks([inner[0], ...inner.slice(1).map(l => l.slice(cut))].join("\n"));
    const item = element("li");
    content.forEach((block, i) => i || block.tagName !== "P" ? item.append(block) : item.append(...block.childNodes));
    list.append(item);
    inner = [];
  };
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (!match || match[1].length > depth + 1) {
      inner.push(line);
      continue;
    }
    close();
    const name = match[2] ? "ul" : "ol";
    if (list?.localName !== name) {
      list = element(name);
      if (match[3]) list.start = Number(match[3]);
      made.push(list);
    }
    inner = [match[4]];
  }
  close();
  return made;
}

function code(text, language) {
  const copy = element("button", { type: "button", className: "quiet" }, "Copy");
  copy.addEventListener("click", () => clip(text, copy));
  const pre = element("pre", { tabIndex: 0 }, element("code", {}, text));
  pre.setAttribute("aria-label", language ? `Code in ${language}` : "Code");
  return element("div", { className: "code" }, element("div", { className: "bar" }, element("span", {}, language || "text"), copy), pre);
}

async function clip(text, button) {
  const label = button.lastChild, was = label.textContent;
  try {
    await navigator.clipboard.writeText(text);
    label.textContent = "Copied";
  } catch {
    label.textContent = "Copy failed";
  }
  announce(label.textContent);
  setTimeout(() => { label.textContent = was; }, 1500);
}

// Returns the elements of a response, with the reasoning that some models write first in a collapsible block.
function answer(text) {
  const match = /^\s*<think>([\s\S]*?)(<\/think>|$)/.exec(text);
  if (!match) return blocks(text);
  const rest = blocks(text.slice(match[0].length));
  if (!match[1].trim()) return rest;
  const open = !match[2];
  return [element("details", { className: "thought", open }, element("summary", {}, open ? "Thinking…" : "Reasoning"), element("div", {}, match[1].trim())), ...rest];
}
