#include "model/io/files/csv_table.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"

namespace kvcast {
namespace {

CsvTable parse(std::string_view text) { return CsvTable::parse(text, "t.csv"); }

TEST_CASE("csv: rows are read by column name, in the order of the file") {
  const CsvTable table = parse("name,count\nllama,7\npythia,12\n");
  CHECK(table.columns() == std::vector<std::string>{"name", "count"});
  REQUIRE(table.size() == 2);
  CHECK(table[0].text("name") == "llama");
  CHECK(table[1].whole("count") == 12);
  CHECK(table.has_column("count"));
  CHECK_FALSE(table.has_column("Count"));
  CHECK(table.rows().size() == 2);
}

TEST_CASE("csv: quoted fields keep commas, quotes and line ends") {
  const CsvTable table = parse("a,b\n\"x, y\",\"say \"\"hi\"\"\"\n\"two\nlines\",\"\"\n");
  REQUIRE(table.size() == 2);
  CHECK(table[0].text("a") == "x, y");
  CHECK(table[0].text("b") == "say \"hi\"");
  CHECK(table[1].text("a") == "two\nlines");
  CHECK(table[1].text("b").empty());
}

TEST_CASE("csv: CRLF, a missing last line end and a byte-order mark change nothing") {
  for (const std::string_view text : {"a,b\n1,\n,2\n", "a,b\r\n1,\r\n,2\r\n", "a,b\n1,\n,2",
                                      "\xEF\xBB\xBF"
                                      "a,b\n1,\n,2\n",
                                      "\"a\",b\r\n\"1\",\r\n,\"2\"\r\n"}) {
    CAPTURE(text);
    const CsvTable table = parse(text);
    CHECK(table.columns() == std::vector<std::string>{"a", "b"});
    REQUIRE(table.size() == 2);
    CHECK(table[0].text("a") == "1");
    CHECK(table[0].text("b").empty());
    CHECK(table[1].text("b") == "2");
  }
}

TEST_CASE("csv: a header alone is a table without rows") { CHECK(parse("a,b\n").size() == 0); }

TEST_CASE("csv: malformed text is refused with file and line") {
  struct Case {
    std::string text;
    std::string message;
  };
  for (const Case& c : {
           Case{"", "t.csv:1: got an empty file, expected a line of column names"},
           {"a,,b\n", "t.csv:1: got an empty column name, expected a name for each column"},
           {"a,b,a\n", "t.csv:1: got column 'a' twice, expected each column once"},
           {"a,b\n1,2\n3\n", "t.csv:3: got 1 fields, expected 2, as in the header"},
           {"a,b\n1,2,3\n", "t.csv:2: got 3 fields, expected 2, as in the header"},
           {"a,b\n\n", "t.csv:2: got 1 fields, expected 2, as in the header"},
           {"a,b\n\"1\n2\",x\n3\n", "t.csv:4: got 1 fields, expected 2, as in the header"},
           {"a,b\n1,\"2\n3,4\n",
            "t.csv:2: got a quoted field without an end, expected a closing quote"},
           {"a,b\n\"1\"x,2\n",
            "t.csv:2: got 'x' after a closing quote, expected a comma or the end of the line"},
           {"a,b\n1,2\"\n",
            "t.csv:2: got a quote inside an unquoted field, expected the whole field in quotes, "
            "its "
            "own doubled"},
       }) {
    CAPTURE(c.text);
    CHECK_THROWS_WITH_AS(parse(c.text), c.message.c_str(), Error);
  }
}

TEST_CASE("csv: a column that is not there is answered with those that are") {
  const CsvTable table = parse("model,ttft_s\nx,1\n");
  CHECK_THROWS_WITH_AS(table[0].text("ttft_ms"),
                       "t.csv:1: got the columns model,ttft_s, expected 'ttft_ms' among them",
                       Error);
}

TEST_CASE("csv: numbers are read strictly") {
  const CsvTable good = parse("n\n0.10\n1e3\n-2.5\n7\n");
  CHECK(good[0].number("n") == 0.1);
  CHECK(good[1].number("n") == 1000);
  CHECK(good[2].number("n") == -2.5);
  CHECK(good[3].whole("n") == 7);

  const CsvTable bad = parse("n,x\n,\n 1,\n1 ,\n1s,\n+1,\ninf,\nnan,\n1e999,\n\"1,5\",\n0x10,\n");
  for (const CsvRow& row : bad.rows()) {
    CAPTURE(row.text("n"));
    CHECK_THROWS_AS(row.number("n"), Error);
    CHECK_THROWS_AS(row.whole("n"), Error);
  }
  const CsvTable not_whole = parse("n\n1.0\n-1\n1e3\n18446744073709551616\n");
  for (const CsvRow& row : not_whole.rows()) {
    CAPTURE(row.text("n"));
    CHECK_THROWS_AS(row.whole("n"), Error);
  }
}

TEST_CASE("csv: a wrong number names its file, line and column") {
  const CsvTable table = parse("a,n\n\"two\nlines\",1\nx,many\n");
  CHECK_THROWS_WITH_AS(table[1].number("n"), "t.csv:4: column 'n': got 'many', expected a number",
                       Error);
  CHECK_THROWS_WITH_AS(
      table[1].whole("n"),
      "t.csv:4: column 'n': got 'many', expected a whole number from 0 to 2^64 - 1", Error);
}

TEST_CASE("csv: a file that cannot be read is an error, a folder too") {
  CHECK_THROWS_AS(CsvTable::read("/no/such/table.csv"), Error);
  CHECK_THROWS_AS(CsvTable::read("/"), Error);
}

TEST_CASE("csv: a header of many columns is checked for doubles all the same") {
  std::string header = "c";
  for (int i = 0; i < 200'000; ++i) header += ",c" + std::to_string(i);
  CHECK(parse(header + "\n").has_column("c199999"));
  CHECK_THROWS_AS(parse(header + ",c7\n"), Error);
}

}  // namespace
}  // namespace kvcast
