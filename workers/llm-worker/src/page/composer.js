// The field for messages, and text files that are attached to a message.
const [prompt_, send, stop] = ["prompt", "send", "stop"].map(at);
const MAX_FILE_BYTES = 1 << 20;
let attached = []; // { name, text }

function prompt_changed() {
  resize(prompt_);
  store(sessionStorage, "chat-draft", prompt_.value);
  update();
}
function set_prompt(text) {
  prompt_.value = text;
  prompt_changed();
}

function submit() {
  const content = prompt_.value.trim();
  if (!content && !attached.length || runs.has(current.id) || !usable()) return;
  const files = attached;
  current.title ||= title_from(content || files[0].name);
  const index = add_turn(current, path(current).at(-1) ?? -1, { role: "user", content, ...(files.length && { files }) });
  set_prompt("");
  show_attachments([]);
  generate(current, index);
}

function show_attachments(files) {
  attached = files;
  at("attachments").hidden = !files.length;
  at("attachments").replaceChildren(...files.map(file => {
    const remove = tool("close", `Remove ${file.name}`, () => {
      show_attachments(attached.filter(other => other !== file));
      prompt_.focus();
    });
    return element("li", {}, element("span", {}, file.name), element("small", {}, size_of(file.text)), remove);
  }));
  update();
}

async function attach(files) {
  for (const file of files) {
    if (file.size > MAX_FILE_BYTES) {
      notify(`${file.name} has ${file.size.toLocaleString("en")} bytes, and files may have ${MAX_FILE_BYTES.toLocaleString("en")} at most.`);
      continue;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new Error();
      show_attachments([...attached, { name: file.name, text: text.replaceAll("\r\n", "\n") }]);
    } catch {
      notify(`${file.name} is not a text file in UTF-8.`);
    }
  }
  prompt_.focus();
}

prompt_.addEventListener("input", prompt_changed);
prompt_.addEventListener("keydown", event => {
  if (sends(event)) {
    event.preventDefault();
    submit();
  } else if (event.key === "ArrowUp" && !prompt_.value) {
    const last = [...views.values()].findLast(({ index }) => current.turns[index].role === "user");
    if (!last || runs.has(current.id)) return;
    event.preventDefault();
    edit(last);
  }
});
prompt_.addEventListener("paste", event => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  attach(event.clipboardData.files);
});
at("form").addEventListener("submit", event => {
  event.preventDefault();
  submit();
});
stop.addEventListener("click", () => {
  runs.get(current.id)?.controller.abort();
  prompt_.focus();
});
at("attach").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", () => {
  attach([...at("file").files]);
  at("file").value = "";
});
const has_files = event => event.dataTransfer?.types.includes("Files");
document.addEventListener("dragover", event => {
  if (!has_files(event)) return;
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
document.addEventListener("drop", event => {
  document.body.classList.remove("dropping");
  if (!has_files(event)) return;
  event.preventDefault();
  attach([...event.dataTransfer.files]);
});
