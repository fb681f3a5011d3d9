#!/usr/bin/env bash
# Opens a report in headless Chromium: it lays out at the width of a phone and of a desk, its tables
# sort, and nothing goes wrong on the page. Exits with 77 where there is no Chromium.
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
document.title = [!before, up, down, focused, page.scrollWidth <= page.clientWidth,
  new Set(ids).size === ids.length, performance.getEntriesByType('resource').length === 0].join(' ');
</script>
END
sed -i -e "/<\/body>/{
r $work/probe.html
d
}" "$work/report.html"

failures=0
for width in 500 1280; do
  dom=$(timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" \
    --window-size=$width,1000 --dump-dom "file://$work/report.html" 2>/dev/null)
  title=$(grep -o '<title>[^<]*' <<<"$dom" | head -1)
  if [[ $title != "<title>true true true true true true true" ]]; then
    echo "FAILED at $width pixels: unsorted at first, sorted up, down, focus kept, no sideways" \
      "scrolling, ids unique, nothing loaded: $title"
    failures=1
  fi
done
exit $failures
