// The field for messages, and text files and pictures that are attached to a message.
const [prompt_, send, stop] = ["prompt", "send", "stop"].map(at);
const MAX_FILE_BYTES = 1 << 20;
const MAX_PICTURE_BYTES = 20 << 20;
// Each request repeats all pictures of a chat, so large ones are scaled down.
const MAX_PICTURE_SIDE = 2000;
const MAX_SENT_BYTES = 1 << 20;
const PICTURE_TYPES = ["image/png", "image/jpeg", "image/webp"];
let attached = []; // { name, text }, or { name, url } with the data URL of a picture

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
    return element("li", {}, element("span", {}, file.name), file.url ? thumbnail(file) : element("small", {}, size_of(file.text)), remove);
  }));
  update();
}

const reads_pictures = () => Boolean(model?.architecture?.input_modalities?.includes("image"));
const data_url = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

// Returns the size of a picture whose longer side has at most `most` pixels.
function size_within(width, height, most) {
  const scale = Math.min(1, most / Math.max(width, height));
  return [width, height].map(side => Math.max(1, Math.round(side * scale)));
}

// Returns the data URL of a picture, scaled down if it is large. Large files become JPEG, and transparent pixels white.
async function picture_url(file) {
  const bitmap = await createImageBitmap(file);
  const [width, height] = size_within(bitmap.width, bitmap.height, MAX_PICTURE_SIDE);
  if (width === bitmap.width && height === bitmap.height && file.size <= MAX_SENT_BYTES) return data_url(file);
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  const png = file.type === "image/png" ? canvas.toDataURL("image/png") : "";
  return png && png.length * 3 / 4 <= MAX_SENT_BYTES ? png : canvas.toDataURL("image/jpeg", 0.9);
}

async function attach(files) {
  for (const file of files) {
    const is_picture = PICTURE_TYPES.includes(file.type), limit = is_picture ? MAX_PICTURE_BYTES : MAX_FILE_BYTES;
    if (is_picture && !reads_pictures()) {
      notify(`${file.name} is a picture, but this model accepts only text.`);
      continue;
    }
    if (file.size > limit) {
      notify(`${file.name} has ${file.size.toLocaleString("en")} bytes, and ${is_picture ? "pictures" : "files"} may have ${limit.toLocaleString("en")} at most.`);
      continue;
    }
    try {
      if (is_picture) {
        show_attachments([...attached, { name: file.name, url: await picture_url(file) }]);
        continue;
      }
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new Error();
      show_attachments([...attached, { name: file.name, text: text.replaceAll("\r\n", "\n") }]);
    } catch {
      notify(`${file.name} is not a ${is_picture ? "picture that this browser can read" : "text file in UTF-8"}.`);
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
