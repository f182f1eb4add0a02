"""Helpers for tests of web pages in headless Chromium."""
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from checks import TIMEOUT, check

BASE, FOLDER = sys.argv[1].rstrip("/"), Path(sys.argv[2])
SIZES = {"wide": (1280, 860), "narrow": (390, 844)}



def browser():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(FOLDER.resolve())})
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    page = webdriver.Chrome(options=options, service=service)
    page.set_script_timeout(TIMEOUT)
    return page


def waiting(page):
    """Returns an object that waits for a state of the page."""
    return WebDriverWait(page, TIMEOUT, poll_frequency=0.05)


def screenshot(page, name):
    """Saves screenshots of the page in both sizes, in light and dark mode."""
    for size, (width, height) in SIZES.items():
        page.set_window_size(width, height)
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            check(f"screenshot {name}", page.save_screenshot(str(FOLDER / f"{name}-{size}-{scheme}.png")))
    page.set_window_size(*SIZES["wide"])
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def check_logs(page, expected="\0", base=BASE):
    """Checks that the console has no errors, except those that contain `expected`, and that only `base` was contacted."""
    errors = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    errors = [entry for entry in errors if expected not in entry["message"]]
    check("no console errors", not errors, errors)
    requests = [entry["message"] for entry in page.get_log("performance") if '"Network.requestWillBeSent"' in entry["message"]]
    external = [text[:300] for text in requests if '"url":"http' in text and f'"url":"{base}' not in text]
    check("no external requests", not external, external)
