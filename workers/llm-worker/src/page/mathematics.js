// Mathematics in Markdown: tokens for TeX between delimiters, and their conversion to MathML, which needs no fonts.
const TEX_BLOCK = /^ {0,3}(?:\$\$((?:(?!\$\$)[\s\S])+?)\$\$|\\\[([\s\S]+?)\\\]|(\\begin\{((?:equation|align|alignat|gather|multline)\*?)\}[\s\S]+?\\end\{\4\}))[ \t]*(?:\n|$)/;
const TEX_BLOCK_BEGIN = new RegExp(`\\n(?=${TEX_BLOCK.source.slice(1)})`);
// As in Pandoc, text between single dollars neither begins nor ends with a space, and no digit follows, so that prices are not mathematics.
const TEX_INLINE = /^(?:\$\$((?:(?!\$\$)[\s\S])+?)\$\$|\\\[([\s\S]+?)\\\]|\\\(([\s\S]+?)\\\)|\$(?![\s$])((?:\\[^\n]|[^\\$\n])+)(?<!\s)\$(?![\d$]))/;

marked.use({
  extensions: [
    {
      name: "tex_block",
      level: "block",
      start: text => TEX_BLOCK_BEGIN.exec(text)?.index,
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
