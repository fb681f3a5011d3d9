#!/usr/bin/env bash
# Opens a report in headless Chromium: it lays out at the width of a phone and of a desk, by day and by
# night, its tables sort, it prints, and nothing goes wrong on the page. Exits with 77 where there is
# no Chromium.
# Usage: report_browser_test.sh PROGRAM
set -euo pipefail
program=$1
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [[ -z $browser ]]; then
  echo "report_browser_test.sh: not run, since there is no chromium"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" estimate --json --model llama-7b --hardware a100-80gb --prompt-len 1k >"$work/point.json"
"$program" sweep --quiet --model llama-7b --hardware a100-80gb,h100-sxm --prompt-len 1k,2k \
  --csv "$work/sweep.csv"
"$program" reproduce kvr-table3-base --csv "$work/kvr.csv" >/dev/null
"$program" report "$work" >/dev/null

# The page's own script has run when this one does; what it finds becomes the title.
cat >"$work/probe.html" <<'END'
<script>
const table = document.getElementById('r-sweep-csv-rows');
const heads = [...table.tHead.rows[0].cells];
const column = heads.findIndex(h => h.textContent === 'ttft_s');
const values = () => [...table.tBodies[0].rows].map(r => Number(r.cells[column].dataset.v));
const rising = v => v.every((x, i) => i === 0 || v[i - 1] <= x);
const before = rising(values());
const button = heads[column].querySelector('button');
button.focus();
button.click();
const up = rising(values()) && heads[column].getAttribute('aria-sort') === 'ascending';
button.click();
const down = rising(values().reverse()) && heads[column].getAttribute('aria-sort') === 'descending';
const focused = document.activeElement === button;
const page = document.documentElement;
const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
const [red, green, blue] = getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number);
const isDark = red + green + blue < 3 * 128;
document.title = [!before, up, down, focused, page.scrollWidth <= page.clientWidth,
  new Set(ids).size === ids.length, performance.getEntriesByType('resource').length === 0,
  isDark ? 'dark' : 'light', innerWidth].join(' ');
parent.postMessage(document.title, '*');
</script>
END
sed -i -e "/<\/body>/{
r $work/probe.html
d
}" "$work/report.html"

# Windows are no narrower than 500 pixels: a phone is a frame.
cat >"$work/phone.html" <<'END'
<title></title><iframe src="report.html" style="width:390px;height:800px;border:0"></iframe>
<script>addEventListener('message', e => { document.title = e.data; });</script>
END

chrome=("$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile")
failures=0
# opens PAGE WIDTH SCHEME ENDING: what the probe found ends with the colours and the width.
opens() {
  local dom title
  dom=$(timeout 120 "${chrome[@]}" --window-size="$2,1000" --blink-settings="preferredColorScheme=$3" \
    --virtual-time-budget=5000 --dump-dom "file://$work/$1.html" 2>/dev/null)
  title=$(grep -o '<title>[^<]*' <<<"$dom" | head -1)
  if [[ $title != "<title>true true true true true true true $4" ]]; then
    echo "FAILED: $1 at $2 pixels: unsorted at first, sorted up, down, focus kept, no sideways" \
      "scrolling, ids unique, nothing loaded, expected $4: $title"
    failures=1
  fi
}
dark=0
light=1
opens report 1280 $light 'light 1280'
opens report 1280 $dark 'dark 1280'
opens phone 500 $dark 'dark 390'
opens phone 500 $light 'light 390'

timeout 120 "${chrome[@]}" --print-to-pdf="$work/report.pdf" "file://$work/report.html" 2>/dev/null || true
if [[ $(head -c 5 "$work/report.pdf") != %PDF- ]]; then
  echo "FAILED: it does not print"
  failures=1
fi
exit $failures
