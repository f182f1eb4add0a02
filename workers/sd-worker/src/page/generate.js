// Image generation: the form, the job, the current image and the history.
const [prompt_, picture] = [at("prompt"), at("picture")];
const MAX_HISTORY = 60;
const VALUE_DIGITS = { steps: 0, guidance: 1, strength: 2, brush: 0 };
let running = null; // { abort, id } of the running job
let images = []; // history: { url, image, format, seed, asked, button, text, item }
let selected = null; // the image of the history that is shown

function model_changed() {
  document.title = `${model.id} – Images`;
  at("model").textContent = model.id;
  const { defaults } = model;
  for (const [id, value] of [["width", defaults.width], ["height", defaults.height]]) {
    Object.assign(at(id), { min: model.multiple, max: model.max_side, step: model.multiple, value });
  }
  Object.assign(at("steps"), { max: Math.min(model.max_steps, Math.max(60, defaults.steps)), value: defaults.steps });
  at("guidance").value = defaults.guidance;
  at("count").max = model.max_images;
  at("scheduler").replaceChildren(...model.schedulers.map(name => element("option", { value: name, textContent: name, selected: name === defaults.scheduler })));
  at("empty").textContent = model.is_inpainting ? "This is an inpainting model: choose an image, and draw over the part to regenerate." : "The image appears here.";
  show_values();
}

function ready_words() {
  const { version, turbo, defaults } = model;
  const kind = version === "other" ? "" : `Stable Diffusion ${version.toUpperCase()}${turbo ? " Turbo" : ""}`;
  return ["Ready", kind, `${defaults.width} × ${defaults.height}`].filter(Boolean).join(" · ");
}

function show_values() {
  for (const [id, digits] of Object.entries(VALUE_DIGITS)) at(`${id}-value`).textContent = Number(at(id).value).toFixed(digits);
}

function update() {
  at("go").hidden = Boolean(running);
  at("stop").hidden = !running;
  at("go").disabled = !usable() || !prompt_.value.trim();
  at("choose").disabled = !usable();
  at("use-as-input").disabled = !usable();
}

function fail(message) {
  at("failure").hidden = !message;
  at("failure").textContent = message;
  if (message) announce(message);
}

// ---- job

function request() {
  const number = id => Number(at(id).value);
  const body = {
    prompt: prompt_.value.trim(), negative_prompt: at("negative").value.trim(), width: number("width"), height: number("height"),
    steps: number("steps"), guidance: number("guidance"), scheduler: at("scheduler").value, n: number("count"), ...input_fields(),
  };
  // Insert the seed as text, because it may exceed the range of exact JavaScript numbers.
  const seed = at("seed").value.trim();
  const text = JSON.stringify(body);
  return [body, seed ? `${text.slice(0, -1)},"seed":${BigInt(seed)}}` : text];
}

async function generate() {
  if (running || !usable() || !prompt_.value.trim() || !at("form").reportValidity()) return;
  running = { abort: new AbortController(), id: null };
  const { signal } = running.abort;
  fail("");
  progress("Sending the request…");
  at("generating").hidden = false;
  at("image-info").hidden = true;
  update();
  at("stop").focus();
  let first = 0, ended = false;
  try {
    const [asked, body] = request();
    // Stop does not abort this request, because the id of the job is required to cancel it.
    const answered = await ask("v1/jobs", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    if (!answered.ok) throw await refusal(answered);
    const { job_id, sse_url } = await answered.json();
    if (signal.aborted) cancel(job_id);
    signal.throwIfAborted();
    running.id = job_id;
    const stream = await ask(sse_url.replace(/^\//, ""), { signal });
    if (!stream.ok) throw await refusal(stream);
    for await (const [name, data] of events(stream.body)) {
      if (name === "queued") progress(data.position ? `Waiting: ${data.position} ahead in the queue` : "Starting…");
      else if (name === "progress") {
        const time = performance.now();
        first ||= time;
        const speed = data.step > 1 ? ` · ${(1000 * (data.step - 1) / (time - first)).toFixed(1)} steps/s` : "";
        progress(data.step < data.total ? `Step ${data.step} of ${data.total}${speed}` : `Step ${data.total} of ${data.total} · finishing`, data.percent);
      } else if (name === "preview") show_image(`data:image/png;base64,${data.image}`, "Preview of the image being generated", true);
      else if (name === "error") throw new Error(data.message);
      else if (name === "complete") {
        ended = true;
        add_to_history(data, asked);
      }
    }
    if (!ended) throw new Error("The connection was closed before the image was complete.");
  } catch (error) {
    if (signal.aborted) announce("Stopped.");
    else fail(error.message);
  }
  running = null;
  at("generating").hidden = true;
  if (!ended) select_image(selected);
  update();
  if (document.activeElement === document.body) prompt_.focus({ preventScroll: true });
}

function stop() {
  if (!running) return;
  const { abort, id } = running;
  // Closing the stream also cancels the job. This request covers a job whose stream is not open yet.
  if (id) cancel(id);
  else progress("Stopping…");
  abort.abort();
}

function cancel(id) {
  ask(`v1/jobs/${id}`, { method: "DELETE" }).catch(() => {});
}

function progress(text, percent = null) {
  at("progress-text").textContent = text;
  const bar = at("bar");
  if (percent === null) {
    bar.removeAttribute("aria-valuenow");
    bar.firstElementChild.style.width = "";
  } else {
    bar.setAttribute("aria-valuenow", Math.round(percent));
    bar.firstElementChild.style.width = `${percent}%`;
  }
}

// ---- current image and history

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

function add_to_history(data, asked) {
  const added = (data.images ?? [data.image]).map((image, i) => {
    const seed = String(BigInt(data.seed) + BigInt(i));
    const url = `data:image/${data.format};base64,${image}`;
    const text = [`${data.width} × ${data.height}`, `seed ${seed}`, `${asked.steps} steps`, asked.scheduler, data.truncated && "the prompt was too long and has been truncated"];
    const button = element("button", { type: "button", title: asked.prompt }, element("img", { src: url, alt: asked.prompt }));
    const one = { url, image, format: data.format, seed, asked, button, text: text.filter(Boolean).join(" · ") };
    button.addEventListener("click", () => { if (!running) select_image(one); });
    one.item = element("li", {}, button);
    return one;
  });
  images = [...added, ...images];
  images.splice(MAX_HISTORY).forEach(one => one.item.remove());
  at("history").prepend(...added.map(one => one.item));
  at("history-section").hidden = false;
  selected = added[0];
  announce(added.length > 1 ? `${added.length} images are ready.` : "The image is ready.");
  // Show the image after the job has ended.
  queueMicrotask(() => { running = null; select_image(selected); update(); });
}

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
  const fields = { prompt: asked.prompt, negative: asked.negative_prompt, width: asked.width, height: asked.height, steps: asked.steps, guidance: asked.guidance, scheduler: asked.scheduler, seed };
  for (const [id, value] of Object.entries(fields)) at(id).value = value;
  draw_input_image();
  show_values();
  update();
  announce("Settings copied.");
});

// ---- keys

for (const id of Object.keys(VALUE_DIGITS)) at(id).addEventListener("input", show_values);
prompt_.addEventListener("input", update);
for (const id of ["prompt", "negative"]) at(id).addEventListener("keydown", event => {
  // While an input method is composing, Enter confirms the composition.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  generate();
});
at("form").addEventListener("submit", event => { event.preventDefault(); generate(); });
at("stop").addEventListener("click", () => { stop(); prompt_.focus(); });
document.addEventListener("keydown", event => { if (event.key === "Escape" && !settings.open) stop(); });

show_values();
update();
if (matchMedia("(hover: hover)").matches) prompt_.focus();
watch();
