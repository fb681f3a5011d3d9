#include "model/base/quantity.h"

#include <array>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "tests/model/message_of.h"
#include "tests/near.h"

using namespace kvcast;

namespace {

struct Good {
  std::string_view text;
  Dimension dimension;
  double value;
};

struct Bad {
  std::string_view text;
  Dimension dimension;
  std::string_view example;  // a unit that the message must show
};

constexpr std::array good{
    Good{"312 TFLOP/s", Dimension::FlopsPerSecond, 312e12},
    Good{"624 TOP/s", Dimension::FlopsPerSecond, 624e12},
    Good{"1.25PFLOP/s", Dimension::FlopsPerSecond, 1.25e15},
    Good{"7 FLOP/s", Dimension::FlopsPerSecond, 7},
    Good{"3.35 TB/s", Dimension::BytesPerSecond, 3.35e12},
    Good{"2039 GB/s", Dimension::BytesPerSecond, 2039e9},
    Good{"2 GiB/s", Dimension::BytesPerSecond, 2147483648.0},
    Good{"5 kB/s", Dimension::BytesPerSecond, 5000},
    Good{"80 GB", Dimension::Bytes, 80e9},
    Good{"40 MiB", Dimension::Bytes, 41943040.0},
    Good{"3 KiB", Dimension::Bytes, 3072},
    Good{"3 TiB", Dimension::Bytes, 3298534883328.0},
    Good{"6 MB", Dimension::Bytes, 6e6},
    Good{"9B", Dimension::Bytes, 9},
    Good{"2.6 us", Dimension::Seconds, 2.6e-6},
    Good{"8 ms", Dimension::Seconds, 8e-3},
    Good{"500 ns", Dimension::Seconds, 5e-7},
    Good{"1e-3 s", Dimension::Seconds, 1e-3},
    Good{"0 s", Dimension::Seconds, 0},
};

constexpr std::array bad{
    Bad{"", Dimension::Bytes, "GB"},
    Bad{"3350", Dimension::BytesPerSecond, "TB/s"},
    Bad{"TB/s", Dimension::BytesPerSecond, "TB/s"},
    Bad{"3.35 TB", Dimension::BytesPerSecond, "TB/s"},
    Bad{"3.35 TB/s", Dimension::Bytes, "GB"},
    Bad{"80 Gb", Dimension::Bytes, "GB"},
    Bad{"80 gb", Dimension::Bytes, "GB"},
    Bad{"80 GB extra", Dimension::Bytes, "GB"},
    Bad{"80 GB ", Dimension::Bytes, "GB"},
    Bad{" 80 GB", Dimension::Bytes, "GB"},
    Bad{"-80 GB", Dimension::Bytes, "GB"},
    Bad{"nan GB", Dimension::Bytes, "GB"},
    Bad{"inf GB", Dimension::Bytes, "GB"},
    Bad{"1e400 GB", Dimension::Bytes, "GB"},
    // The smallest double, the largest one, and what a prefix carries beyond both.
    Bad{"5e-324 B/s", Dimension::BytesPerSecond, "1e-30 to 1e30"},
    Bad{"1e308 s", Dimension::Seconds, "1e-30 to 1e30"},
    Bad{"1e300 PB", Dimension::Bytes, "1e-30 to 1e30"},
    Bad{"1e-22 ns", Dimension::Seconds, "1e-30 to 1e30"},
    Bad{"8,0 GB", Dimension::Bytes, "GB"},
    Bad{"0x10 GB", Dimension::Bytes, "GB"},
    Bad{"312 TFLOPS", Dimension::FlopsPerSecond, "TFLOP/s"},
    Bad{"312 TFLOP", Dimension::FlopsPerSecond, "TFLOP/s"},
    Bad{"312 TB/s", Dimension::FlopsPerSecond, "TFLOP/s"},
    Bad{"2.6 \xc2\xb5s", Dimension::Seconds, "us"},
    Bad{"2.6 u", Dimension::Seconds, "us"},
    Bad{"2.6 sec", Dimension::Seconds, "us"},
    // A thousandth of a byte is a slip of the shift key.
    Bad{"40 mB", Dimension::Bytes, "GB"},
    Bad{"40 nB/s", Dimension::BytesPerSecond, "TB/s"},
    Bad{"312 mFLOP/s", Dimension::FlopsPerSecond, "TFLOP/s"},
};

}  // namespace

TEST_CASE("quantity: a number and a unit give base units") {
  for (const Good& c : good) {
    CAPTURE(c.text);
    CHECK(parse_quantity(c.text, c.dimension, "here") == near(c.value).epsilon(1e-15));
  }
}

TEST_CASE("quantity: a missing, foreign or impossible unit or number is refused with an example") {
  for (const Bad& c : bad) {
    CAPTURE(c.text);
    const std::string line =
        message_of([&] { parse_quantity(c.text, c.dimension, "file.json: /place"); });
    CAPTURE(line);
    CHECK(line.starts_with("file.json: /place: got \"" + std::string(c.text) + "\", expected"));
    CHECK(line.find(c.example) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  }
}

TEST_CASE("quantity: the k of a token count is 1024, as in a 128k context") {
  CHECK(parse_token_count("4096", "p") == 4096);
  CHECK(parse_token_count("1k", "p") == 1024);
  CHECK(parse_token_count("128K", "p") == 131072);
  CHECK(parse_token_count("4Ki", "p") == 4096);
  CHECK(parse_token_count("1M", "p") == 1048576);
  CHECK(parse_token_count("1.5k", "p") == 1536);
  CHECK(parse_token_count("1e3", "p") == 1000);
}

TEST_CASE("quantity: a token count that is no whole number above zero is refused") {
  for (const std::string text : {"", "0", "-4", "1.5", "0.1k", "k", "4 k", "4kk", "4G", "nan",
                                 "inf", "1e16", "1e400", "twelve", "0x10", " 4", "4 ", "4,096"}) {
    CAPTURE(text);
    const std::string line = message_of([&] { parse_token_count(text, "--prompt-len"); });
    CAPTURE(line);
    CHECK(line.starts_with("--prompt-len: got \"" + std::string(text) + "\""));
    CHECK(line.find("a whole number above 0") != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  }
}

TEST_CASE("quantity: a printed quantity has three digits, a prefix and a unit") {
  CHECK(format_quantity(312e12, Dimension::FlopsPerSecond) == "312 TFLOP/s");
  CHECK(format_quantity(2.039e12, Dimension::BytesPerSecond) == "2.04 TB/s");
  CHECK(format_quantity(16.2e6, Dimension::Bytes) == "16.2 MB");
  CHECK(format_quantity(999.0, Dimension::Bytes) == "999 B");
  CHECK(format_quantity(999.9, Dimension::Bytes) == "1 kB");  // not "1e+03 B"
  CHECK(format_quantity(1.834e-3, Dimension::Seconds) == "1.83 ms");
  CHECK(format_quantity(2.6e-6, Dimension::Seconds) == "2.6 us");
  CHECK(format_quantity(0, Dimension::Seconds) == "0 s");
}

TEST_CASE("quantity: a printed count has a prefix and no blank at its end") {
  CHECK(format_count(1.234e12) == "1.23 T");
  CHECK(format_count(42e3) == "42 k");
  CHECK(format_count(5) == "5");
  CHECK(format_count(0) == "0");
}
