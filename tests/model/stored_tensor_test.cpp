#include "model/io/tensors/stored_tensor.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/model/stored_values.h"

using namespace kvcast;

namespace {

// Halves by hand: sign, 5 bits of exponent (bias 15), 10 of fraction.
constexpr std::uint16_t half_one = 0x3c00;
constexpr std::uint16_t half_two = 0x4000;
constexpr std::uint16_t half_quarter = 0x3400;
constexpr std::uint16_t minus_half = 0xb800;  // -0.5

using Shape = std::vector<std::uint64_t>;

StoredTensor tensor_of(DType dtype, Shape shape, const std::string& bytes) {
  const auto file = in_memory(bytes, "weights.bin");
  return {"w", dtype, std::move(shape), file->bytes(), file};
}

char byte(int value) { return static_cast<char>(value); }

}  // namespace

TEST_CASE("stored_tensor: elements is the shape's product, and none when an extent is 0") {
  CHECK(tensor_of(DType::FP32, {2, 3, 5}, "").elements() == 30);
  CHECK(tensor_of(DType::FP32, {}, "").elements() == 1);
  const std::uint64_t huge = std::uint64_t{1} << 40;
  CHECK(tensor_of(DType::FP32, {huge, huge, 0}, "").elements() == 0);
  CHECK_THROWS(tensor_of(DType::FP32, {huge, huge}, "").elements());
}

TEST_CASE("stored_tensor: FP32 is copied from any place in the tensor") {
  const StoredTensor t = tensor_of(DType::FP32, {2, 3}, raw_list<float>({1, 2, 3, 4, 5, 6.5f}));
  CHECK(all_of(t) == std::vector<float>{1, 2, 3, 4, 5, 6.5f});
  std::vector<float> part(2);
  read_elements(t, 4, part);
  CHECK(part == std::vector<float>{5, 6.5f});
}

TEST_CASE("stored_tensor: FP64 is read exactly as doubles, and rounded as floats") {
  // 1 + 2^-40 and 2^-1040 need more than a float; 0.1's nearest float is 0.1f.
  const std::vector<double> numbers{1 + 0x1p-40, 0.1, -0x1p-1040, 3e38};
  const StoredTensor t = tensor_of(DType::FP64, {4}, raw_list(numbers));
  std::vector<double> exact(4);
  read_elements(t, 0, exact);
  CHECK(exact == numbers);
  CHECK(all_of(t) == std::vector<float>{1, 0.1f, 0, 3e38f});
  std::vector<double> part(2);
  read_elements(t, 1, part);
  CHECK(part == std::vector<double>{0.1, -0x1p-1040});
}

TEST_CASE("stored_tensor: other types are read as doubles by their fp32 values") {
  std::vector<float> numbers(5000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.1f * static_cast<float>(i);
  std::vector<double> values(4999);
  read_elements(tensor_of(DType::FP32, {5000}, raw_list(numbers)), 1, values);
  CHECK(std::equal(values.begin(), values.end(), numbers.begin() + 1));

  std::string block = raw(half_quarter);
  for (int i = 0; i < 16; ++i) block += byte(i | (15 - i) << 4);
  const StoredTensor quantised = tensor_of(DType::Q4_0, {32}, block);
  const std::vector<float> floats = all_of(quantised);
  values.resize(32);
  read_elements(quantised, 0, values);
  CHECK(std::equal(values.begin(), values.end(), floats.begin(), floats.end()));
}

TEST_CASE("stored_tensor: a double beyond fp32 is an infinity to floats, and finite to doubles") {
  const std::vector<double> numbers{1, 2, -1e39, std::numeric_limits<double>::infinity()};
  const StoredTensor t = tensor_of(DType::FP64, {4}, raw_list(numbers));
  CHECK(message_of([&] { all_of(t); }) ==
        "weights.bin: tensor w, element 2: got an infinity, expected finite weights");
  std::vector<double> values(3);
  read_elements(t, 0, values);
  CHECK(values[2] == -1e39);
  values.resize(4);
  CHECK(message_of([&] { read_elements(t, 0, values); }) ==
        "weights.bin: tensor w, element 3: got an infinity, expected finite weights");
  const std::vector<double> none{std::numeric_limits<double>::quiet_NaN()};
  values.resize(1);
  CHECK(message_of([&] {
          read_elements(tensor_of(DType::FP64, {1}, raw_list(none)), 0, values);
        }) == "weights.bin: tensor w, element 0: got NaN, expected finite weights");
}

TEST_CASE("stored_tensor: every finite half is what its bits say") {
  std::vector<std::uint16_t> halves;
  std::vector<float> expected;
  for (int bits = 0; bits < 65536; ++bits) {
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 1023;
    if (exponent == 31) continue;
    // IEEE 754: 0.fraction · 2^-14, else 1.fraction · 2^(exponent - 15)
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    halves.push_back(static_cast<std::uint16_t>(bits));
    expected.push_back(static_cast<float>(bits < 32768 ? magnitude : -magnitude));
  }
  const std::vector<float> values = all_of(tensor_of(DType::FP16, {2, 31744}, raw_list(halves)));
  CHECK(values == expected);
  CHECK(std::signbit(values[31744]));  // -0
}

TEST_CASE("stored_tensor: BF16 is the upper half of a float") {
  // 1 = 0x3f80, -2 = 0xc000, 2^-126 · 2^-7 = 0x0001
  const std::vector<std::uint16_t> stored{0x3f80, 0xc000, 0x0001};
  CHECK(all_of(tensor_of(DType::BF16, {3}, raw_list(stored))) ==
        std::vector<float>{1, -2, 0x1p-133f});
}

TEST_CASE("stored_tensor: Q8_0 is scale times signed byte") {
  std::string bytes = raw(half_two);
  for (int i = 0; i < 32; ++i) bytes += byte(i - 16);
  bytes += raw(minus_half);
  for (int i = 0; i < 32; ++i) bytes += byte(i == 5 ? -128 : 127);
  const StoredTensor t = tensor_of(DType::Q8_0, {2, 32}, bytes);
  const std::vector<float> values = all_of(t);
  CHECK(values[0] == -32);
  CHECK(values[31] == 30);
  CHECK(values[32 + 4] == -63.5f);
  CHECK(values[32 + 5] == 64);
  std::vector<float> row(32);
  read_elements(t, 32, row);
  CHECK(row[5] == 64);
}

TEST_CASE("stored_tensor: Q4_0 has elements 0-15 in the low and 16-31 in the high bits") {
  std::string bytes = raw(half_quarter);
  for (int i = 0; i < 16; ++i) bytes += byte(i | (15 - i) << 4);
  const std::vector<float> values = all_of(tensor_of(DType::Q4_0, {32}, bytes));
  for (std::size_t i = 0; i < 16; ++i) {
    CHECK(values[i] == 0.25f * (static_cast<float>(i) - 8));
    CHECK(values[16 + i] == 0.25f * (7 - static_cast<float>(i)));
  }
}

TEST_CASE("stored_tensor: Q4_1 adds a minimum to scale times number") {
  std::string bytes = raw(half_two) + raw(minus_half);
  for (int i = 0; i < 16; ++i) bytes += byte(i | 3 << 4);
  const std::vector<float> values = all_of(tensor_of(DType::Q4_1, {32}, bytes));
  CHECK(values[0] == -0.5f);
  CHECK(values[15] == 29.5f);
  CHECK(values[16] == 5.5f);
  CHECK(values[31] == 5.5f);
}

TEST_CASE("stored_tensor: Q5_0 and Q5_1 have the fifth bits in a word") {
  // q = 31 - i: its lower four bits are 15 - i for i < 16, again 31 - i for the others; the fifth
  // is set for i < 16.
  std::string numbers = raw(std::uint32_t{0xffff});
  for (int i = 0; i < 16; ++i) numbers += byte((15 - i) | (15 - i) << 4);
  const std::vector<float> signed_ones =
      all_of(tensor_of(DType::Q5_0, {32}, raw(half_quarter) + numbers));
  const std::vector<float> with_minimum =
      all_of(tensor_of(DType::Q5_1, {32}, raw(half_two) + raw(minus_half) + numbers));
  for (std::size_t i = 0; i < 32; ++i) {
    CHECK(signed_ones[i] == 0.25f * (15 - static_cast<float>(i)));
    CHECK(with_minimum[i] == 2 * (31 - static_cast<float>(i)) - 0.5f);
  }
}

TEST_CASE("stored_tensor: MXFP4 is a power of two times a four-bit float") {
  std::string bytes;
  for (const int exponent : {127, 130, 126}) {
    bytes += byte(exponent);
    for (int i = 0; i < 16; ++i) bytes += byte(i | (15 - i) << 4);
  }
  const std::vector<float> values = all_of(tensor_of(DType::MXFP4, {3, 32}, bytes));
  const std::vector<float> numbers{0, 0.5f,  1,  1.5f,  2,  3,  4,  6,
                                   0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (std::size_t i = 0; i < 16; ++i) {
    CHECK(values[i] == numbers[i]);
    CHECK(values[16 + i] == numbers[15 - i]);
    CHECK(values[32 + i] == 8 * numbers[i]);
    CHECK(values[64 + i] == numbers[i] / 2);
  }
}

TEST_CASE("stored_tensor: Q5_K has the fifth bits of all groups in 32 bytes") {
  // Scales 1 and minima 0 in all groups: s_0 ... s_3 in bytes 0-3, s_4 ... s_7 in the low bits of
  // bytes 8-11.
  const std::string packed =
      std::string(4, byte(1)) + std::string(4, byte(0)) + std::string(4, byte(1));
  // Element i of group j is q = (i + 5j) mod 32.
  const auto number = [](int j, int i) { return (i + 5 * j) % 32; };
  std::string fifths;
  for (int i = 0; i < 32; ++i) {
    int bits = 0;
    for (int j = 0; j < 8; ++j) bits |= number(j, i) >> 4 << j;
    fifths += byte(bits);
  }
  std::string lower;
  for (int pair = 0; pair < 4; ++pair) {
    for (int i = 0; i < 32; ++i) {
      lower += byte((number(2 * pair, i) & 15) | (number(2 * pair + 1, i) & 15) << 4);
    }
  }
  const std::vector<float> values = all_of(
      tensor_of(DType::Q5_K, {256}, raw(half_two) + raw(half_quarter) + packed + fifths + lower));
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      REQUIRE(values[static_cast<std::size_t>(32 * j + i)] == static_cast<float>(2 * number(j, i)));
    }
  }
}

TEST_CASE("stored_tensor: Q4_K has a 6-bit scale and minimum for each 32 elements") {
  // Scales s_j = 7j + 1 and minima m_j = 63 - 5j, packed as ggml-quants.c's get_scale_min_k4 reads.
  std::string packed(12, '\0');
  for (int j = 0; j < 8; ++j) {
    const int s = 7 * j + 1;
    const int m = 63 - 5 * j;
    const auto put = [&](int at, int bits) {
      packed[static_cast<std::size_t>(at)] =
          byte((packed[static_cast<std::size_t>(at)] & 255) | bits);
    };
    if (j < 4) {
      put(j, s);
      put(4 + j, m);
    } else {
      put(4 + j, (s & 15) | (m & 15) << 4);
      put(j - 4, s >> 4 << 6);
      put(j, m >> 4 << 6);
    }
  }
  std::string bytes = raw(half_two) + raw(half_quarter) + packed;
  // Byte i of pair p: element i of group 2p is (i + p) mod 16, of group 2p + 1 it is (3i) mod 16.
  for (int p = 0; p < 4; ++p) {
    for (int i = 0; i < 32; ++i) bytes += byte((i + p) % 16 | 3 * i % 16 << 4);
  }
  const std::vector<float> values = all_of(tensor_of(DType::Q4_K, {256}, bytes));
  for (int group = 0; group < 8; ++group) {
    for (int i = 0; i < 32; ++i) {
      const int q = group % 2 == 0 ? (i + group / 2) % 16 : 3 * i % 16;
      const double expected = 2.0 * (7 * group + 1) * q - 0.25 * (63 - 5 * group);
      REQUIRE(values[static_cast<std::size_t>(32 * group + i)] == static_cast<float>(expected));
    }
  }
}

TEST_CASE("stored_tensor: Q6_K has a signed scale for each 16 elements") {
  // Element e of a half of 128 is q = (5e + half) mod 64; scales are 3j - 20.
  std::string low(128, '\0');
  std::string high(64, '\0');
  const auto put = [](std::string& bytes, int at, int bits) {
    bytes[static_cast<std::size_t>(at)] = byte((bytes[static_cast<std::size_t>(at)] & 255) | bits);
  };
  for (int half = 0; half < 2; ++half) {
    for (int e = 0; e < 128; ++e) {
      const int q = (5 * e + half) % 64;
      const int row = e / 32;
      const int column = e % 32;
      put(low, 64 * half + 32 * (row % 2) + column, (q & 15) << (row < 2 ? 0 : 4));
      put(high, 32 * half + column, q >> 4 << 2 * row);
    }
  }
  std::string bytes = low + high;
  for (int j = 0; j < 16; ++j) bytes += byte(3 * j - 20);
  bytes += raw(half_quarter);
  const std::vector<float> values = all_of(tensor_of(DType::Q6_K, {256}, bytes));
  for (int i = 0; i < 256; ++i) {
    const int q = (5 * (i % 128) + i / 128) % 64 - 32;
    const double expected = 0.25 * (3 * (i / 16) - 20) * q;
    REQUIRE(values[static_cast<std::size_t>(i)] == static_cast<float>(expected));
  }
}

TEST_CASE("stored_tensor: NaN and infinities are named with their element") {
  struct Case {
    DType dtype;
    Shape shape;
    std::string bytes;
    const char* found;
  };
  std::vector<float> numbers(10000, 1.0f);
  numbers[5000] = std::numeric_limits<float>::quiet_NaN();
  const std::string floats = raw_list(numbers);
  const std::uint16_t infinity = 0x7c00;
  const std::vector<std::uint16_t> bfloats{0x3f80, 0x3f80, 0xffc0};
  for (const Case& c :
       {Case{DType::FP32, {100, 100}, floats, "element 5000: got NaN"},
        Case{DType::FP16, {2}, raw(half_one) + raw(infinity), "element 1: got an infinity"},
        Case{DType::BF16, {3}, raw_list(bfloats), "element 2: got NaN"},
        // An infinite scale times q = 8 - 8 = 0 is NaN, times any other an infinity.
        Case{DType::Q4_0,
             {32},
             raw(infinity) + std::string(16, byte(0x87)),
             "element 0: got an infinity"}}) {
    CHECK(message_of([&] { all_of(tensor_of(c.dtype, c.shape, c.bytes)); }) ==
          std::string("weights.bin: tensor w, ") + c.found + ", expected finite weights");
  }
  std::vector<float> part(100);
  const StoredTensor t = tensor_of(DType::FP32, {100, 100}, floats);
  CHECK(message_of([&] { read_elements(t, 4990, part); }) ==
        "weights.bin: tensor w, element 5000: got NaN, expected finite weights");
  read_elements(t, 5001, part);
}

TEST_CASE("stored_tensor: a name from a file is cut to fit a line") {
  CHECK(shortened("abc") == "abc");
  CHECK(shortened(std::string(1000, 'x')) == std::string(77, 'x') + "...");
}

namespace {

/// Bytes without a pattern that parts of a block could share.
std::string scrambled(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += byte((i * i * 7 + i * 37 + 11) % 256);
  return bytes;
}

/// Σ (i + 1) · element i, exact in a double.
double weighted_sum(const std::vector<float>& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += static_cast<double>(i + 1) * static_cast<double>(values[i]);
  }
  return sum;
}

}  // namespace

// Expected values: the gguf package's dequantize() of the same bytes.
TEST_CASE("stored_tensor: Q2_K, Q3_K, IQ4_NL and IQ4_XS are what gguf-py makes of them") {
  const std::vector<float> q2 =
      all_of(tensor_of(DType::Q2_K, {256}, scrambled(80) + raw(half_two) + raw(half_quarter)));
  CHECK(q2[0] == 66);
  CHECK(q2[17] == 41.25f);
  CHECK(q2[40] == -1.75f);
  CHECK(q2[200] == 25.25f);
  CHECK(weighted_sum(q2) == 850962);

  const std::vector<float> q3 =
      all_of(tensor_of(DType::Q3_K, {256}, scrambled(108) + raw(minus_half)));
  CHECK(q3[0] == -40.5f);
  CHECK(q3[31] == -11.5f);
  CHECK(q3[100] == -5);
  CHECK(q3[200] == -45);
  CHECK(weighted_sum(q3) == -15532);

  const std::vector<float> nl =
      all_of(tensor_of(DType::IQ4_NL, {32}, raw(half_quarter) + scrambled(16)));
  CHECK(nl[1] == -2.5f);
  CHECK(nl[31] == -8.75f);
  CHECK(weighted_sum(nl) == 213);

  const std::vector<float> xs =
      all_of(tensor_of(DType::IQ4_XS, {256}, raw(half_two) + scrambled(134)));
  CHECK(xs[0] == -1190);
  CHECK(xs[150] == 7006);
  CHECK(xs[255] == -5650);
  CHECK(weighted_sum(xs) == -6116668);
}
