// The current image, and the history, which survives a reload in the browser's database.
const picture = at("picture");
const MAX_HISTORY = 60;
let images = []; // { id, url, image, format, seed, asked, text, button, item }, the newest first
let selected = null; // the image of the history that is shown
// Null if the browser has no database, for example in private windows. The history then lasts until a reload.
const database = new Promise(done => {
  try {
    const opening = indexedDB.open("image-history", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("images", { keyPath: "id" });
    opening.onsuccess = () => done(opening.result);
    opening.onerror = opening.onblocked = () => done(null);
  } catch {
    done(null);
  }
});

// Calls `work` with the store of images. Returns the result of its request once the transaction is complete.
async function transact(mode, work) {
  const opened = await database;
  return opened && new Promise(done => {
    const transaction = opened.transaction("images", mode);
    const request = work(transaction.objectStore("images"));
    transaction.oncomplete = () => done(request?.result);
    transaction.onerror = transaction.onabort = () => done(null);
  });
}

function show_image(url, text, small) {
  picture.src = url;
  picture.alt = text;
  picture.hidden = !url;
  picture.classList.toggle("small", small);
  at("empty").hidden = Boolean(url);
}

// Shows an image of the history, or none.
function select_image(one) {
  selected = one;
  images.forEach(other => other.button.setAttribute("aria-pressed", other === one));
  at("image-info").hidden = !one || Boolean(running);
  if (!one) return show_image("", "", false);
  show_image(one.url, one.asked.prompt, false);
  at("caption").replaceChildren(one.asked.prompt, " ", element("span", {}, one.text));
}

// Adds images before or after those of the history.
function list_images(added, is_newer) {
  for (const one of added) {
    one.url = `data:image/${one.format};base64,${one.image}`;
    one.button = element("button", { type: "button", title: one.asked.prompt }, element("img", { src: one.url, alt: one.asked.prompt }));
    one.button.addEventListener("click", () => { if (!running) select_image(one); });
    one.item = element("li", {}, one.button);
  }
  images = is_newer ? [...added, ...images] : [...images, ...added];
  const list = at("history"), items = added.map(one => one.item);
  is_newer ? list.prepend(...items) : list.append(...items);
  const removed = images.splice(MAX_HISTORY);
  removed.forEach(one => one.item.remove());
  at("history-section").hidden = !images.length;
  return removed;
}

function add_to_history(data, asked) {
  const { image: input, mask, controlnets, ...kept } = asked;
  const now = Date.now();
  const added = (data.images ?? [data.image]).map((image, i) => {
    const seed = String(BigInt(data.seed) + BigInt(i));
    const text = [`${data.width} × ${data.height}`, `seed ${seed}`, `${asked.steps} steps`, asked.scheduler, data.truncated && "the prompt was too long and has been truncated"];
    return { id: now + i / 1000, image, format: data.format, seed, asked: kept, text: text.filter(Boolean).join(" · ") };
  });
  const records = added.map(one => ({ ...one }));
  const removed = list_images(added, true);
  transact("readwrite", store => {
    records.forEach(record => store.put(record));
    removed.forEach(({ id }) => store.delete(id));
  });
  selected = added[0];
  announce(added.length > 1 ? `${added.length} images are ready.` : "The image is ready.");
  // Show the image after the job has ended.
  queueMicrotask(() => { running = null; select_image(selected); update(); });
}

async function restore_history() {
  const records = await transact("readonly", store => store.getAll());
  if (records?.length) list_images(records.reverse(), false);
}

at("clear-history").addEventListener("click", () => {
  transact("readwrite", store => store.clear());
  images.splice(0).forEach(one => one.item.remove());
  at("history-section").hidden = true;
  select_image(null);
  announce("History cleared.");
});

const image_blob = one => new Blob([Uint8Array.from(atob(one.image), c => c.charCodeAt(0))], { type: `image/${one.format}` });
at("download").addEventListener("click", () => {
  const url = URL.createObjectURL(image_blob(selected));
  const name = selected.asked.prompt.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 48) || "image";
  element("a", { href: url, download: `${name}-${selected.seed}.${selected.format === "jpeg" ? "jpg" : selected.format}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
});
at("use-as-input").addEventListener("click", () => set_input_image(image_blob(selected)));
at("copy-settings").addEventListener("click", () => {
  const { asked, seed } = selected;
  const fields = { prompt: asked.prompt, negative: asked.negative_prompt, width: asked.width, height: asked.height, steps: asked.steps, guidance: asked.guidance, scheduler: asked.scheduler, karras: asked.karras, hires: Boolean(asked.hires), seed };
  for (const [name, value] of Object.entries(asked.hires ?? {})) fields[`hires-${name}`] = value;
  restore_fields(Object.keys(fields), fields);
  draw_input_image();
  show_values();
  keep_fields();
  update();
  announce("Settings copied.");
});
