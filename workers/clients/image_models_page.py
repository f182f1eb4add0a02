"""Tests the image page of a worker with several models, which are loaded on demand, in headless Chromium.

    python3 image_models_page.py http://127.0.0.1:8082 FOLDER
"""
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from checks import check, report
from pages import BASE, SIZES, browser, check_logs, screenshot, waiting

# Records every text of the progress.
RECORD = """
    window.seen = [];
    new MutationObserver(records => { for (const { addedNodes } of records) window.seen.push(addedNodes[0]?.data); })
        .observe(document.getElementById("progress-text"), { childList: true });"""

page = browser()
try:
    wait = waiting(page)
    at = lambda id: page.find_element(By.ID, id)
    shown = lambda id: at(id).is_displayed()
    history = lambda: page.find_elements(By.CSS_SELECTOR, "#history button")

    page.set_window_size(*SIZES["wide"])
    page.get(BASE)
    wait.until(lambda _: "ready" in at("lamp").get_attribute("class"))
    names = [option.get_attribute("value") for option in at("model-choice").find_elements(By.TAG_NAME, "option")]
    check("models to choose from", shown("model-field") and len(names) == 2, names)
    page.execute_script(RECORD)
    for i, name in enumerate(names[::-1]):
        page.execute_script(
            "const field = arguments[0]; field.value = arguments[1]; field.dispatchEvent(new Event('change', {bubbles: true}));",
            at("model-choice"), name)
        at("prompt").clear()
        at("prompt").send_keys("a red circle on blue", Keys.ENTER)
        wait.until(lambda _: shown("go") and (len(history()) == i + 1 or shown("failure")))
        check("no failure", not shown("failure"), at("failure").text)
        seen = page.execute_script("return window.seen")
        check("loading is shown", f"Loading {name}…" in seen, seen)
        check("settings of the model", int(at("width").get_attribute("value") or 0) > 0)
        screenshot(page, name)
    check_logs(page)
finally:
    page.quit()
report("image_models_page")
