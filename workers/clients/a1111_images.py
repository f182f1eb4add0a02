"""Tests the API of AUTOMATIC1111's web UI with the tiny Stable Diffusion model through the package `webuiapi`, and prints
the number of successful checks.

    python3 a1111_images.py http://127.0.0.1:8082
"""
import base64
import io
import sys
import threading

import webuiapi
from PIL import Image, ImageChops, ImageDraw

from checks import check, fetch, report

BASE = sys.argv[1]
SETTINGS = dict(prompt="a red circle on blue", steps=6, seed=3, cfg_scale=4, width=64, height=64)

CORNERS = [(3, 3), (60, 3), (3, 60), (60, 60)]

api = webuiapi.WebUIApi(baseurl=f"{BASE}/sdapi/v1", sampler="DDIM")
check("models", len(api.util_get_model_names()) == 1, api.util_get_model_names())
check("current model", api.util_get_current_model() in api.util_get_model_names())
check("samplers", "Euler a" in api.util_get_sampler_names(), api.util_get_sampler_names())
check("schedulers", "karras" in api.util_get_scheduler_names())
check("LoRA files", [lora["name"] for lora in api.get_loras()] == ["corners"], api.get_loras())
check("ControlNets", api.controlnet_model_list() == ["silhouette"], api.controlnet_model_list())
check("only the module none", api.controlnet_module_list() == ["none"], api.controlnet_module_list())
api.util_set_model(api.util_get_model_names()[0])

made = api.txt2img(**SETTINGS)
check("size", made.image.size == (64, 64), made.image.size)
check("seed", made.info["all_seeds"] == [3], made.info)
check("text chunk", made.image.text["parameters"] == made.info["infotexts"][0], made.image.text)
body = dict(prompt=SETTINGS["prompt"], steps=6, seed=3, guidance=4, scheduler="ddim")
other = base64.b64decode(fetch(BASE, "/v1/images/generations", body)["data"][0]["b64_json"])
check("same image as OpenAI's API", Image.open(io.BytesIO(other)).tobytes() == made.image.tobytes())
info = api.png_info(made.image)
check("PNG info", info.info == made.info["infotexts"][0], info.info)
check("parsed info", info.parameters["Seed"] == "3", info.parameters)
two = api.txt2img(**SETTINGS | dict(n_iter=2, sampler_name="DPM++ 2M Karras", negative_prompt="(green:1.2)"))
check("two images", len(two.images) == 2 and two.images[0].tobytes() != two.images[1].tobytes())

near = lambda pixel, colour: all(abs(a - b) < 60 for a, b in zip(pixel, colour))
RED, BLUE = (215, 40, 40), (45, 80, 215)
plain = made.image.convert("RGB")
check("blue corners", all(near(plain.getpixel(at), BLUE) for at in CORNERS), [plain.getpixel(at) for at in CORNERS])
framed = api.txt2img(**SETTINGS | dict(prompt=SETTINGS["prompt"] + "<lora:corners:1>")).image.convert("RGB")
check("LoRA", all(near(framed.getpixel(at), RED) for at in CORNERS), [framed.getpixel(at) for at in CORNERS])
hint = Image.new("RGB", (64, 64))
ImageDraw.Draw(hint).ellipse((8, 34, 28, 54), fill="white")
unit = webuiapi.ControlNetUnit(image=hint, model="silhouette", module="none")
placed = api.txt2img(**SETTINGS | dict(controlnet_units=[unit])).image.convert("RGB")
seen = [placed.getpixel(at) for at in [(18, 44), (46, 20)]]
check("ControlNet", near(seen[0], RED) and near(seen[1], BLUE), seen)

changed = api.img2img(images=[made.image], denoising_strength=0.4, **SETTINGS | dict(prompt="a green circle on blue"))
check("image to image", changed.image.size == (64, 64))
mask = Image.new("L", (64, 64))
mask.paste(255, (0, 0, 32, 64))
painted = api.img2img(images=[made.image], mask_image=mask, **SETTINGS | dict(seed=4))
right = (32, 0, 64, 64)
difference = ImageChops.difference(painted.image.convert("RGB").crop(right), made.image.convert("RGB").crop(right))
check("outside of the mask", difference.getbbox() is None, difference.getbbox())

large = api.txt2img(**SETTINGS | dict(enable_hr=True, hr_scale=2)).image
check("hires fix doubles the sides", large.size == tuple(2 * side for side in made.image.size), large.size)

outcome = []


def run():
    try:
        outcome.append(api.txt2img(**SETTINGS | dict(steps=150)))
    except RuntimeError as error:
        outcome.append(error)


thread = threading.Thread(target=run)
thread.start()
while thread.is_alive() and webuiapi.WebUIApi(baseurl=api.baseurl).get_progress()["state"]["job_count"] == 0:
    pass
webuiapi.WebUIApi(baseurl=api.baseurl).interrupt()
thread.join()
check("interrupted", isinstance(outcome[0], RuntimeError) and outcome[0].args[0] == 409, outcome)
check("idle", api.get_progress()["state"]["job_count"] == 0)
report("a1111_images")
