// Mathematics in Markdown: tokens for TeX between delimiters, and their conversion to MathML, which needs no fonts.
// The length is limited, so that a model that repeats a delimiter without end costs linear time.
const TEX_BLOCK = /^ {0,3}(?:\$\$((?:(?!\$\$)[\s\S]){1,4000}?)\$\$|\\\[([\s\S]{1,4000}?)\\\]|(\\begin\{((?:equation|align|alignat|gather|multline)\*?)\}[\s\S]{1,4000}?\\end\{\4\}))[ \t]*(?:\n|$)/;
const PARAGRAPH_END = /\n[ \t]*\n/;
// As in Pandoc, text between single dollars neither begins nor ends with a space, and no digit follows, so that prices are not mathematics.
const TEX_INLINE = /^(?:\$\$((?:(?!\$\$)[\s\S]){1,4000}?)\$\$|\\\[([\s\S]{1,4000}?)\\\]|\\\(([\s\S]{1,4000}?)\\\)|\$(?![\s$])((?:\\[^\n]|[^\\$\n])+)(?<!\s)\$(?![\d$]))/;

// Returns where a formula interrupts the paragraph at the beginning of `text`.
function block_start(text) {
  const end = PARAGRAPH_END.exec(text)?.index ?? text.length;
  for (const { index } of text.slice(0, end).matchAll(/\n(?= {0,3}(?:\$\$|\\\[|\\begin\{))/g)) {
    if (TEX_BLOCK.test(text.slice(index + 1, index + 5000))) return index;
  }
}

marked.use({
  extensions: [
    {
      name: "tex_block",
      level: "block",
      start: block_start,
      tokenizer(text) {
        const match = TEX_BLOCK.exec(text);
        return match ? { type: "tex_block", raw: match[0], tex: match[1] ?? match[2] ?? match[3], display: true } : undefined;
      },
    },
    {
      name: "tex",
      level: "inline",
      start: text => /(?<![\w\\$])\$|\\[[(]/.exec(text)?.index,
      tokenizer(text) {
        const match = TEX_INLINE.exec(text);
        return match ? { type: "tex", raw: match[0], tex: match[1] ?? match[2] ?? match[3] ?? match[4], display: (match[1] ?? match[2]) !== undefined } : undefined;
      },
    },
  ],
});

// Returns an element with the formula, or its source if Temml cannot read it.
function formula({ tex, display, raw }) {
  const made = element("span", { className: display ? "math display" : "math" });
  try {
    temml.render(tex.trim(), made, { displayMode: display, throwOnError: true, maxSize: [30, 400], macros: {} });
  } catch {
    return element("code", {}, raw.trim());
  }
  if (display) made.tabIndex = 0;
  return made;
}
