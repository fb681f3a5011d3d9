#!/usr/bin/env python3
"""Opens the explorer in headless Chromium: for random configurations it shows what the command that it
names prints; it is fast, works by keyboard and on a phone, and loads nothing. Exits with 77 where there is
no Chromium. Usage: browser_test.py PROGRAM PAGE.html DATA [COUNT]"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

from browser import Browser, find_browser
from configurations import Comparison, random_configurations

failures = []


def expect(claim: str, holds: bool, seen="") -> None:
    if not holds:
        failures.append(f"{claim}: {seen}")


def equality(browser: Browser, program: str, data: pathlib.Path, count: int) -> None:
    comparison = Comparison(program)
    rows = 0
    for i, flags in enumerate(random_configurations(2 * count, 2, data)):
        if comparison.equal == count:
            break
        browser.evaluate(f"explorer.set({json.dumps(flags)})")
        result, line = browser.evaluate("[explorer.forecasts()[0], explorer.commands('numbers-source')[0]]")
        comparison.add(shlex.split(line)[1:] + ["--breakdown", "--json"], result)
        if i % 10 != 0 or "error" in result:
            continue
        for view in ("numbers-source", "curves-source"):
            csv = browser.evaluate(f"explorer.csv('{view}')")
            words = shlex.split(browser.evaluate(f"explorer.commands('{view}')[0]"))[1:]
            if view == "numbers-source":
                words[0] = "sweep"
            printed = subprocess.run([program, *words, "--quiet"], capture_output=True, text=True, check=False).stdout
            expect(f"CSV of {shlex.join(words)}", csv == printed, csv[:300])
            rows += csv.count("\n") - 1
    print(f"configurations: {comparison.report()}; {rows} rows of CSV compared")
    failures.extend(comparison.failures)
    expect(f"{count} possible configurations", comparison.equal == count, comparison.report())


def speed(browser: Browser) -> None:
    paint, first = browser.evaluate("""[performance.getEntriesByName('first-contentful-paint')[0].startTime,
                                        explorer.first_forecast_ms]""")
    slider = """(async id => {
      const range = document.getElementById(id), times = [];
      for (let i = 0; i < 24; ++i) {
        range.value = 10 + i;
        const start = performance.now();
        range.dispatchEvent(new Event('input', {bubbles: true}));
        document.body.getBoundingClientRect();  // laid out
        times.push(performance.now() - start);
        await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
      }
      return times.sort((a, b) => a - b)[12];
    })"""
    sliders = {name: browser.evaluate(f"{slider}('{name}-range')") for name in ("prompt-len", "output-len", "batch")}
    print(f"first paint {paint:.0f} ms, first forecast {first:.0f} ms, slider (median) " +
          ", ".join(f"{name} {ms:.1f} ms" for name, ms in sliders.items()))


def keyboard(browser: Browser) -> None:
    unnamed = browser.evaluate("""[...document.querySelectorAll('input, select, textarea, button')].filter(e =>
      !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)""")
    expect("every control has a name", unnamed == [], unnamed)
    reached = set()
    for _ in range(80):
        browser.press("Tab")
        for _ in range(20):  # a busy machine draws the focus a frame later
            at = browser.evaluate("""(e => [e.id || e.textContent.slice(0, 20), getComputedStyle(e).outlineStyle])
                                     (document.activeElement)""")
            if at[1] != "none":
                break
            time.sleep(0.05)
        reached.add(at[0])
        expect("focus is seen", at[1] != "none" or at[0].startswith("\n"), at)  # the page itself
    for control in ("prompt-len-range", "batch", "model", "hardware", "engine", "method-prompt", "tp", "y", "pass"):
        expect("reached with Tab", control in reached, control)
    browser.evaluate("document.getElementById('prompt-len-range').focus()")
    before = browser.evaluate("explorer.forecasts()[0].document.prompt_len")
    browser.press("ArrowRight")
    after = browser.evaluate("explorer.forecasts()[0].document.prompt_len")
    expect("an arrow key moves a slider", after > before, (before, after))
    browser.evaluate("document.querySelector('#roofline svg').focus()")
    before = browser.evaluate("document.getElementById('explained').textContent")
    browser.press("ArrowRight")
    after = browser.evaluate("document.getElementById('explained').textContent")
    expect("an arrow key explains the next operator", before != after and "FLOP" in after, after)


def states(browser: Browser, page: pathlib.Path) -> None:
    """The address holds everything, also four configurations and a pasted model."""
    browser.evaluate("""explorer.set([{model: 'llama-7b'}, {model: 'llama-7b', hardware: 'h200', method: 'slim', batch: '7'},
                                      {engine: 'vllm', tp: '2'}, {method: 'random-prune:keep=0.5'}])""")
    expect("no more than four", browser.evaluate("document.getElementById('add').disabled"))
    commands = browser.evaluate("explorer.commands('numbers-source')")
    address = browser.evaluate("new Promise(done => setTimeout(() => done(location.hash), 400))")
    browser.open(page, address)
    again = browser.evaluate("explorer.commands('numbers-source')")
    expect("the address holds four configurations", commands == again and len(again) == 4, again)
    drawn = browser.evaluate("""[...document.querySelectorAll('#curves path[fill=none]')].length""")
    expect("four curves", drawn == 4, drawn)


def hostile_addresses(browser: Browser, page: pathlib.Path) -> None:
    for address in ("#active=-1", "#active=-Infinity&0.model=llama-7b", "#x=nonsense&0.model=llama-7b",
                    "#x=toString&y=__proto__&pass=constructor", "#0.toString=1&9.model=x&-1.model=y"):
        browser.open(page, address)
        drawn = browser.evaluate("document.querySelectorAll('#curves path[fill=none]').length")
        expect(f"{address} shows its curve", drawn == 1, drawn)
        axes = browser.evaluate("[document.getElementById('x').value, document.getElementById('y').value]")
        expect(f"{address}: the axes", axes == ["prompt-len", "ttft_s"], axes)


def mistakes(browser: Browser) -> None:
    browser.evaluate("explorer.set({})")
    for text in ("-5", "0", "1.5", ""):
        said = browser.evaluate(f"""(field => {{
          field.value = {json.dumps(text)};
          field.dispatchEvent(new Event('input', {{bubbles: true}}));
          return document.getElementById('summary').textContent;
        }})(document.getElementById('prompt-len'))""")
        expect(f"a prompt of {text!r} is refused", said.startswith("--prompt-len: got"), said)
    browser.evaluate("explorer.set({method: 'random-prune:keep=0.5'})")
    method = browser.evaluate("""(field => {
      for (const text of ['0.5+x', '0.4']) {
        field.value = text;
        field.dispatchEvent(new Event('input', {bubbles: true}));
      }
      return explorer.commands('numbers-source')[0];
    })(document.getElementById('option-prompt-keep'))""")
    expect("an option holds no other method", "random-prune:keep=0.4" in method and "+" not in method, method)


def pasted(browser: Browser, program: str, data: pathlib.Path) -> None:
    config = json.loads((data / "models" / "llama-3.2-1b.json").read_text())
    config["num_hidden_layers"] = 5
    text = json.dumps(config)
    browser.evaluate("explorer.set({})")
    browser.evaluate(f"""document.getElementById('config').value = {json.dumps(text)};
                         document.getElementById('use-config').click()""")
    result, line = browser.evaluate("[explorer.forecasts()[0], explorer.commands('numbers-source')[0]]")
    words = shlex.split(line)[1:]
    model = words[words.index("--model") + 1]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / model
        file.parent.mkdir()
        file.write_text(text)
        run = subprocess.run([program, "--data", str(data), *words, "--breakdown", "--json"], capture_output=True,
                             text=True, check=True, cwd=folder)
    expect("a pasted config.json", json.loads(run.stdout) == result.get("document"), result.get("error"))
    browser.evaluate("""document.getElementById('config').value = '{"model_type": "nonsense"}';
                        document.getElementById('use-config').click()""")
    error = browser.evaluate("document.getElementById('config-error').textContent")
    expect("a wrong config.json is refused", "nonsense" in error, error)


def layouts(browser: Browser, page: pathlib.Path) -> None:
    for width, dark in ((390, True), (390, False), (1280, True), (1280, False)):
        browser.window(width, 900, dark)
        browser.open(page, "#0.model=llama-3.1-8b&1.model=llama-7b&1.method=slim&1.hardware=a100-80gb")
        fits, is_dark, loaded, ids = browser.evaluate("""[
          document.documentElement.scrollWidth <= document.documentElement.clientWidth,
          getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).slice(0, 3).every(c => c < 128),
          performance.getEntriesByType('resource').filter(e => !e.name.startsWith('blob:')).length,
          (all => all.length === new Set(all).size)([...document.querySelectorAll('[id]')].map(e => e.id))]""")
        expect(f"no sideways scrolling at {width}", fits)
        browser.open(page, "#0.model=llama-3.1-8b&0.method=slim")
        fits = browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        expect(f"no sideways scrolling with an error at {width}", fits)
        expect(f"colours at {width}", is_dark == dark)
        expect("nothing is loaded", loaded == 0, loaded)
        expect("ids are unique", ids)


def main() -> int:
    program, page, data = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 200
    executable = find_browser()
    if executable is None:
        print("browser_test.py: not run, since there is no chromium")
        return 77
    expect("below 5 MB", page.stat().st_size < 5_000_000, page.stat().st_size)
    browser = Browser(executable)
    try:
        browser.window(1280, 900)
        browser.open(page)
        speed(browser)
        keyboard(browser)
        states(browser, page)
        hostile_addresses(browser, page)
        mistakes(browser)
        pasted(browser, program, data)
        equality(browser, program, data, count)
        layouts(browser, page)
    finally:
        browser.close()
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
