// The picture to begin with, and the mask that is drawn over it.
const [base, mask] = [at("base"), at("mask")];
const MASK = "#f43f5e";
let source = null; // an ImageBitmap, as large as it came
let masked = false;
let brush_at = null; // where the keyboard has the brush, in the picture's pixels

// The size that a picture of this shape has here: about as many pixels as the model was made for.
function fitting(width, height) {
  const { multiple, max_side, max_pixels, defaults } = model;
  const scale = Math.sqrt(Math.min(defaults.width * defaults.height, max_pixels) / (width * height));
  const side = length => Math.min(Math.max(multiple, Math.round(length * scale / multiple) * multiple), Math.floor(max_side / multiple) * multiple);
  let [w, h] = [side(width), side(height)];
  while (w * h > max_pixels) w > h ? w -= multiple : h -= multiple;
  return [w, h];
}

async function begin_with(blob) {
  let read;
  try {
    read = await createImageBitmap(blob);
  } catch {
    return fail("The browser cannot read this file as an image.");
  }
  source?.close();
  source = read;
  [at("width").value, at("height").value] = fitting(read.width, read.height);
  at("given").hidden = false;
  at("choose").hidden = true;
  draw_given();
  say("The image is chosen. Draw over the part to generate anew.");
  update();
}

// Draws the picture as large as asked, cut to its shape, without a mask.
function draw_given() {
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
  strength_for_mask();
}

// Behind a mask nothing need be kept.
function strength_for_mask() {
  at("strength").value = masked ? 1 : 0.8;
  values();
}

function forget_given() {
  source?.close();
  source = null;
  at("given").hidden = true;
  at("choose").hidden = false;
  at("file").value = "";
  at("choose").focus();
  update();
}

// What is asked of the server beside the prompt.
function given_fields() {
  if (!source) return {};
  const fields = { image: base.toDataURL("image/png"), strength: Number(at("strength").value) };
  if (masked) {
    const flat = element("canvas", { width: mask.width, height: mask.height }), context = flat.getContext("2d");
    context.drawImage(mask, 0, 0);
    // Light is painted anew, dark is kept.
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

// The brush is as large on the picture as on the screen.
const shown_scale = () => mask.width / mask.getBoundingClientRect().width;
function stroke(from, to) {
  const context = mask.getContext("2d");
  context.strokeStyle = MASK;
  context.lineCap = context.lineJoin = "round";
  context.lineWidth = Number(at("brush").value) * shown_scale();
  context.beginPath();
  context.moveTo(...from);
  // A dab, too, is a line.
  context.lineTo(to[0] + 0.01, to[1]);
  context.stroke();
  if (masked) return;
  masked = true;
  at("clear-mask").disabled = false;
  strength_for_mask();
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
  brush_at ??= [mask.width / 2, mask.height / 2];
  const by = Number(at("brush").value) * shown_scale() / 2;
  if (move) brush_at = [0, 1].map(i => Math.min(Math.max(brush_at[i] + move[i] * by, 0), [mask.width, mask.height][i]));
  else stroke(brush_at, brush_at);
  show_cursor(brush_at);
});
mask.addEventListener("blur", () => { at("cursor").hidden = true; });

at("choose").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", () => { if (at("file").files[0]) begin_with(at("file").files[0]); });
at("clear-mask").addEventListener("click", () => { clear_mask(); say("The mask is clear."); });
at("remove").addEventListener("click", forget_given);
for (const id of ["width", "height"]) at(id).addEventListener("change", draw_given);

// A picture may be dropped anywhere, or pasted.
const pictures_of = transfer => [...(transfer?.files ?? [])].filter(file => file.type.startsWith("image/"));
document.addEventListener("dragover", event => {
  event.preventDefault();
  document.body.classList.toggle("dropping", usable());
});
for (const end of ["dragleave", "drop"]) document.addEventListener(end, () => document.body.classList.remove("dropping"));
document.addEventListener("drop", event => {
  event.preventDefault();
  const [file] = pictures_of(event.dataTransfer);
  if (file && usable()) begin_with(file);
});
document.addEventListener("paste", event => {
  const [file] = pictures_of(event.clipboardData);
  if (!file || !usable()) return;
  event.preventDefault();
  begin_with(file);
});

