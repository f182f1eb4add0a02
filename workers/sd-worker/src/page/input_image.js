// Input image, and the mask that is drawn over it.
const [base, mask] = [at("base"), at("mask")];
const MASK = "#f43f5e";
let source = null; // an ImageBitmap in its original size
let masked = false;
let brush_position = null; // position of the brush for keyboard input, in pixels of the image

// Returns a supported size with this aspect ratio and about the default number of pixels of the model.
function fitted_size(width, height) {
  const { multiple, max_side, max_pixels, defaults } = model;
  const scale = Math.sqrt(Math.min(defaults.width * defaults.height, max_pixels) / (width * height));
  const side = length => Math.min(Math.max(multiple, Math.round(length * scale / multiple) * multiple), Math.floor(max_side / multiple) * multiple);
  let [w, h] = [side(width), side(height)];
  while (w * h > max_pixels) w > h ? w -= multiple : h -= multiple;
  return [w, h];
}

async function set_input_image(blob) {
  let read;
  try {
    read = await createImageBitmap(blob);
  } catch {
    return fail("The browser cannot read this file as an image.");
  }
  source?.close();
  source = read;
  [at("width").value, at("height").value] = fitted_size(read.width, read.height);
  at("input-image").hidden = false;
  at("choose").hidden = true;
  draw_input_image();
  announce("Image selected. Draw over the part to regenerate.");
  update();
}

// Draws the image in the requested size, cropped to its aspect ratio, and clears the mask.
function draw_input_image() {
  if (!source) return;
  const [width, height] = [Number(at("width").value), Number(at("height").value)];
  if (!(width > 0 && height > 0 && width <= model.max_side && height <= model.max_side)) return;
  for (const canvas of [base, mask]) [canvas.width, canvas.height] = [width, height];
  const scale = Math.max(width / source.width, height / source.height);
  const [w, h] = [source.width * scale, source.height * scale];
  const context = base.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(source, (width - w) / 2, (height - h) / 2, w, h);
  clear_mask();
}

function clear_mask() {
  mask.getContext("2d").clearRect(0, 0, mask.width, mask.height);
  masked = false;
  at("clear-mask").disabled = true;
  set_default_strength();
}

// With a mask, nothing of the masked part needs to be preserved.
function set_default_strength() {
  at("strength").value = masked ? 1 : 0.8;
  show_values();
}

function remove_input_image() {
  source?.close();
  source = null;
  at("input-image").hidden = true;
  at("choose").hidden = false;
  at("file").value = "";
  at("choose").focus();
  update();
}

// Returns the request fields of the input image and mask.
function input_fields() {
  if (!source) return {};
  const fields = { image: base.toDataURL("image/png"), strength: Number(at("strength").value) };
  if (masked) {
    const flat = element("canvas", { width: mask.width, height: mask.height }), context = flat.getContext("2d");
    context.drawImage(mask, 0, 0);
    // White is regenerated, black is preserved.
    context.globalCompositeOperation = "source-in";
    context.fillStyle = "#fff";
    context.fillRect(0, 0, flat.width, flat.height);
    context.globalCompositeOperation = "destination-over";
    context.fillStyle = "#000";
    context.fillRect(0, 0, flat.width, flat.height);
    fields.mask = flat.toDataURL("image/png");
  }
  return fields;
}

// Converts screen pixels to image pixels.
const display_scale = () => mask.width / mask.getBoundingClientRect().width;
function stroke(from, to) {
  const context = mask.getContext("2d");
  context.strokeStyle = MASK;
  context.lineCap = context.lineJoin = "round";
  context.lineWidth = Number(at("brush").value) * display_scale();
  context.beginPath();
  context.moveTo(...from);
  // The offset makes a single click visible.
  context.lineTo(to[0] + 0.01, to[1]);
  context.stroke();
  if (masked) return;
  masked = true;
  at("clear-mask").disabled = false;
  set_default_strength();
}
function point(event) {
  const box = mask.getBoundingClientRect();
  return [(event.clientX - box.left) * mask.width / box.width, (event.clientY - box.top) * mask.height / box.height];
}
function show_cursor([x, y]) {
  const cursor = at("cursor"), size = `${at("brush").value}px`;
  Object.assign(cursor.style, { width: size, height: size, left: `${100 * x / mask.width}%`, top: `${100 * y / mask.height}%` });
  cursor.hidden = false;
}

let last = null;
mask.addEventListener("pointerdown", event => {
  if (event.button !== 0) return;
  mask.setPointerCapture(event.pointerId);
  last = point(event);
  stroke(last, last);
});
mask.addEventListener("pointermove", event => {
  show_cursor(point(event));
  if (!last) return;
  const moved = event.getCoalescedEvents?.() ?? [];
  for (const next of (moved.length ? moved : [event]).map(point)) {
    stroke(last, next);
    last = next;
  }
});
for (const end of ["pointerup", "pointercancel"]) mask.addEventListener(end, () => { last = null; });
mask.addEventListener("pointerleave", () => { if (!last) at("cursor").hidden = true; });
mask.addEventListener("keydown", event => {
  const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!move && event.key !== " ") return;
  event.preventDefault();
  brush_position ??= [mask.width / 2, mask.height / 2];
  const by = Number(at("brush").value) * display_scale() / 2;
  if (move) brush_position = [0, 1].map(i => Math.min(Math.max(brush_position[i] + move[i] * by, 0), [mask.width, mask.height][i]));
  else stroke(brush_position, brush_position);
  show_cursor(brush_position);
});
mask.addEventListener("blur", () => { at("cursor").hidden = true; });

at("choose").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", () => { if (at("file").files[0]) set_input_image(at("file").files[0]); });
at("clear-mask").addEventListener("click", () => { clear_mask(); announce("Mask cleared."); });
at("remove").addEventListener("click", remove_input_image);
for (const id of ["width", "height"]) at(id).addEventListener("change", draw_input_image);

// Images can be dropped anywhere on the page, or pasted.
const image_files = transfer => [...(transfer?.files ?? [])].filter(file => file.type.startsWith("image/"));
document.addEventListener("dragover", event => {
  event.preventDefault();
  document.body.classList.toggle("dropping", is_described());
});
for (const end of ["dragleave", "drop"]) document.addEventListener(end, () => document.body.classList.remove("dropping"));
document.addEventListener("drop", event => {
  event.preventDefault();
  const [file] = image_files(event.dataTransfer);
  if (file && is_described()) set_input_image(file);
});
document.addEventListener("paste", event => {
  const [file] = image_files(event.clipboardData);
  if (!file || !is_described()) return;
  event.preventDefault();
  set_input_image(file);
});

