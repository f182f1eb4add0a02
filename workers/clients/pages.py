"""A worker's page in headless Chromium."""
import sys
from pathlib import Path

from selenium import webdriver

from checks import check

BASE, FOLDER = sys.argv[1].rstrip("/"), Path(sys.argv[2])
SIZES = {"wide": (1280, 860), "narrow": (390, 844)}


def browser():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    return webdriver.Chrome(options=options, service=service)


def picture(page, name):
    """Leaves pictures of the page in both sizes, light and dark."""
    for size, (width, height) in SIZES.items():
        page.set_window_size(width, height)
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            check(f"picture {name}", page.save_screenshot(str(FOLDER / f"{name}-{size}-{scheme}.png")))
    page.set_window_size(*SIZES["wide"])


def check_logs(page, expected="\0"):
    """The console has no errors, except those with the text `expected`, and nothing was asked elsewhere."""
    said = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    said = [entry for entry in said if expected not in entry["message"]]
    check("the console is silent", not said, said)
    asked = [entry["message"] for entry in page.get_log("performance") if '"Network.requestWillBeSent"' in entry["message"]]
    elsewhere = [text[:300] for text in asked if '"url":"http' in text and f'"url":"{BASE}' not in text]
    check("nothing from elsewhere", not elsewhere, elsewhere)
