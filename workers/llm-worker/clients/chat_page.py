"""The chat page in headless Chromium: writes, waits, stops, sets; leaves pictures in light and dark.

    python3 chat_page.py http://127.0.0.1:8081 FOLDER
"""
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

BASE, FOLDER = sys.argv[1], Path(sys.argv[2])
PATIENCE = 60
SIZES = {"wide": (1200, 800), "narrow": (390, 844)}
COUNT = 0


def check(what, condition, seen=""):
    global COUNT
    if not condition:
        sys.exit(f"{what}: {seen}")
    COUNT += 1


def browser():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    return webdriver.Chrome(options=options, service=service)


def picture(page, name):
    for size, (width, height) in SIZES.items():
        page.set_window_size(width, height)
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            check(f"picture {name}", page.save_screenshot(str(FOLDER / f"{name}-{size}-{scheme}.png")))
    page.set_window_size(*SIZES["wide"])


page = browser()
try:
    wait = WebDriverWait(page, PATIENCE)
    at = lambda id: page.find_element(By.ID, id)
    turns = lambda: [turn.text for turn in page.find_elements(By.CSS_SELECTOR, "#log .turn.assistant .body")]
    idle = lambda _: at("send").is_displayed() and not at("stop").is_displayed()
    page.get(BASE)
    wait.until(lambda _: "ready" in at("lamp").get_attribute("class"))
    picture(page, "empty")

    # The same words twice at temperature 0 have the same answer.
    at("open-settings").click()
    check("settings open", at("settings").is_displayed())
    page.execute_script(
        "for (const [id, value] of [['temperature', 0], ['max_tokens', 40]]) {"
        "const field = document.getElementById(id); field.value = value;"
        "field.dispatchEvent(new Event('input', {bubbles: true}));"
        "field.dispatchEvent(new Event('change', {bubbles: true})); }")
    picture(page, "settings")
    page.find_element(By.CSS_SELECTOR, "#settings .ends .main").click()
    check("settings closed", not at("settings").is_displayed())
    for _ in range(2):
        at("prompt").send_keys("Anna lives", Keys.ENTER)
        wait.until(idle)
    answers = turns()
    check("two answers", len(answers) == 2 and answers[0].strip(), answers)
    check("the same answer", answers[0] == answers[1], answers)
    picture(page, "answers")

    # Shift and Enter break the line.
    at("prompt").send_keys("first", Keys.SHIFT, Keys.ENTER)
    at("prompt").send_keys(Keys.NULL, "second")
    check("a line break", at("prompt").get_attribute("value") == "first\nsecond", at("prompt").get_attribute("value"))
    at("prompt").clear()

    # What is written is shown as it is, and never run.
    at("prompt").send_keys("<img src=x onerror=document.title='broken'>", Keys.ENTER)
    wait.until(idle)
    check("markup is text", page.title != "broken" and not page.find_elements(By.CSS_SELECTOR, "#log img"), page.title)

    at("clear").click()
    check("a conversation is cleared", turns() == [], turns())
    said = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    check("the console is silent", not said, said)
    asked = [entry["message"] for entry in page.get_log("performance") if '"Network.requestWillBeSent"' in entry["message"]]
    elsewhere = [text for text in asked if '"url":"http' in text and f'"url":"{BASE}' not in text]
    check("nothing from elsewhere", not elsewhere, elsewhere)
finally:
    page.quit()
print(f"chat_page={COUNT}")
