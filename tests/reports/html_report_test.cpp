#include "reports/page/html_report.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "reports/page/html_text.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

namespace kvcast::reports {
namespace {

namespace fs = std::filesystem;

struct Results : TestFolder {
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path() / name).parent_path());
    std::ofstream(path() / name) << text;
  }
  HtmlReport report() const { return html_report(path(), *this / "report.html", "0.0.0"); }
};

constexpr const char* estimate = R"({
  "model": "llama-7b", "hardware": "NVIDIA A100", "method": "plain", "batch": 2, "prompt_len": 4096,
  "ttft_s": 0.637811, "tpot_s": 0.0102, "prefill_flops": 54975581388800,
  "kv_cache_bytes": 2214592512, "fits": true,
  "factors": [{"name": "matrix", "peak": "312 TFLOP/s", "factor": 0.72, "source": "measured",
               "reference": "a benchmark"}],
  "warnings": ["long prompt"]})";

constexpr const char* sweep =
    "model,hardware,prompt_len,ttft_s,tpot_s\n"
    "llama-7b,a100-80gb,1024,0.0666,0.0101\nllama-7b,a100-80gb,2048,0.134,0.0102\n";

constexpr const char* svg =
    "<?xml version=\"1.0\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"9\" height=\"9\">"
    "<script>alert(1)</script></svg>\n";

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST_CASE("html: a page holds what was asked, answers, tables, plots, traces and provenance") {
  const Results results;
  results.write("estimate.json", estimate);
  results.write("sweep.csv", sweep);
  results.write("plots/ttft.svg", svg);
  results.write("plots/ttft.csv", "series,x,ttft_s\nforecast,1024,0.5\n");
  results.write("plots/ttft.gp",
                "# title: TTFT on NVIDIA's A100\n# Draws it: run `gnuplot` in this folder.\n");
  results.write("trace.json", "{\"traceEvents\": []}");
  results.write("notes.txt", "mine");
  const HtmlReport report = results.report();
  CHECK(report.shown == 4);
  CHECK(report.unreadable.empty());
  const std::string& html = report.html;
  CHECK(html.starts_with("<!DOCTYPE html>\n<html lang=\"en\">"));
  CHECK(has(html, "estimate.json: estimate</h2>"));
  CHECK(has(html, "sweep.csv: sweep</h2>"));
  CHECK(has(html, "<dt>prompt len</dt><dd>4096</dd>"));
  CHECK(has(html, ">638 ms</td>"));
  CHECK(has(html, "<td class=\"k\">ttft_s</td>"));      // the key of an answer
  CHECK(has(html, ">2.21 GB</td>"));                    // 2214592512 bytes
  CHECK(has(html, "<td class=\"k\">measured</td>"));    // the source of a factor
  CHECK(has(html, "<dt>model</dt><dd>llama-7b</dd>"));  // the same in every row of the sweep
  CHECK(has(html, "alt=\"Plot: TTFT on NVIDIA&#39;s A100\" src=\"data:image/svg+xml;base64,"));
  CHECK(has(html, "Points of this plot as a table"));
  CHECK(has(html, "<a href=\"./trace.json\">trace.json</a>"));
  CHECK(has(html, "notes.txt"));
}

TEST_CASE("html: the page loads nothing, and marks up what a screen reader needs") {
  const Results results;
  results.write("estimate.json", estimate);
  results.write("sweep.csv", sweep);
  results.write("ttft.svg", svg);
  const std::string html = results.report().html;
  CHECK_FALSE(has(html, "http://"));
  CHECK_FALSE(has(html, "https://"));
  CHECK_FALSE(has(html, "<link"));
  CHECK(has(html, "default-src 'none'"));
  CHECK(has(html, "prefers-color-scheme: dark"));
  CHECK(has(html, "@media print"));
  CHECK(has(html, "name=\"viewport\""));
  CHECK(has(html, "aria-sort"));
  CHECK(has(html, "href=\"#content\">Skip to the results"));
  CHECK(count(html, "<h1>") == 1);
  CHECK(count(html, "<caption") == count(html, "<table class"));
  CHECK(count(html, "<img ") == count(html, "<img alt="));
  CHECK(count(html, "<section ") == count(html, "<li><a href=\"#"));  // all in the contents
  CHECK(count(html, "<table ") == count(html, "</table>"));
  CHECK(count(html, "<div") == count(html, "</div>"));
}

TEST_CASE("html: names and values from files cannot break out of the page") {
  const Results results;
  const std::string evil = "<script>alert(1)</script>";
  results.write("a\"onmouseover=x <b>.json",
                "{\"model\": \"" + evil + "\", \"" + evil + "\": \"\\u0007&'\", \"ttft_s\": 1}");
  results.write("javascript:x.csv", "a,<img src=x>\n\xFF,\"" + evil + "\"\n1,2\n");
  const std::string html = results.report().html;
  CHECK(count(html, "<script>") == 1);  // ours
  CHECK_FALSE(has(html, "<img src=x>"));
  CHECK_FALSE(has(html, "\"onmouseover"));
  CHECK_FALSE(has(html, "href=\"javascript:"));
  CHECK(has(html, "\xEF\xBF\xBD"));
}

TEST_CASE("html: a script in a picture stays inside an image, where it does not run") {
  const Results results;
  results.write("p.svg", svg);
  const std::string html = results.report().html;
  CHECK_FALSE(has(html, "alert(1)"));
  CHECK(has(html, base64(svg)));
}

TEST_CASE("html: a long CSV is cut, says so and links the file") {
  const Results results;
  std::string rows = "prompt_len,ttft_s\n";
  for (int i = 1; i <= 1000; ++i) rows += std::to_string(i) + ",0.5\n";
  results.write("long run.csv", rows);
  const std::string html = results.report().html;
  CHECK(has(html, "The first 200 of 1000 rows are shown"));
  CHECK(has(html, "href=\"./long%20run.csv\">the file has them all"));
  CHECK(has(html, ">200</td>"));
  CHECK_FALSE(has(html, ">201</td>"));
}

TEST_CASE("html: of a CSV above 64 MiB the beginning is read") {
  const Results results;
  std::string rows = "prompt_len,ttft_s\n";
  while (rows.size() <= (64u << 20)) rows += "1024,0.0625\n2048,0.125\n";
  results.write("large.csv", rows);
  const HtmlReport report = results.report();
  CHECK(report.shown == 1);
  CHECK(has(report.html, "The file is larger than 64 MiB"));
  CHECK(has(report.html, "href=\"./large.csv\">The file has it all"));
  CHECK(has(report.html, ">125 ms</td>"));
}

TEST_CASE("html: reproduced tables are summed up, their errata and differences shown first") {
  const Results results;
  results.write("all.csv",
                "table,source,cell,published,ours,relative_error,verdict,erratum,file\n"
                "t1,s,c1,2.0,2,0,exact,,f\n"
                "t1,s,c2,2.0,3,0.5,DIFFERS,,f\n"
                "t2,s,c3,4.0,3,-0.25,measured,,f\n"
                "t2,s,c4,4.0,4.2,0.05,measured,E9: misprint,f\n"
                "t2,s,c5,4.0,8.0,1.0,fitted,,f\n"
                "t3,s,c6,2.0,3,0.5,erratum,E10: it should say 3.0,f\n");
  const std::string html = results.report().html;
  // two measured cells, the fitted one aside: (25 + 5) / 2 = 15 %, 25 % at worst
  CHECK(
      has(html,
          "<th scope=\"row\" class=\"k\">t2</th><td class=\"n\">3</td><td class=\"n\">0</td>"
          "<td class=\"n\">0</td><td class=\"n\">0</td><td class=\"n\">1</td><td class=\"n\">2</td>"
          "<td class=\"n\" data-v=\"15.0\" title=\"15.0\">15</td>"));
  CHECK(has(html, "<td class=\"k\">E9: misprint</td>"));
  // A cell that differs from the print by an erratum: neither exact nor a difference to explain.
  CHECK(has(html,
            "<th scope=\"row\" class=\"k\">t3</th><td class=\"n\">1</td><td class=\"n\">0</td>"
            "<td class=\"n\">1</td><td class=\"n\">0</td>"));
  CHECK(has(html, "<strong class=\"bad\">DIFFERS</strong>"));
  CHECK(html.find("all-csv-summary") < html.find("all-csv-rows"));
}

TEST_CASE("html: both CSV files of validate are known by their columns") {
  const Results results;
  results.write("rows.csv",
                "id,metric,predicted_s,measured_s,relative_error\nr,ttft_s,1.5,1.0,0.5\n");
  results.write("matrix.csv",
                "model,method,ttft_s,predicted_ttft_s,ttft_relative_error\nm,plain,1,1.5,0.5\n");
  const std::string html = results.report().html;
  CHECK(has(html, "rows.csv: validate</h2>"));
  CHECK(has(html, "matrix.csv: validate --measure</h2>"));
}

TEST_CASE("html: a number too small for a normal double is a number") {
  const Results results;
  results.write("all.csv",
                "table,source,cell,published,ours,relative_error,verdict,erratum,file\n"
                "t1,s,c1,2.0,2,1e-320,measured,,f\n");
  CHECK(has(results.report().html, "all-csv-summary"));
}

TEST_CASE("html: what cannot be read is named, and the rest is shown") {
  const Results results;
  results.write("estimate.json", estimate);
  results.write("broken.json", "{\"model\": ");
  results.write("deep.json", std::string(100000, '['));
  results.write("broken.csv", "a,b\n1\n");
  const HtmlReport report = results.report();
  CHECK(report.shown == 1);
  REQUIRE(report.unreadable.size() == 3);
  CHECK(has(report.unreadable[0], "broken.csv:2"));
  CHECK(has(report.html, "no JSON document"));
}

TEST_CASE("html: the report itself is no result, and the page is the same every time") {
  const Results results;
  results.write("estimate.json", estimate);
  const std::string first = results.report().html;
  results.write("report.html", first);
  CHECK(results.report().html == first);
}

TEST_CASE("html: a folder without results is refused") {
  const Results results;
  results.write("notes.txt", "mine");
  CHECK_THROWS_AS(results.report(), Error);
  CHECK_THROWS_AS(html_report(results / "none", results / "r.html", "0"), Error);
}

TEST_CASE("html: base64 is RFC 4648's, section 10") {
  CHECK(base64("") == "");
  CHECK(base64("f") == "Zg==");
  CHECK(base64("fo") == "Zm8=");
  CHECK(base64("foo") == "Zm9v");
  CHECK(base64("foobar") == "Zm9vYmFy");
}

TEST_CASE("html: numbers are shown for people") {
  CHECK(shown_number("0.09331949468521018") == "0.09332");
  CHECK(shown_number("12345.678") == "12\u202F346");
  CHECK(shown_name("ttft_s") == "ttft");
  CHECK(shown_name("link_bytes_per_s") == "link bytes per s");
  CHECK(shown_number("4096") == "4096");
  CHECK(shown_number("12288") == "12\u202F288");
  CHECK(shown_number("-1234567") == "-1\u202F234\u202F567");
  CHECK(shown_number("llama-7b") == "llama-7b");
  CHECK(shown_quantity("ttft_s", "0.0933") == "93.3 ms");
  CHECK(shown_quantity("link_bytes_per_s", "10000000000") == "10 GB/s");
  CHECK(shown_quantity("prompt_len", "1024") == "1024");
  CHECK(shown_quantity("ttft_s", "") == "");
  CHECK(shown_quantity("relative_error", "-0.0668051") == "-6.68 %");
  CHECK(shown_quantity("ttft_error_bound", "0.2") == "20 %");
  CHECK(shown_quantity("mape", "0.0398914") == "3.99 %");
}

TEST_CASE("html: escaping leaves UTF-8 and replaces what is none") {
  CHECK(html_escape("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(html_escape("µs…😀") == "µs…😀");
  CHECK(html_escape("\xC0\xAF") == "\uFFFD\uFFFD");            // overlong
  CHECK(html_escape("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");  // a surrogate
  CHECK(html_escape(std::string_view("\0\x1B", 2)) == "\uFFFD\uFFFD");
  CHECK(html_id("plots/TTFT 2.svg") == "plots-ttft-2-svg");
  CHECK(html_href("a b/#?.csv") == "./a%20b/%23%3F.csv");
}

}  // namespace
}  // namespace kvcast::reports
