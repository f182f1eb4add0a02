// Icons, buttons, dialogs and downloads.
const ICONS = {
  copy: "M9 9h10v10H9zM5 15V5h10",
  regenerate: "M20 11a8 8 0 1 0-2.3 6.7M20 5v6h-6",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  previous: "M14 6l-6 6 6 6",
  next: "M10 6l6 6-6 6",
  remove: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  close: "M6 6l12 12M18 6L6 18",
};

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), shape = document.createElementNS(svg.namespaceURI, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  shape.setAttribute("d", ICONS[name]);
  svg.append(shape);
  return svg;
}

// Returns a button with an icon and a label, which narrow pages hide.
function action(name, label, act) {
  const button = element("button", { type: "button", className: "quiet", title: label }, icon(name), element("span", {}, label));
  button.addEventListener("click", () => act(button));
  return button;
}

// Returns a button with only an icon.
function tool(name, label, act) {
  const button = element("button", { type: "button", className: "quiet tool", title: label, ariaLabel: label }, icon(name));
  button.addEventListener("click", () => act(button));
  return button;
}

async function clip(text, button) {
  const label = button.lastChild, was = label.textContent;
  label.textContent = await copied(text, button) ? "Copied" : "Copy failed";
  announce(label.textContent);
  setTimeout(() => { label.textContent = was; }, 1500);
}

async function copied(text, button) {
  // Browsers offer the clipboard only to pages from https and from this machine.
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = element("textarea", { value: text, className: "hidden" });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  button.focus();
  return done;
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// Asks a question, and returns true if the button with `label` is pressed.
function confirmed(question, label) {
  const dialog = at("confirm");
  at("confirm-question").textContent = question;
  at("confirm-yes").textContent = label;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise(resolve => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

let notice_timer = 0;
function notify(text) {
  at("notice").textContent = text;
  at("notice").hidden = false;
  clearTimeout(notice_timer);
  notice_timer = setTimeout(() => { at("notice").hidden = true; }, 8000);
}
