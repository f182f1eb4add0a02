"""The page in headless Chromium: paints, waits, stops, masks, looks back; leaves pictures in light and dark.

    python3 paint_page.py http://127.0.0.1:8082 FOLDER
"""
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from checks import check, report
from pages import BASE, FOLDER, SIZES, browser, check_logs, picture

TIMEOUT = 120

page = browser()
try:
    wait = WebDriverWait(page, TIMEOUT, poll_frequency=0.05)
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

    def paint(count):
        before = len(history())
        at("prompt").send_keys(Keys.ENTER)
        wait.until(lambda _: len(history()) == before + count and shown("go"))
        check("no failure", not shown("failure"), at("failure").text)

    page.set_window_size(*SIZES["wide"])
    page.get(BASE)
    wait.until(lambda _: "ready" in at("lamp").get_attribute("class"))
    check("nothing to paint yet", not at("go").is_enabled())
    picture(page, "empty")

    # The same seed twice is the same picture.
    at("prompt").send_keys("a red circle on blue")
    side = int(at("width").get_attribute("value"))
    put(steps=8, seed=5)
    paint(1)
    first = source()
    check("a picture", first.startswith("data:image/png;base64,"))
    check("its size", page.execute_script("return document.getElementById('picture').naturalWidth") == side)
    check("its caption", f"seed 5" in at("caption").text, at("caption").text)
    paint(1)
    check("the same picture", source() == first)
    put(seed="", count=2)
    paint(2)
    check("another picture", source() != first)
    picture(page, "painted")

    # Those before are shown again, with their settings.
    history()[-1].click()
    check("the first again", source() == first)
    at("again").click()
    check("its seed", at("seed").get_attribute("value") == "5")
    put(count=1)

    # Progress and previews while it is made; then it is stopped.
    put(steps=60, width=4 * side, height=4 * side)
    at("prompt").send_keys(Keys.ENTER)
    wait.until(lambda _: "Step" in at("making-state").text and "small" in at("picture").get_attribute("class"))
    check("progress is told", int(at("bar").get_attribute("aria-valuenow")) > 0)
    picture(page, "painting")
    check("stop has the keyboard", page.switch_to.active_element.get_attribute("id") == "stop")
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait.until(lambda _: shown("go"))
    check("the picture before it is back", source() == first and len(history()) == 4)

    # Stopped before the server has said which job it is: that job is ended as soon as it is known.
    page.execute_script("""
        const real = window.fetch;
        window.asked = [];
        window.fetch = async (path, init) => {
            const answer = await real(path, init);
            if (init.method) window.asked.push(`${init.method} ${path} ${answer.status}`);
            if (init.method === "POST") await new Promise(done => { window.letGo = done; });
            return answer;
        };
        window.back = () => { window.fetch = real; };""")
    asked = lambda: page.execute_script("return window.asked")
    at("prompt").send_keys(Keys.ENTER)
    wait.until(lambda _: asked() and page.execute_script("return Boolean(window.letGo)"))
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    check("it waits for the job's name", shown("stop") and "Stopping" in at("making-state").text)
    page.execute_script("window.letGo()")
    wait.until(lambda _: shown("go") and len(asked()) == 2)
    check("the job is ended", asked()[0] == "POST v1/jobs 202" and asked()[1].startswith("DELETE v1/jobs/"), asked())
    check("that is no failure", not shown("failure") and source() == first)
    page.execute_script("window.back()")

    # Begins with a picture; what the mask leaves out stays.
    put(steps=6, seed=7, width=side, height=side)
    at("use").click()
    wait.until(lambda _: shown("given"))
    check("its size stays", at("width").get_attribute("value") == str(side))
    check("no mask yet", not at("clear-mask").is_enabled())
    canvas = at("mask")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    half = canvas.size["width"] // 4
    ActionChains(page).move_to_element(canvas).click_and_hold().move_by_offset(half, 10).release().perform()
    check("a mask", at("clear-mask").is_enabled() and float(at("strength").get_attribute("value")) == 1)
    canvas.send_keys(Keys.ARROW_UP, Keys.ARROW_UP, " ")
    picture(page, "mask")
    page.execute_script("arguments[0].scrollIntoView()", at("prompt"))
    paint(1)
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
            let left = 0, all = 0;
            a.forEach((value, i) => {
                if (value === b[i]) return;
                all += 1;
                if ((i / 4 | 0) % width < width / 8) left += 1;
            });
            done([left, all]);
        });""", first, source())
    check("what is kept is kept", same[0] == 0 and same[1] > 0, same)
    at("clear-mask").click()
    check("the mask is clear", not at("clear-mask").is_enabled())
    at("remove").click()
    check("the picture is gone", shown("choose") and not shown("given"))

    # A file that the keyboard chooses.
    file = FOLDER / "given.png"
    page.save_screenshot(str(file))
    at("file").send_keys(str(file.resolve()))
    wait.until(lambda _: shown("given"))
    width, height = (int(at(id).get_attribute("value")) for id in ("width", "height"))
    check("its shape", width > height and width % 8 == height % 8 == 0, (width, height))
    at("remove").click()

    # What the server refuses is told; what is written is shown as it is, and never run.
    put(width=side, height=side, seed=1, steps=2)
    page.execute_script("document.getElementById('scheduler').append(new Option('magic', 'magic', true, true))")
    at("prompt").send_keys(Keys.ENTER)
    wait.until(lambda _: shown("failure"))
    check("the field is named", "scheduler" in at("failure").text, at("failure").text)
    picture(page, "refused")
    put(scheduler="ddim")
    at("prompt").clear()
    at("prompt").send_keys("<img src=x onerror=document.title='broken'>")
    paint(1)
    check("markup is text", page.title != "broken" and "<img" in at("caption").text, at("caption").text)

    check_logs(page, "400 (Bad Request)")
finally:
    page.quit()
report("paint_page")
