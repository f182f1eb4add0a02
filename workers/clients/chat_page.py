"""Tests the chat page in headless Chromium, and saves screenshots in light and dark mode.

    python3 chat_page.py http://127.0.0.1:8081 FOLDER

The first part talks to the worker. The others talk to a server with the worker's page and prepared answers.
"""
import json

from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from chat_mock import WORDS, Mock
from checks import check, report
from pages import BASE, FOLDER, SIZES, browser, check_logs, screenshot, waiting

page = browser()
wait = waiting(page)


def at(id):
    return page.find_element(By.ID, id)


def all_of(selector):
    return page.find_elements(By.CSS_SELECTOR, selector)


def texts(selector):
    """Returns the texts of the elements, of one moment."""
    return script("return [...document.querySelectorAll(arguments[0])].map(found => found.innerText.trim())", selector)


def answers():
    return texts("#log .turn.assistant .body")


def idle(_=None):
    return at("send").is_displayed() and not at("stop").is_displayed()


def ready(_=None):
    return "ready" in at("lamp").get_attribute("class")


def script(text, *arguments):
    return page.execute_script(text, *arguments)


def style(selector, name):
    return script("return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])", selector, name)


def ask(text, done=idle):
    at("prompt").send_keys(text, Keys.ENTER)
    wait.until(done)


def press(*keys):
    """Presses the last key while the others are held."""
    chain = ActionChains(page)
    for key in keys[:-1]:
        chain.key_down(key)
    chain.send_keys(keys[-1])
    for key in keys[:-1]:
        chain.key_up(key)
    chain.perform()


def click(selector, place=-1):
    script("[...document.querySelectorAll(arguments[0])].at(arguments[1]).click()", selector, place)


def button(label, place=-1):
    """Clicks a button of the conversation by its name."""
    click(f"#log button[title='{label}']", place)


def reload():
    page.refresh()
    wait.until(ready)


def entries():
    return texts("#list .entry .name")


def test_worker():
    """The page with the worker's own model."""
    page.get(BASE)
    wait.until(ready)
    screenshot(page, "empty")

    # At temperature 0, the same message has the same answer.
    at("open-settings").click()
    check("settings open", at("settings").is_displayed())
    script(
        "for (const [id, value] of [['temperature', 0], ['max_tokens', 40]]) {"
        "const field = document.getElementById(id); field.value = value;"
        "field.dispatchEvent(new Event('input', {bubbles: true}));"
        "field.dispatchEvent(new Event('change', {bubbles: true})); }")
    screenshot(page, "settings")
    page.find_element(By.CSS_SELECTOR, "#settings .ends .main").click()
    check("settings closed", not at("settings").is_displayed())
    for _ in range(2):
        ask("Anna lives")
    check("two answers", len(answers()) == 2 and answers()[0].strip(), answers())
    check("the same answer", answers()[0] == answers()[1], answers())
    rates = [float(text.split(" tokens/s")[0].split()[-1]) for text in texts(".figures") if "tokens/s" in text]
    check("plausible speed", all(0 < rate < 20000 for rate in rates), rates)
    screenshot(page, "answers")

    # Shift+Enter inserts a line break.
    at("prompt").send_keys("first", Keys.SHIFT, Keys.ENTER)
    at("prompt").send_keys(Keys.NULL, "second")
    check("a line break", at("prompt").get_attribute("value") == "first\nsecond", at("prompt").get_attribute("value"))
    at("prompt").clear()

    # Markup in messages is shown as text and never executed.
    ask("<img src=x onerror=document.title='broken'>")
    check("markup is text", page.title != "broken" and not all_of("#log img"), page.title)

    # A reload keeps the conversation.
    before = answers()
    reload()
    wait.until(lambda _: len(answers()) == 3)
    check("kept after a reload", answers() == before, answers())
    at("new-chat").click()
    check("a new chat is empty", answers() == [], answers())
    check_logs(page)


def test_rendering():
    ask("markdown")
    body = "#log .turn.assistant .markdown"
    html = "return document.querySelector('#log .markdown').outerHTML"
    streamed = script(html)
    reload()
    wait.until(lambda _: all_of(body))
    check("the same after a reload", script(html) == streamed, (script(html), streamed))
    check("formulas", len(all_of(f"{body} math")) == 4, len(all_of(f"{body} math")))
    check("two displayed formulas", len(all_of(f"{body} .math.display math[display=block]")) == 2)
    check("a matrix and a fraction", all_of(f"{body} mtable") and all_of(f"{body} mfrac"))
    check("prices are text", "$5 or $10 & <b> stays text" in page.find_element(By.CSS_SELECTOR, f"{body} p").text)
    keyword, plain = style(f"{body} .hl-keyword", "color"), style(f"{body} pre code", "color")
    check("coloured code", keyword != plain, keyword)
    check("two languages", len({found.text for found in all_of(f"{body} .hl-keyword")} & {"fn", "FROM", "RUN"}) == 3)
    boxes = [box.is_selected() for box in all_of(f"{body} li.task input")]
    check("task boxes", boxes == [True, False], boxes)
    bullets = [style(f"{body} " + "ul > li " * depth, "list-style-type") for depth in (1, 2, 3)]
    check("bullets", bullets == ["disc", "circle", "square"], bullets)
    aligned = [script("return getComputedStyle(arguments[0]).textAlign", cell) for cell in all_of(f"{body} tbody tr:first-child td")]
    check("aligned columns", aligned == ["left", "center", "right", "left"], aligned)
    check("a line break in a cell", texts(f"{body} tbody tr:last-child td")[0] == "multiply\naccumulate")

    # Nothing in an answer runs, loads or links to a script.
    links = [link.get_attribute("href") for link in all_of(f"{body} a")]
    check("only links to pages", links == ["https://example.com/manual", "https://example.com/pixel.png"], links)
    check("no markup from an answer", not all_of("#log img, #log script, #log [onerror], math [href]") and page.title == "mock – Chat", page.title)
    check("markup is shown", "<script>document.title='broken'</script>" in answers()[-1])
    script("document.getElementById('scroll').scrollTop = 0")
    screenshot(page, "markdown-top")
    script("document.querySelector('#log .table').scrollIntoView()")
    screenshot(page, "markdown-table")

    # On a phone, wide tables and code scroll by themselves, and words stay whole.
    page.set_window_size(*SIZES["narrow"])
    overflow = script("const page = document.scrollingElement, main = document.getElementById('scroll');"
                      "return [page.scrollWidth - page.clientWidth, main.scrollWidth - main.clientWidth]")
    check("no overflow on a phone", overflow == [0, 0], overflow)
    table = script("const box = document.querySelector('#log .table'); return [box.scrollWidth, box.clientWidth]")
    check("the table scrolls", table[0] > table[1], table)
    heights = script("const cell = document.querySelector('#log thead th:nth-child(2)'); return cell.getClientRects()[0].height")
    check("words are not broken", heights < 50, heights)
    page.set_window_size(*SIZES["wide"])

    # The same page in the dark, by the system and by the setting.
    light = style("body", "background-color")
    at("open-settings").click()
    at("theme").send_keys("Dark")
    page.find_element(By.CSS_SELECTOR, "#settings .ends .main").click()
    dark = style("body", "background-color")
    check("dark theme", dark != light, dark)
    reload()
    check("the theme is kept", style("body", "background-color") == dark)
    script("localStorage.removeItem('theme')")
    reload()
    check("the theme of the system", style("body", "background-color") == light)


def test_reasoning_and_speed():
    at("new-chat").click()
    ask("reasoning")
    check("folded reasoning", texts(".thought summary") == ["Reasoning"] and "think of" not in answers()[-1], answers())
    click(".thought summary")
    wait.until(lambda _: all_of(".thought em"))
    check("reasoning is Markdown", texts(".thought em") == ["x"])
    screenshot(page, "reasoning")
    ask("burst")
    check("reasoning is not sent back", mock.requests[-1]["messages"][1]["content"] == "It is x.", mock.requests[-1])
    check("no speed of a burst", texts(".figures")[-1] == f"{len(WORDS)} tokens · token limit reached", texts(".figures"))
    ask("paced")
    figures = texts(".figures")[-1]
    rate = float(figures.removesuffix(" tokens/s").split()[-1])
    check("speed from the first to the last token", figures.endswith(" tokens/s") and 0 < rate <= 39 / 0.05, figures)
    check("no speed of few tokens", "tokens/s" not in texts(".figures")[0], texts(".figures"))


def test_stop_and_failure():
    at("new-chat").click()
    ask("endless", lambda _: answers() and "goes on" in answers()[-1])
    press(Keys.ESCAPE)
    wait.until(idle)
    check("stopped by Esc", texts(".figures") == ["stopped"] and "goes on" in answers()[-1], texts(".figures"))
    ask("failure")
    check("a broken stream", "before it was complete" in texts(".error")[-1] and "The beginning" in answers()[-1], answers())
    # An answer in progress continues while another conversation is shown, and a reload keeps what was written.
    at("new-chat").click()
    ask("endless", lambda _: answers() and "goes on" in answers()[-1])
    at("new-chat").click()
    ask("hello")
    wait.until(lambda _: len(all_of("#list .entry.running")) == 1)
    click("#list .entry.running .open")
    wait.until(lambda _: at("stop").is_displayed())
    check("the answer goes on", "goes on" in answers()[-1])
    length = len(answers()[-1])
    wait.until(lambda _: len(answers()[-1]) > length)
    reload()
    wait.until(lambda _: answers())
    check("an interrupted answer is kept", "goes on" in answers()[-1] and texts(".figures") == ["interrupted"], answers())


def test_branches():
    at("new-chat").click()
    ask("one")
    ask("two")
    first = answers()
    button("Regenerate")
    wait.until(lambda _: idle() and answers()[-1:] != first[-1:])
    check("a second version", texts(".branches") == ["2/2"], texts(".branches"))
    second = answers()
    button("Previous version")
    check("the first version", answers() == first and texts(".branches") == ["1/2"], answers())
    ask("three")
    check("the branch that was shown is sent", [m["content"] for m in mock.requests[-1]["messages"]] == ["one", first[0], "two", first[1], "three"])
    button("Next version", 0)
    check("the other branch", answers() == second, answers())

    # An edited message is a new branch, and its older version stays.
    button("Edit", 0)
    field = page.find_element(By.CSS_SELECTOR, ".edit textarea")
    screenshot(page, "edit")
    field.send_keys(Keys.ESCAPE)
    check("editing cancelled", not all_of(".edit") and answers() == second)
    button("Edit", 0)
    page.find_element(By.CSS_SELECTOR, ".edit textarea").send_keys(" more", Keys.ENTER)
    wait.until(lambda _: idle() and len(answers()) == 1)
    check("the edited message", texts(".turn.user .body") == ["one more"] and texts(".branches") == ["2/2"], texts(".turn.user .body"))
    check("only the edited message is sent", mock.requests[-1]["messages"] == [{"role": "user", "content": "one more"}])
    # An answer can be edited, too.
    button("Edit")
    page.find_element(By.CSS_SELECTOR, ".edit textarea").send_keys(" Changed.")
    click(".edit .main")
    check("an edited answer", answers()[-1].endswith(" Changed."), answers())
    shown = answers()
    reload()
    wait.until(lambda _: answers() == shown)
    check("branches after a reload", texts(".branches") == ["2/2", "2/2"], texts(".branches"))
    screenshot(page, "branches")
    button("Previous version", 0)
    check("the older branch after a reload", answers() == second, answers())
    # The up arrow in the empty field edits the last message.
    at("prompt").send_keys(Keys.ARROW_UP)
    check("the last message is edited", page.switch_to.active_element.get_attribute("value") == "two")
    press(Keys.ESCAPE)


def test_attachments():
    at("new-chat").click()
    (FOLDER / "notes.py").write_text("print('```')\n")
    (FOLDER / "binary.dat").write_bytes(b"\xff\xfe\x00")
    at("file").send_keys(f"{FOLDER.resolve() / 'notes.py'}\n{FOLDER.resolve() / 'binary.dat'}")
    wait.until(lambda _: at("notice").is_displayed())
    check("only text", "binary.dat is not a text file" in at("notice").text, at("notice").text)
    check("an attached file", len(all_of("#attachments li")) == 1)
    screenshot(page, "attachment")
    ask("What is this?")
    sent = mock.requests[-1]["messages"][-1]["content"]
    check("the file is sent in a fence", sent == "notes.py\n````py\nprint('```')\n````\n\nWhat is this?", sent)
    check("the file is shown", "notes.py" in texts(".turn.user summary")[0] and not all_of("#attachments li"))


def test_history():
    before = entries()
    check("titles", before[0] == "What is this?" and "markdown" in before, before)
    # Rename, search, open.
    click("#list .entry:first-child button[title^='Rename']", 0)
    page.switch_to.active_element.send_keys("Renamed", Keys.ENTER)
    wait.until(lambda _: "Renamed" in entries())
    press(Keys.CONTROL, "k")
    check("search has the focus", page.switch_to.active_element == at("search"))
    at("search").send_keys("registers WAVE")
    wait.until(lambda _: entries() == ["markdown"])
    check("an extract", "registers" in texts("#list .entry small")[0].lower(), texts("#list .entry small"))
    screenshot(page, "search")
    click("#list .entry .open")
    wait.until(lambda _: "Attention" in answers()[-1])
    at("search").clear()
    at("search").send_keys("a", Keys.BACKSPACE)
    wait.until(lambda _: len(entries()) == len(before))

    # Everything can be exported, deleted and imported again.
    def contents():
        """Returns the stored conversations, the last changed first."""
        return [json.loads(text) for text in script(
            "return new Promise(done => { const open = indexedDB.open('llm-worker-chat'); open.onsuccess = () => {"
            "const all = open.result.transaction('conversations').objectStore('conversations').getAll();"
            "all.onsuccess = () => { open.result.close(); done(all.result.sort((a, b) => b.updated - a.updated).map(c => JSON.stringify(c))); }; }; })")]
    kept = contents()
    at("export-all").click()
    file = FOLDER / "conversations.json"
    wait.until(lambda _: file.exists())
    check("exported", len(json.loads(file.read_text())["conversations"]) == len(before))
    at("import-file").send_keys(str(file.resolve()))
    wait.until(lambda _: "already here" in at("notice").text)
    check("nothing is imported twice", len(entries()) == len(before), entries())
    at("delete-all").click()
    check("a question", at("confirm").is_displayed() and "cannot be undone" in at("confirm-question").text)
    screenshot(page, "confirm")
    press(Keys.ESCAPE)
    check("nothing deleted", len(entries()) == len(before))
    at("delete-all").click()
    at("confirm-yes").click()
    wait.until(lambda _: not entries())
    reload()
    check("all deleted", entries() == [] and answers() == [], entries())
    at("import-file").send_keys(str(file.resolve()))
    wait.until(lambda _: len(entries()) == len(before))
    check("the same conversations", contents() == kept, contents())
    (FOLDER / "bad.json").write_text(json.dumps({"format": "llm-worker-chat", "version": 1, "conversations": [
        {"id": "0" * 24, "turns": [{"role": "user", "content": "a", "parent": 0}]}]}))
    at("import-file").send_keys(str((FOLDER / "bad.json").resolve()))
    wait.until(lambda _: "could not be imported" in at("notice").text)
    check("a circle of turns is refused", "the parent of a turn" in at("notice").text and len(entries()) == len(before))
    click("#list .entry:first-child button[title^='Delete']", 0)
    at("confirm-yes").click()
    wait.until(lambda _: len(entries()) == len(before) - 1)
    check("one deleted", "Renamed" not in entries(), entries())


def test_tabs():
    """Another tab shows the changes of this one."""
    first = page.current_window_handle
    click("#list .entry .open", 0)
    wait.until(lambda _: answers())
    count = len(answers())
    page.switch_to.new_window("tab")
    page.get(mock.base)
    wait.until(ready)
    wait.until(lambda _: entries())
    click("#list .entry .open", 0)
    wait.until(lambda _: len(answers()) == count)
    ask("from the other tab")
    page.close()
    page.switch_to.window(first)
    wait.until(lambda _: len(answers()) == count + 1)
    check("the answer of the other tab", texts(".turn.user .body")[-1] == "from the other tab")


def test_text_completion():
    """A model without a chat template continues the whole text."""
    at("new-chat").click()
    mock.chat_template = False
    reload()
    check("text completion", "Text completion" in texts("#empty h2"), texts("#empty h2"))
    ask("Once ")
    first = answers()[-1]
    ask("then")
    check("the whole text is sent", mock.requests[-1]["prompt"] == f"Once{first}then", mock.requests[-1])
    mock.chat_template = True
    reload()


def test_keyboard_and_phone():
    press(Keys.CONTROL, "/")
    check("list of shortcuts", at("shortcuts").is_displayed())
    screenshot(page, "shortcuts")
    press(Keys.ESCAPE)
    press(Keys.CONTROL, Keys.SHIFT, "o")
    check("a new chat", answers() == [] and page.switch_to.active_element == at("prompt"))
    press(Keys.CONTROL, "b")
    check("hidden list", not at("history").is_displayed())
    reload()
    check("the list stays hidden", not at("history").is_displayed())
    press(Keys.CONTROL, "b")
    check("shown list", at("history").is_displayed())
    at("prompt").send_keys("a draft")
    reload()
    check("the draft is kept", at("prompt").get_attribute("value") == "a draft")
    at("prompt").clear()

    page.set_window_size(*SIZES["narrow"])
    wait.until(lambda _: not at("history").is_displayed())
    at("toggle-list").click()
    check("a drawer", at("history").is_displayed() and at("shade").is_displayed())
    check("the page behind is inert", script("return document.getElementById('scroll').inert"))
    check("screenshot", page.save_screenshot(str(FOLDER / "drawer-narrow.png")))
    press(Keys.ESCAPE)
    check("closed drawer", not at("history").is_displayed() and not script("return document.getElementById('scroll').inert"))
    at("toggle-list").click()
    click("#list .entry .open", 0)
    wait.until(lambda _: answers() and not at("history").is_displayed())
    check("screenshot", page.save_screenshot(str(FOLDER / "conversation-narrow.png")))
    page.set_window_size(*SIZES["wide"])


def test_names():
    """Every control has an accessible name, and no id is used twice."""
    nameless = script(
        "return [...document.querySelectorAll('button, input, textarea, select, a, [role=region]')].filter(found =>"
        "!(found.ariaLabel || found.textContent.trim() || found.labels?.length)).map(found => found.outerHTML)")
    check("accessible names", nameless == [], nameless)
    twice = script("const ids = [...document.querySelectorAll('[id]')].map(found => found.id); return ids.filter((id, i) => ids.indexOf(id) !== i)")
    check("unique ids", twice == [], twice)


mock = Mock(BASE)
try:
    test_worker()
    page.get(mock.base)
    wait.until(ready)
    for test in (test_rendering, test_reasoning_and_speed, test_stop_and_failure, test_branches, test_attachments,
                 test_history, test_tabs, test_text_completion, test_keyboard_and_phone, test_names):
        test()
    check_logs(page, base=mock.base)
finally:
    mock.stop()
    page.quit()
report("chat_page")
