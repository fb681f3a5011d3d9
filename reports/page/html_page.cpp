#include "reports/page/html_page.h"

#include "reports/page/html_text.h"

namespace kvcast::reports {
namespace {

/// Colours keep a contrast of 4.5 and more to their ground, in both schemes (WCAG 2.1, 1.4.3).
constexpr const char* style = R"css(
:root { color-scheme: light dark; --bg: #ffffff; --fg: #1c2128; --soft: #57606a; --line: #d0d7de;
  --card: #f6f8fa; --link: #0550ae; --bad: #b4231a; --focus: #0550ae; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #14171c; --fg: #e6e9ee; --soft: #a3acb8; --line: #3a424e; --card: #1d222a;
    --link: #7cb7ff; --bad: #ff8f85; --focus: #7cb7ff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
header, nav, main, footer { max-width: 76rem; margin: 0 auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 1.5rem 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .5rem;
  border-top: 1px solid var(--line); overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; max-width: 48rem; }
a { color: var(--link); }
.note, .lead, caption, dt { color: var(--soft); }
.skip { position: absolute; left: -999rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--bg); padding: .5rem; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
nav ul { list-style: none; margin: .75rem 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: .25rem 1.25rem; }
nav a { display: inline-block; padding: .25rem 0; }
.values { margin: .5rem 0; display: grid; gap: .1rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); }
.values div { display: flex; justify-content: space-between; gap: 1rem;
  border-bottom: 1px solid var(--line); padding: .15rem 0; }
dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .75rem 0; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .5rem .75rem; }
th, td { padding: .3rem .75rem; text-align: left; vertical-align: top;
  border-top: 1px solid var(--line); }
thead th { background: var(--card); white-space: nowrap; }
tbody th { font-weight: 500; }
td { overflow-wrap: break-word; }
.n { text-align: right; }
.n, .k { white-space: nowrap; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0;
  cursor: pointer; }
th button::after { content: "\2195"; color: var(--soft); padding-left: .35em; }
th[aria-sort=ascending] button::after { content: "\2191"; color: var(--fg); }
th[aria-sort=descending] button::after { content: "\2193"; color: var(--fg); }
figure { margin: 1rem 0; }
figure img { display: block; width: 100%; max-width: 60rem; height: auto; background: #ffffff;
  border: 1px solid var(--line); border-radius: 6px; }
figcaption { color: var(--soft); margin-top: .35rem; }
.bad { color: var(--bad); }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--link); }
footer { color: var(--soft); padding-bottom: 2rem; margin-top: 2.5rem; }
@media (prefers-color-scheme: dark) { figure img { filter: brightness(.92); } }
@media (max-width: 40rem) { body { font-size: 15px; } th, td { padding: .3rem .5rem; }
  nav ul { flex-direction: column; gap: 0; } nav a { padding: .4rem 0; } }
@media print {
  :root { --bg: #fff; --fg: #000; --soft: #444; --line: #bbb; --card: #eee; --link: #000; }
  body { font-size: 10pt; } nav, .skip { display: none; } th button::after { content: ""; }
  .scroll { overflow: visible; border: 0; } table { font-size: 7.5pt; }
  th, td, .k, thead th { padding: .15rem .3rem; white-space: normal; overflow-wrap: break-word; }
  thead { display: table-header-group; } tr, figure { break-inside: avoid; }
  h2, h3 { break-after: avoid; } figure img { filter: none; } }
)css";

/// Without it tables stay in the order of their file.
constexpr const char* table_script = R"js(
(() => {
  const live = document.getElementById('live');
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v ?? cell.textContent.replace(/\u202F/g, '');
  };
  const compare = (a, b) => {
    if (a === '' || b === '') return (a === '') - (b === '');
    const x = Number(a), y = Number(b);
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, {numeric: true})
                                              : x - y;
  };
  for (const table of document.querySelectorAll('table.sortable')) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    if (body.rows.length < 2) continue;
    heads.forEach((head, column) => {
      const name = head.textContent;
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = name;
      head.replaceChildren(button);
      head.setAttribute('aria-sort', 'none');
      button.addEventListener('click', () => {
        const down = head.getAttribute('aria-sort') === 'ascending';
        const rows = [...body.rows].map(row => [value(row, column), row]);
        const filled = rows.filter(([v]) => v !== '');
        const empty = rows.filter(([v]) => v === '');
        filled.sort(([a], [b]) => down ? compare(b, a) : compare(a, b));
        body.replaceChildren(...filled.concat(empty).map(([, row]) => row));
        heads.forEach(h => h.setAttribute('aria-sort', 'none'));
        head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
        live.textContent = 'Sorted by ' + name + (down ? ', descending' : ', ascending');
      });
    });
  }
  window.addEventListener('beforeprint', () => {
    for (const details of document.querySelectorAll('details')) details.open = true;
  });
})();
)js";

}  // namespace

std::string html_page(const std::string& title, const std::string& lead,
                      const std::vector<HtmlSection>& sections) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
      "form-action 'none'\">\n<title>" +
      html_escape(title) + "</title>\n<style>" + style + "</style>\n</head>\n<body>\n" +
      "<a class=\"skip\" href=\"#content\">Skip to the results</a>\n<header>\n<h1>" +
      html_escape(title) + "</h1>\n<p class=\"lead\">" + html_escape(lead) + "</p>\n</header>\n" +
      "<nav aria-label=\"Contents\">\n<ul>\n";
  for (const HtmlSection& s : sections) {
    out += "<li><a href=\"#" + s.id + "\">" + html_escape(s.title) + "</a></li>\n";
  }
  out += "</ul>\n</nav>\n<main id=\"content\">\n";
  for (const HtmlSection& s : sections) {
    out += "<section aria-labelledby=\"" + s.id + "\">\n<h2 id=\"" + s.id + "\">" +
           html_escape(s.title) + "</h2>\n" + s.body + "</section>\n";
  }
  out += "</main>\n<div id=\"live\" role=\"status\" aria-live=\"polite\" class=\"skip\"></div>\n";
  return out + "<script>" + table_script + "</script>\n</body>\n</html>\n";
}

}  // namespace kvcast::reports
