"""Tests image generation with the tiny Stable Diffusion model through the official `openai` package, and prints the
number of successful checks.

    python3 openai_images.py http://127.0.0.1:8082
"""
import base64
import io
import sys

import openai
from PIL import Image

from checks import TIMEOUT, check, refused, report

BASE = sys.argv[1]
COLOURS = {"red": (215, 40, 40), "blue": (45, 80, 215), "white": (245, 245, 245), "green": (40, 165, 60)}
STEPS = 8

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT)
models = client.models.list().data
check("models", len(models) == 1, models)
MODEL = models[0].id


def generate(prompt, steps=STEPS, seed=1, extra={}, **fields):
    extra = dict(steps=steps, seed=seed, guidance=4.0) | extra
    return client.images.generate(model=MODEL, prompt=prompt, extra_body=extra, **fields)


def check_refused(what, param, **fields):
    refused(what, openai.BadRequestError, param, lambda: generate("a red circle on blue", **fields))


def picture(image):
    return Image.open(io.BytesIO(base64.b64decode(image.b64_json))).convert("RGB")


def near(pixel):
    return min(COLOURS, key=lambda name: sum((a - b) ** 2 for a, b in zip(pixel, COLOURS[name])))


def colours(image):
    """Returns the most frequent colour other than the background, and the background, the most frequent one at the edge."""
    width, height = image.size
    pixels = {(x, y): near(image.getpixel((x, y))) for x in range(width) for y in range(height)}
    most = lambda names: max(COLOURS, key=list(names).count)
    ground = most(name for (x, y), name in pixels.items() if x in (0, width - 1) or y in (0, height - 1))
    return most(name for name in pixels.values() if name != ground), ground


one = generate("a red circle on blue")
check("one image", picture(one.data[0]).size == (64, 64), picture(one.data[0]).size)
check("red on blue", colours(picture(one.data[0])) == ("red", "blue"), colours(picture(one.data[0])))
check("same seed", generate("a red circle on blue").data[0].b64_json == one.data[0].b64_json)
other = generate("a white star on green", size="64x64", n=2)
check("two images", len(other.data) == 2 and other.data[0].b64_json != other.data[1].b64_json)
for image in other.data:
    check("white on green", colours(picture(image)) == ("white", "green"), colours(picture(image)))
check("JPEG", base64.b64decode(generate("a red ring on white", steps=1, output_format="jpeg").data[0].b64_json)[:2] == b"\xff\xd8")
# PNDM extrapolates from four steps, which diverges with few of them.
for scheduler, steps in [("pndm", 20)] + [(name, STEPS) for name in ("euler", "euler-a", "heun", "dpm++2m", "unipc")]:
    image = generate("a big red square on blue", steps=steps, extra=dict(scheduler=scheduler)).data[0]
    seen = colours(picture(image))
    check(scheduler, seen == ("red", "blue"), seen)

# Pixels outside the mask stay bit-identical. Transparent pixels of the mask are regenerated.
given, mask = picture(one.data[0]), Image.new("RGBA", (64, 64), (0, 0, 0, 255))
mask.paste((0, 0, 0, 0), (32, 0, 64, 64))
files = []
for image in (given, mask):
    file = io.BytesIO()
    image.save(file, "PNG")
    files.append(("image.png", file.getvalue(), "image/png"))
extra = dict(steps=STEPS, seed=3, guidance=4.0)
edited = client.images.edit(model=MODEL, image=files[0], mask=files[1], prompt="a white star on green", extra_body=extra)
edited = picture(edited.data[0])
left = (0, 0, 32, 64)
check("a mask", edited.crop(left).tobytes() == given.crop(left).tobytes() and edited != given)
changed = client.images.edit(model=MODEL, image=files[0], prompt="a green circle on blue", extra_body=extra | {"strength": 0.9})
check("image to image", picture(changed.data[0]) != given)

check_refused("size not a multiple of 8", "size", size="60x64")
check_refused("oversized image", "size", size="65536x65536")
check_refused("zero steps", "steps", steps=0)
check_refused("negative guidance", "guidance", extra=dict(guidance=-1))
check_refused("response as URL", "response_format", response_format="url")
check_refused("transparent background", "background", background="transparent")
report("openai_images")
