"""Tests the chat page in headless Chromium, and saves screenshots in light and dark mode.

    python3 chat_page.py http://127.0.0.1:8081 FOLDER
"""
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from checks import check, report
from pages import BASE, browser, check_logs, screenshot

TIMEOUT = 60

page = browser()
try:
    wait = WebDriverWait(page, TIMEOUT)
    at = lambda id: page.find_element(By.ID, id)
    turns = lambda: [turn.text for turn in page.find_elements(By.CSS_SELECTOR, "#log .turn.assistant .body")]
    idle = lambda _: at("send").is_displayed() and not at("stop").is_displayed()
    page.get(BASE)
    wait.until(lambda _: "ready" in at("lamp").get_attribute("class"))
    screenshot(page, "empty")

    # At temperature 0, the same message has the same answer.
    at("open-settings").click()
    check("settings open", at("settings").is_displayed())
    page.execute_script(
        "for (const [id, value] of [['temperature', 0], ['max_tokens', 40]]) {"
        "const field = document.getElementById(id); field.value = value;"
        "field.dispatchEvent(new Event('input', {bubbles: true}));"
        "field.dispatchEvent(new Event('change', {bubbles: true})); }")
    screenshot(page, "settings")
    page.find_element(By.CSS_SELECTOR, "#settings .ends .main").click()
    check("settings closed", not at("settings").is_displayed())
    for _ in range(2):
        at("prompt").send_keys("Anna lives", Keys.ENTER)
        wait.until(idle)
    answers = turns()
    check("two answers", len(answers) == 2 and answers[0].strip(), answers)
    check("the same answer", answers[0] == answers[1], answers)
    screenshot(page, "answers")

    # Shift+Enter inserts a line break.
    at("prompt").send_keys("first", Keys.SHIFT, Keys.ENTER)
    at("prompt").send_keys(Keys.NULL, "second")
    check("a line break", at("prompt").get_attribute("value") == "first\nsecond", at("prompt").get_attribute("value"))
    at("prompt").clear()

    # Markup in messages is shown as text and never executed.
    at("prompt").send_keys("<img src=x onerror=document.title='broken'>", Keys.ENTER)
    wait.until(idle)
    check("markup is text", page.title != "broken" and not page.find_elements(By.CSS_SELECTOR, "#log img"), page.title)

    at("clear").click()
    check("a conversation is cleared", turns() == [], turns())
    check_logs(page)
finally:
    page.quit()
report("chat_page")
