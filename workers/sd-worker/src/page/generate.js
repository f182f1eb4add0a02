// Image generation: the form, and the job.
const prompt_ = at("prompt");
const MAX_STEPS = 150;
const MAX_HIRES_SCALE = 4;
const VALUE_DIGITS = { steps: 0, guidance: 1, strength: 2, brush: 0, "control-weight": 2, "hires-strength": 2 };
// Fields that survive a reload. Those of a model are reset when the worker has another one.
const KEPT = ["prompt", "negative", "count", "seed"];
const KEPT_OF_MODEL = ["width", "height", "steps", "guidance", "scheduler", "karras", "hires", "hires-scale", "hires-upscaler", "hires-strength"];
const ASPECT_RATIOS = [["Square", 1, 1], ["Landscape 3:2", 3, 2], ["Landscape 16:9", 16, 9], ["Portrait 2:3", 2, 3], ["Portrait 9:16", 9, 16]];
// A model that was not loaded yet has no description, and its images have its default settings.
const is_described = () => usable() && Boolean(model.defaults);
let running = null; // { abort, id } of the running job

function model_changed() {
  document.title = `${model.id} – Images`;
  at("model").textContent = model.id;
  at("model-field").hidden = models.length === 1;
  at("model-choice").replaceChildren(...models.map(({ id }) => element("option", { value: id, textContent: id, selected: id === model.id })));
  document.querySelector(".rest").hidden = !model.defaults;
  if (!model.defaults) return;
  const { defaults } = model;
  for (const [id, value] of [["width", defaults.width], ["height", defaults.height]]) {
    Object.assign(at(id), { min: model.multiple, max: model.max_side, step: model.multiple, value });
  }
  Object.assign(at("steps"), { max: Math.min(model.max_steps, MAX_STEPS), value: defaults.steps });
  at("guidance").value = defaults.guidance;
  at("karras").checked = defaults.karras;
  at("karras").closest(".field").hidden = model.schedulers.length === 1;
  at("count").max = model.max_images;
  at("scheduler").replaceChildren(...model.schedulers.map(name => element("option", { value: name, textContent: name, selected: name === defaults.scheduler })));
  const sizes = ASPECT_RATIOS.map(([name, ...ratio]) => [name, fitted_size(...ratio).join(" × ")]);
  at("size").replaceChildren(...sizes.map(([name, value]) => element("option", { value, textContent: `${name}, ${value}` })), element("option", { value: "", textContent: "Other" }));
  list_controlnets();
  const kept = stored(localStorage, "image-settings", {});
  restore_fields(KEPT, kept);
  if (kept.model === model.id) restore_fields(KEPT_OF_MODEL, kept);
  at("empty").textContent = model.is_inpainting ? "This is an inpainting model: choose an image, and draw over the part to regenerate." : "The image appears here.";
  // Values that were kept from another model do not apply.
  if (model.schedulers.length === 1) at("karras").checked = false;
  if (!model.negative_prompt) at("negative").value = "";
  for (const field of [at("negative"), document.querySelector("label[for=negative]")]) field.hidden = !model.negative_prompt;
  show_values();
  clamp_hires_scale();
}

// Reads the descriptions of the models again: the worker has that of a model after it was first loaded.
async function describe_models() {
  const { id } = model;
  [models, model] = [(await (await ask("v1/models")).json()).data, null];
  choose_model(id);
}

function ready_words() {
  if (!model.defaults) return `Ready · ${model.id} is loaded for its first image`;
  const { version, network, turbo, defaults } = model;
  const kind = version === "other" ? "" : `${network}${turbo ? " Turbo" : ""}`;
  return ["Ready", kind, `${defaults.width} × ${defaults.height}`].filter(Boolean).join(" · ");
}

function restore_fields(ids, values) {
  for (const id of ids.filter(id => id in values)) {
    const field = at(id), value = values[id];
    if (field.type === "checkbox") field.checked = value;
    else if (!field.options || [...field.options].some(option => option.value === value)) field.value = value;
  }
}

function keep_fields() {
  if (!model?.defaults) return;
  const value = id => at(id).type === "checkbox" ? at(id).checked : at(id).value;
  store(localStorage, "image-settings", { model: model.id, ...Object.fromEntries([...KEPT, ...KEPT_OF_MODEL].map(id => [id, value(id)])) });
}

function show_values() {
  const size = `${at("width").value} × ${at("height").value}`;
  at("size").value = [...at("size").options].some(({ value }) => value === size) ? size : "";
  at("hires-settings").hidden = !at("hires").checked;
  // Browsers do not check disabled fields.
  at("hires-scale").disabled = !at("hires").checked;
  at("hires-scale").max = max_hires_scale();
  for (const [id, digits] of Object.entries(VALUE_DIGITS)) at(`${id}-value`).textContent = Number(at(id).value).toFixed(digits);
}

// Returns the largest scale of the second pass for which the image does not exceed the limits of the worker.
function max_hires_scale() {
  const [width, height] = ["width", "height"].map(id => Number(at(id).value));
  if (!model?.defaults || !(width > 0 && height > 0)) return MAX_HIRES_SCALE;
  const most = Math.min(MAX_HIRES_SCALE, model.max_side / Math.max(width, height), Math.sqrt(model.max_pixels / (width * height)));
  return Math.max(1, Math.floor(20 * most) / 20);
}

function clamp_hires_scale() {
  const scale = at("hires-scale");
  scale.value = Math.min(Number(scale.value), max_hires_scale());
}

function update() {
  at("go").hidden = Boolean(running);
  at("stop").hidden = !running;
  at("go").disabled = !usable() || !prompt_.value.trim();
  at("choose").disabled = !is_described();
  at("use-as-input").disabled = !is_described();
}

function fail(message) {
  at("failure").hidden = !message;
  at("failure").textContent = message;
  if (message) announce(message);
}

// ---- job

// Returns the request fields of the second pass, which images with an input do not have.
function hires_fields() {
  if (!at("hires").checked || source) return {};
  const number = id => Number(at(id).value);
  return { hires: { scale: number("hires-scale"), upscaler: at("hires-upscaler").value, strength: number("hires-strength") } };
}

function request() {
  const number = id => Number(at(id).value);
  const prompts = { model: model.id, prompt: prompt_.value.trim(), negative_prompt: at("negative").value.trim() };
  if (!model.defaults) return [prompts, JSON.stringify(prompts)];
  const body = {
    ...prompts, width: number("width"), height: number("height"),
    steps: number("steps"), guidance: number("guidance"), scheduler: at("scheduler").value,
    karras: at("karras").checked, n: number("count"), ...input_fields(), ...control_fields(),
    ...hires_fields(),
  };
  // Insert the seed as text, because it may exceed the range of exact JavaScript numbers.
  const seed = at("seed").value.trim();
  const text = JSON.stringify(body);
  return [body, seed ? `${text.slice(0, -1)},"seed":${BigInt(seed)}}` : text];
}

async function generate() {
  if (running || !usable() || !prompt_.value.trim() || model.defaults && !at("form").reportValidity()) return;
  running = { abort: new AbortController(), id: null };
  const { signal } = running.abort;
  fail("");
  const loads = !model.defaults;
  progress(loads ? `Loading ${model.id}…` : "Sending the request…");
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
      if (name === "loading") progress(`Loading ${data.model}…`);
      else if (name === "queued") {
        if (loads && !model.defaults) {
          await describe_models();
          Object.assign(asked, models.find(({ id }) => id === asked.model)?.defaults);
        }
        progress(data.position ? `Waiting: ${data.position} ahead in the queue` : "Starting…");
      } else if (name === "progress") {
        const time = performance.now();
        first ||= time;
        const rate = (data.step - 1) / (time - first) * 1000;
        const speed = data.step > 1 ? ` · ${rate.toFixed(1)} steps/s · ${duration((data.total - data.step) / rate)} left` : "";
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

function duration(seconds) {
  return seconds < 90 ? `${Math.ceil(seconds)} s` : `${Math.round(seconds / 60)} min`;
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

// ---- keys

for (const id of [...Object.keys(VALUE_DIGITS), "width", "height", "hires"]) at(id).addEventListener("input", show_values);
at("size").addEventListener("change", () => {
  if (!at("size").value) return;
  [at("width").value, at("height").value] = at("size").value.split(" × ");
  draw_input_image();
});
for (const id of ["width", "height", "size", "hires"]) at(id).addEventListener("change", () => {
  show_values();
  clamp_hires_scale();
});
at("model-choice").addEventListener("change", () => {
  store(localStorage, "model", at("model-choice").value);
  choose_model(at("model-choice").value);
});
at("form").addEventListener("input", keep_fields);
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
restore_history();
if (matchMedia("(hover: hover)").matches) prompt_.focus();
watch();
