// ControlNet: its model, and the image that generated images follow.
const MAX_CONTROL_SIDE = 2048; // larger images are scaled down before they are sent
let control_url = ""; // the image as a data URL

function list_controlnets() {
  at("control").hidden = !model.controlnets.length;
  at("controlnet").replaceChildren(...["", ...model.controlnets].map(value => element("option", { value, textContent: value || "None" })));
  show_control();
}

function show_control() {
  at("control-settings").hidden = !at("controlnet").value;
  at("choose-control").textContent = control_url ? "Choose another image" : "Choose the image to follow";
  Object.assign(at("control-image"), { src: control_url, hidden: !control_url });
}

async function set_control_image(blob) {
  let read;
  try {
    read = await createImageBitmap(blob);
  } catch {
    return fail("The browser cannot read this file as an image.");
  }
  const scale = Math.min(1, MAX_CONTROL_SIDE / Math.max(read.width, read.height));
  const [width, height] = [read.width, read.height].map(side => Math.max(1, Math.round(side * scale)));
  const canvas = element("canvas", { width, height });
  canvas.getContext("2d").drawImage(read, 0, 0, width, height);
  read.close();
  control_url = canvas.toDataURL("image/png");
  show_control();
  announce("Image to follow selected.");
}

// Returns the request field of the ControlNet. Without an image, it has no effect.
function control_fields() {
  const name = at("controlnet").value;
  if (!name || !control_url) return {};
  return { controlnets: [{ model: name, image: control_url, weight: Number(at("control-weight").value), fit: "crop" }] };
}

at("controlnet").addEventListener("change", show_control);
at("choose-control").addEventListener("click", () => at("control-file").click());
at("control-file").addEventListener("change", () => { if (at("control-file").files[0]) set_control_image(at("control-file").files[0]); });

