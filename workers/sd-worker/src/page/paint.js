// Generation: the form, the job, the image, and those before it.
const [prompt_, picture] = [at("prompt"), at("picture")];
const KEPT = 60;
const SHOWN = { steps: 0, guidance: 1, strength: 2, brush: 0 };
let running = null; // { abort, id } of the job that is being made
let past = []; // { url, file, caption, asked, seed, button }
let now = null; // which of them is shown

function met() {
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
  at("empty").textContent = model.paints_in ? "This is an inpainting model: choose an image, and draw over the part to generate." : "The image appears here.";
  values();
}

function ready_words() {
  const { version, turbo, defaults } = model;
  const kind = version === "other" ? "" : `Stable Diffusion ${version.toUpperCase()}${turbo ? " Turbo" : ""}`;
  return ["Ready", kind, `${defaults.width} × ${defaults.height}`].filter(Boolean).join(" · ");
}

function values() {
  for (const [id, digits] of Object.entries(SHOWN)) at(`${id}-value`).textContent = Number(at(id).value).toFixed(digits);
}

function update() {
  at("go").hidden = Boolean(running);
  at("stop").hidden = !running;
  at("go").disabled = !usable() || !prompt_.value.trim();
  at("choose").disabled = !usable();
  at("use").disabled = !usable();
}

function fail(message) {
  at("failure").hidden = !message;
  at("failure").textContent = message;
  if (message) say(message);
}

// ---- a job

function request() {
  const number = id => Number(at(id).value);
  const body = {
    prompt: prompt_.value.trim(), negative_prompt: at("negative").value.trim(), width: number("width"), height: number("height"),
    steps: number("steps"), guidance: number("guidance"), scheduler: at("scheduler").value, n: number("count"), ...given_fields(),
  };
  // By hand: seeds may be larger than numbers are exact here.
  const seed = at("seed").value.trim();
  const text = JSON.stringify(body);
  return [body, seed ? `${text.slice(0, -1)},"seed":${BigInt(seed)}}` : text];
}

async function paint() {
  if (running || !usable() || !prompt_.value.trim() || !at("form").reportValidity()) return;
  running = { abort: new AbortController(), id: null };
  const { signal } = running.abort;
  fail("");
  progress("Asking…");
  at("making").hidden = false;
  at("about").hidden = true;
  update();
  at("stop").focus();
  let first = 0, ended = false;
  try {
    const [asked, body] = request();
    // Not broken off by stop: a job that is taken must be known to be ended.
    const answered = await ask("v1/jobs", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    if (!answered.ok) throw await refusal(answered);
    const { job_id, sse_url } = await answered.json();
    if (signal.aborted) cancel(job_id);
    signal.throwIfAborted();
    running.id = job_id;
    const stream = await ask(sse_url.replace(/^\//, ""), { signal });
    if (!stream.ok) throw await refusal(stream);
    for await (const [name, told] of events(stream.body)) {
      if (name === "queued") progress(told.position ? `Waiting: ${told.position} before this one` : "Reading the prompt…");
      else if (name === "progress") {
        const time = performance.now();
        first ||= time;
        const speed = told.step > 1 ? ` · ${(1000 * (told.step - 1) / (time - first)).toFixed(1)} steps/s` : "";
        progress(told.step < told.total ? `Step ${told.step} of ${told.total}${speed}` : `Step ${told.total} of ${told.total} · finishing`, told.percent);
      } else if (name === "preview") look(`data:image/png;base64,${told.image}`, "Preview of the image being generated", true);
      else if (name === "error") throw new Error(told.message);
      else if (name === "complete") {
        ended = true;
        keep(told, asked);
      }
    }
    if (!ended) throw new Error("The server broke off.");
  } catch (error) {
    if (signal.aborted) say("Stopped.");
    else fail(error.message);
  }
  running = null;
  at("making").hidden = true;
  if (!ended) look_back(now);
  update();
  if (document.activeElement === document.body) prompt_.focus({ preventScroll: true });
}

function stop() {
  if (!running) return;
  const { abort, id } = running;
  // Leaving the stream cancels, too; a job whose stream is not open yet hears of it this way.
  if (id) cancel(id);
  else progress("Stopping…");
  abort.abort();
}

function cancel(id) {
  ask(`v1/jobs/${id}`, { method: "DELETE" }).catch(() => {});
}

function progress(words, percent = null) {
  at("making-state").textContent = words;
  const bar = at("bar");
  if (percent === null) {
    bar.removeAttribute("aria-valuenow");
    bar.firstElementChild.style.width = "";
  } else {
    bar.setAttribute("aria-valuenow", Math.round(percent));
    bar.firstElementChild.style.width = `${percent}%`;
  }
}

// ---- the picture, and those before it

function look(url, words, small) {
  picture.src = url;
  picture.alt = words;
  picture.hidden = !url;
  picture.classList.toggle("small", small);
  at("empty").hidden = Boolean(url);
}

// Shows one of those painted, or none.
function look_back(one) {
  now = one;
  past.forEach(other => other.button.setAttribute("aria-pressed", other === one));
  at("about").hidden = !one || Boolean(running);
  if (!one) return look("", "", false);
  look(one.url, one.asked.prompt, false);
  at("caption").replaceChildren(one.asked.prompt, " ", element("span", {}, one.words));
}

function keep(told, asked) {
  const kept = (told.images ?? [told.image]).map((image, i) => {
    const seed = String(BigInt(told.seed) + BigInt(i));
    const url = `data:image/${told.format};base64,${image}`;
    const words = [`${told.width} × ${told.height}`, `seed ${seed}`, `${asked.steps} steps`, asked.scheduler, told.truncated && "the prompt was too long and was cut"];
    const button = element("button", { type: "button", title: asked.prompt }, element("img", { src: url, alt: asked.prompt }));
    const one = { url, image, format: told.format, seed, asked, button, words: words.filter(Boolean).join(" · ") };
    button.addEventListener("click", () => { if (!running) look_back(one); });
    one.item = element("li", {}, button);
    return one;
  });
  past = [...kept, ...past];
  past.splice(KEPT).forEach(one => one.item.remove());
  at("history").prepend(...kept.map(one => one.item));
  at("past").hidden = false;
  now = kept[0];
  say(kept.length > 1 ? `${kept.length} images are ready.` : "The image is ready.");
  // What is shown waits for the end of the job.
  queueMicrotask(() => { running = null; look_back(now); update(); });
}

const file_of = one => new Blob([Uint8Array.from(atob(one.image), c => c.charCodeAt(0))], { type: `image/${one.format}` });
at("download").addEventListener("click", () => {
  const url = URL.createObjectURL(file_of(now));
  const name = now.asked.prompt.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 48) || "picture";
  element("a", { href: url, download: `${name}-${now.seed}.${now.format === "jpeg" ? "jpg" : now.format}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
});
at("use").addEventListener("click", () => begin_with(file_of(now)));
at("again").addEventListener("click", () => {
  const { asked, seed } = now;
  const fields = { prompt: asked.prompt, negative: asked.negative_prompt, width: asked.width, height: asked.height, steps: asked.steps, guidance: asked.guidance, scheduler: asked.scheduler, seed };
  for (const [id, value] of Object.entries(fields)) at(id).value = value;
  draw_given();
  values();
  update();
  say("The settings are copied.");
});

// ---- keys

for (const id of Object.keys(SHOWN)) at(id).addEventListener("input", values);
prompt_.addEventListener("input", update);
for (const id of ["prompt", "negative"]) at(id).addEventListener("keydown", event => {
  // While an input method composes, Enter takes its word.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  paint();
});
at("form").addEventListener("submit", event => { event.preventDefault(); paint(); });
at("stop").addEventListener("click", () => { stop(); prompt_.focus(); });
document.addEventListener("keydown", event => { if (event.key === "Escape" && !settings.open) stop(); });

values();
update();
if (matchMedia("(hover: hover)").matches) prompt_.focus();
watch();
