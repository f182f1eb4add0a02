"""Tests the image page in headless Chromium, and saves screenshots in light and dark mode.

    python3 image_page.py http://127.0.0.1:8082 FOLDER
"""
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from checks import check, report
from pages import BASE, FOLDER, SIZES, browser, check_logs, screenshot, waiting

# Records every text of the progress and every previous class of the picture; queries could miss short states.
RECORD = """
    window.seen = [];
    const observer = new MutationObserver(records => {
        for (const { addedNodes, oldValue } of records) window.seen.push(addedNodes[0]?.data ?? oldValue);
    });
    observer.observe(document.getElementById("progress-text"), { childList: true });
    observer.observe(document.getElementById("picture"), { attributeFilter: ["class"], attributeOldValue: true });
    window.stop_recording = () => observer.disconnect();"""
# Withholds the events after the first preview, so that the page shows it until the job is stopped.
HOLD = """
    const real = window.fetch;
    window.asked = [];
    window.fetch = async (path, init) => {
        const answer = await real(path, init);
        if (init.method) window.asked.push(init.method);
        if (!path.endsWith("/stream")) return answer;
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let text = "", preview = null;
        return new Response(new ReadableStream({
            start: controller => init.signal.addEventListener("abort", () => controller.error(init.signal.reason)),
            pull: async controller => {
                if (preview) return;
                const { value, done } = await reader.read();
                if (done) throw new Error("the job ended without a preview");
                const start = text.length;
                text += value;
                preview = /event: ?preview\\n[^]*?\\n\\n/.exec(text);
                const end = preview ? preview.index + preview[0].length : text.length;
                controller.enqueue(new TextEncoder().encode(text.slice(start, end)));
            },
        }));
    };
    window.restore = () => { window.fetch = real; };"""

page = browser()
try:
    wait = waiting(page)
    at = lambda id: page.find_element(By.ID, id)
    shown = lambda id: at(id).is_displayed()
    history = lambda: page.find_elements(By.CSS_SELECTOR, "#history button")
    source = lambda: at("picture").get_attribute("src")

    def put(**fields):
        for id, value in fields.items():
            page.execute_script(
                "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
                "for (const type of ['input', 'change']) field.dispatchEvent(new Event(type, {bubbles: true}));",
                id, str(value))

    def generate(count):
        before = len(history())
        at("prompt").send_keys(Keys.ENTER)
        wait.until(lambda _: shown("go"))
        check("no failure", not shown("failure"), at("failure").text)
        check("images in the history", len(history()) == before + count, len(history()))

    page.set_window_size(*SIZES["wide"])
    page.get(BASE)
    wait.until(lambda _: "ready" in at("lamp").get_attribute("class"))
    check("no prompt yet", not at("go").is_enabled())
    check("one model", not shown("model-field"))
    check("checkboxes beside their labels", all(at(id).size["width"] < 30 for id in ["karras", "hires"]))
    screenshot(page, "empty")

    # The same seed generates the same image.
    at("prompt").send_keys("a red circle on blue")
    side = int(at("width").get_attribute("value"))
    put(steps=8, seed=5)
    page.execute_script(RECORD)
    generate(1)
    seen = page.execute_script("window.stop_recording(); return window.seen")
    check("progress", "Step 1 of 8" in seen and "Step 8 of 8 · finishing" in seen, seen)
    check("time left", any(text.startswith("Step 4 of 8") and text.endswith(" s left") for text in seen), seen)
    check("preview", "small" in seen, seen)
    first = source()
    check("image shown", first.startswith("data:image/png;base64,"))
    check("image size", page.execute_script("return document.getElementById('picture').naturalWidth") == side)
    check("caption", f"seed 5" in at("caption").text, at("caption").text)
    generate(1)
    check("same image", source() == first)
    put(seed="", count=2)
    generate(2)
    check("different image", source() != first)
    screenshot(page, "generated")

    # A second pass enlarges the image.
    put(count=1, seed=5)
    check("no settings of the second pass yet", not shown("hires-settings"))
    at("hires").click()
    put(**{"hires-scale": 1.5, "hires-upscaler": "Latent (bicubic)", "hires-strength": 0.6})
    check("strength of the second pass", at("hires-strength-value").text == "0.60", at("hires-strength-value").text)
    screenshot(page, "hires")
    generate(1)
    width_of = "return document.getElementById('picture').naturalWidth"
    check("larger image", page.execute_script(width_of) == side * 3 // 2, page.execute_script(width_of))
    at("hires").click()
    check("settings of the second pass hidden", not shown("hires-settings"))

    # A LoRA in the prompt, and a ControlNet that follows the first image, change the image; without them it is the same.
    plain_prompt = at("prompt").get_attribute("value")
    at("prompt").send_keys(" <lora:corners:1>")
    generate(1)
    check("LoRA changes the image", source() != first)
    at("prompt").clear()
    at("prompt").send_keys(plain_prompt)
    if shown("control"):
        names = [option.get_attribute("value") for option in at("controlnet").find_elements(By.TAG_NAME, "option")]
        put(controlnet=names[1])
        check("settings of the ControlNet", shown("control-settings") and not shown("control-image"))
        followed = FOLDER / "followed.png"
        at("picture").screenshot(str(followed))
        at("control-file").send_keys(str(followed.resolve()))
        wait.until(lambda _: shown("control-image"))
        screenshot(page, "controlnet")
        generate(1)
        check("ControlNet changes the image", source() != first)
        put(controlnet="")
    generate(1)
    check("same image as at first", source() == first)

    # Images of the history can be shown again, and their settings copied.
    history()[-1].click()
    check("first image shown again", source() == first)
    at("copy-settings").click()
    check("copied seed", at("seed").get_attribute("value") == "5")
    put(count=1)

    # The page during generation, and stopping.
    made = len(history())
    put(steps=60)
    page.execute_script(HOLD)
    at("prompt").send_keys(Keys.ENTER)
    wait.until(lambda _: "small" in at("picture").get_attribute("class") or shown("go"))
    check("progress shown", at("progress-text").text.startswith("Step 5 of 60"), at("progress-text").text)
    check("bar", at("bar").get_attribute("aria-valuenow") == "8", at("bar").get_attribute("aria-valuenow"))
    screenshot(page, "generating")
    check("stop button focused", page.switch_to.active_element.get_attribute("id") == "stop")
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait.until(lambda _: shown("go"))
    check("previous image shown again", source() == first and len(history()) == made)
    check("job stopped", not shown("failure"), at("failure").text)
    wait.until(lambda _: page.execute_script("return window.asked.join() === 'POST,DELETE'"))
    page.execute_script("window.restore()")

    # Stopping before the server returns the job id: the job is cancelled once the id is known.
    page.execute_script("""
        const real = window.fetch;
        window.asked = [];
        window.fetch = async (path, init) => {
            const answer = await real(path, init);
            if (init.method) window.asked.push(`${init.method} ${path} ${answer.status}`);
            if (init.method === "POST") await new Promise(done => { window.resume = done; });
            return answer;
        };
        window.restore = () => { window.fetch = real; };""")
    asked = lambda: page.execute_script("return window.asked")
    at("prompt").send_keys(Keys.ENTER)
    wait.until(lambda _: asked() and page.execute_script("return Boolean(window.resume)"))
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    check("waits for the job id", shown("stop") and "Stopping" in at("progress-text").text)
    page.execute_script("window.resume()")
    wait.until(lambda _: shown("go") and len(asked()) == 2)
    check("job cancelled", asked()[0] == "POST v1/jobs 202" and asked()[1].startswith("DELETE v1/jobs/"), asked())
    check("no failure after stopping", not shown("failure") and source() == first)
    page.execute_script("window.restore()")

    # An input image: pixels outside the mask are preserved.
    put(steps=6, seed=7)
    at("use-as-input").click()
    wait.until(lambda _: shown("input-image"))
    check("size of the input image", at("width").get_attribute("value") == str(side))
    check("no mask yet", not at("clear-mask").is_enabled())
    canvas = at("mask")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    half = canvas.size["width"] // 4
    ActionChains(page).move_to_element(canvas).click_and_hold().move_by_offset(half, 10).release().perform()
    check("mask drawn", at("clear-mask").is_enabled() and float(at("strength").get_attribute("value")) == 1)
    canvas.send_keys(Keys.ARROW_UP, Keys.ARROW_UP, " ")
    screenshot(page, "mask")
    page.execute_script("arguments[0].scrollIntoView()", at("prompt"))
    generate(1)
    same = page.execute_async_script("""
        const [a, b, done] = arguments;
        const pixels = async url => {
            const image = new Image();
            image.src = url;
            await image.decode();
            const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            return context.getImageData(0, 0, image.width, image.height).data;
        };
        Promise.all([pixels(a), pixels(b)]).then(([a, b]) => {
            const width = Math.sqrt(a.length / 4);
            let outside = 0, all = 0;
            a.forEach((value, i) => {
                if (value === b[i]) return;
                all += 1;
                if ((i / 4 | 0) % width < width / 8) outside += 1;
            });
            done([outside, all]);
        });""", first, source())
    check("pixels outside the mask preserved", same[0] == 0 and same[1] > 0, same)
    at("clear-mask").click()
    check("mask cleared", not at("clear-mask").is_enabled())
    at("remove").click()
    check("input image removed", shown("choose") and not shown("input-image"))

    # An input image from a file.
    file = FOLDER / "input.png"
    page.save_screenshot(str(file))
    at("file").send_keys(str(file.resolve()))
    wait.until(lambda _: shown("input-image"))
    width, height = (int(at(id).get_attribute("value")) for id in ("width", "height"))
    check("aspect ratio", width > height and width % 8 == height % 8 == 0, (width, height))
    at("remove").click()

    # Server errors are shown. Markup in prompts is shown as text and never executed.
    put(width=side, height=side, seed=1, steps=2)
    page.execute_script("document.getElementById('scheduler').append(new Option('magic', 'magic', true, true))")
    at("prompt").send_keys(Keys.ENTER)
    wait.until(lambda _: shown("failure"))
    check("error names the field", "scheduler" in at("failure").text, at("failure").text)
    screenshot(page, "rejected")
    put(scheduler="ddim")
    at("prompt").clear()
    at("prompt").send_keys("<img src=x onerror=document.title='broken'>")
    generate(1)
    check("markup is text", page.title != "broken" and "<img" in at("caption").text, at("caption").text)

    # Settings, prompt and history survive a reload.
    value = lambda id: at(id).get_attribute("value")
    options = [option.get_attribute("value") for option in at("size").find_elements(By.TAG_NAME, "option")]
    put(size=options[1], steps=11, scheduler="euler")
    at("karras").click()
    width, height = options[1].split(" × ")
    check("size preset", (value("width"), value("height")) == (width, height) and int(width) > int(height), options)
    before = len(history())
    page.refresh()
    wait.until(lambda _: shown("go") and at("go").is_enabled())
    wait.until(lambda _: len(history()) == before)
    check("prompt after a reload", value("prompt").startswith("<img"), value("prompt"))
    check("settings after a reload", [value(id) for id in ("width", "height", "size", "steps", "scheduler")]
          == [width, height, options[1], "11", "euler"] and at("karras").is_selected())
    history()[-1].click()
    check("oldest image after a reload", source() == first)
    at("clear-history").click()
    check("history cleared", not history() and not shown("history-section") and not shown("image-info"))
    page.refresh()
    wait.until(lambda _: at("go").is_enabled())
    check("no history after a reload", not history())

    check_logs(page, "400 (Bad Request)")
finally:
    page.quit()
report("image_page")
