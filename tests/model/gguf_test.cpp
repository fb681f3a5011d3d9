#include "model/io/tensors/gguf.h"

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "model/io/tensors/mapped_file.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"

using namespace kvcast;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

GgufFile read(const GgufWriter& writer) { return read_gguf(in_memory(writer.bytes(), "m.gguf")); }

std::string file_refusal(const std::string& bytes) {
  return message_of([&] { read_gguf(in_memory(bytes, "m.gguf")); });
}
std::string file_refusal(const GgufWriter& writer) { return file_refusal(writer.bytes()); }

/// A file whose only metadata value has these bytes.
std::string refusal_of_value(std::uint32_t type, const std::string& bytes) {
  GgufWriter w;
  w.value("k", type, bytes);
  return file_refusal(w);
}

std::string array_head(std::uint32_t element, std::uint64_t length) {
  return raw(element) + raw(length);
}

}  // namespace

TEST_CASE("gguf: all thirteen types of metadata are read") {
  GgufWriter w;
  w.value("u8", gguf_id::uint8, raw(std::uint8_t{200}));
  w.value("i8", gguf_id::int8, raw(std::int8_t{-5}));
  w.value("u16", gguf_id::uint16, raw(std::uint16_t{60000}));
  w.value("i16", gguf_id::int16, raw(std::int16_t{300}));
  w.value("u32", gguf_id::uint32, raw(std::uint32_t{4'000'000'000}));
  w.value("i32", gguf_id::int32, raw(std::int32_t{7}));
  w.value("u64", gguf_id::uint64, raw(std::uint64_t{1} << 40));
  w.value("i64", gguf_id::int64, raw(std::int64_t{1} << 41));
  w.value("f32", gguf_id::float32, raw(1e-5f));
  w.value("f64", gguf_id::float64, raw(0.1));
  w.value("yes", gguf_id::boolean, raw(true));
  w.value("no", gguf_id::boolean, raw(false));
  w.text("text", "a\nb");
  w.texts("texts", {"x", "", "yz"});
  const GgufFile file = read(w);
  const GgufMetadata& m = file.metadata;
  CHECK(m.whole("u8") == 200);
  CHECK(m.number("i8") == -5);
  CHECK(m.whole("u16") == 60000);
  CHECK(m.whole("i16") == 300);
  CHECK(m.whole("u32") == 4'000'000'000);
  CHECK(m.whole("i32") == 7);
  CHECK(m.whole("u64") == std::uint64_t{1} << 40);
  CHECK(m.whole("i64") == std::uint64_t{1} << 41);
  CHECK(m.number("f32") == 1e-5);  // the decimal that the float stands for
  CHECK(m.number("f64") == 0.1);
  CHECK(m.flag("yes"));
  CHECK_FALSE(m.flag("no"));
  CHECK(m.text("text") == "a\nb");
  CHECK(m.texts("texts") == std::vector<std::string_view>{"x", "", "yz"});
  CHECK(m.keys().size() == 14);
  CHECK(m.has("u8"));
  CHECK_FALSE(m.has("u"));
  CHECK(m.is_array("texts"));
  CHECK_FALSE(m.is_array("u8"));
}

TEST_CASE("gguf: arrays are read whole, of integers of any width and of floats") {
  GgufWriter w;
  w.list<std::int32_t>("types", gguf_id::int32, {1, -2, 3});
  w.list<std::uint8_t>("bytes", gguf_id::uint8, {255, 0});
  w.list<float>("scores", gguf_id::float32, {0.5f, -1e10f});
  w.list<std::int32_t>("none", gguf_id::int32, {});
  w.value("nested", gguf_id::array,
          array_head(gguf_id::array, 2) + array_head(gguf_id::uint8, 3) + "abc" +
              array_head(gguf_id::string, 1) + gguf_text("q"));
  w.whole("after", 9);
  const GgufFile file = read(w);
  const GgufMetadata& m = file.metadata;
  CHECK(m.integers("types") == std::vector<std::int64_t>{1, -2, 3});
  CHECK(m.integers("bytes") == std::vector<std::int64_t>{255, 0});
  CHECK(m.numbers("scores") == std::vector<float>{0.5f, -1e10f});
  CHECK(m.numbers("types") == std::vector<float>{1, -2, 3});
  CHECK(m.integers("none").empty());
  CHECK(m.length("nested") == 2);
  CHECK(m.whole("after") == 9);
}

TEST_CASE("gguf: a value of another kind is refused with its key") {
  GgufWriter w;
  w.text("text", "x");
  w.whole("n", 3);
  w.value("negative", gguf_id::int32, raw(std::int32_t{-3}));
  w.value("huge", gguf_id::uint64, raw(UINT64_MAX));
  w.number("nan", std::numeric_limits<float>::quiet_NaN());
  w.texts("texts", {"x"});
  w.number("f", 2);
  const GgufFile file = read(w);
  const GgufMetadata& m = file.metadata;
  CHECK(message_of([&] { m.whole("llama.block_count"); }) ==
        "m.gguf: metadata llama.block_count: missing, expected a whole number");
  CHECK(message_of([&] { m.whole("text"); }) ==
        "m.gguf: metadata text: got a string, expected a whole number");
  CHECK(has(message_of([&] { m.whole("negative"); }), "got -3"));
  CHECK(message_of([&] { m.whole("huge"); }) ==
        "m.gguf: metadata huge: got 18446744073709551615, expected a whole number below 2^63");
  CHECK(has(message_of([&] { m.whole("f"); }), "got a float"));
  CHECK(has(message_of([&] { m.whole("texts"); }), "got an array"));
  CHECK(has(message_of([&] { m.number("nan"); }), "expected a number"));
  CHECK(has(message_of([&] { m.text("n"); }), "got an integer, expected a string"));
  CHECK(has(message_of([&] { m.flag("n"); }), "expected true or false"));
  CHECK(has(message_of([&] { m.texts("n"); }), "got an integer, expected an array of strings"));
  CHECK(has(message_of([&] { m.integers("texts"); }), "expected an array of whole numbers"));
  CHECK(has(message_of([&] { m.numbers("texts"); }), "expected an array of numbers"));
  CHECK(m.whole_or("absent", 4) == 4);
  CHECK(m.whole_or("n", 4) == 3);
  CHECK(m.number_or("absent", 0.5) == 0.5);
  CHECK(m.text_or("absent", "y") == "y");
  CHECK(m.flag_or("absent", true));
  CHECK_THROWS(m.whole_or("text", 4));
}

TEST_CASE("gguf: tensors have their shape outermost first and their bytes") {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufWriter w;
    w.version = version;
    w.tensor("matrix", {3, 2}, ggml_id::f32, raw_list<float>({1, 2, 3, 4, 5, 6}));
    w.tensor("halves", {2}, ggml_id::f16, raw_list<std::uint16_t>({0x3c00, 0xc000}));
    w.tensor("bfloat", {1}, ggml_id::bf16, raw_list<std::uint16_t>({0x3f80}));
    w.tensor("blocks", {64}, ggml_id::q8_0, std::string(68, '\0'));
    const GgufFile file = read(w);
    REQUIRE(file.tensors.size() == 4);
    const StoredTensor* matrix = file.find("matrix");
    REQUIRE(matrix != nullptr);
    CHECK(matrix->shape == std::vector<std::uint64_t>{2, 3});
    std::vector<float> values(6);
    read_elements(*matrix, 0, values);
    CHECK(values == std::vector<float>{1, 2, 3, 4, 5, 6});
    values.resize(2);
    read_elements(*file.find("halves"), 0, values);
    CHECK(values == std::vector<float>{1, -2});
    CHECK(file.find("bfloat")->dtype == DType::BF16);
    CHECK(file.find("blocks")->bytes.size() == 68);
    CHECK(file.find("none") == nullptr);
    CHECK_FALSE(file.has("none"));
  }
}

TEST_CASE("gguf: the alignment is the one that the metadata names") {
  GgufWriter w;
  w.alignment = 128;
  w.whole("general.alignment", 128);
  w.tensor("a", {1}, ggml_id::f32, raw(1.5f));
  w.tensor("b", {1}, ggml_id::f32, raw(2.5f));
  const GgufFile file = read(w);
  std::vector<float> value(1);
  read_elements(*file.find("b"), 0, value);
  CHECK(value[0] == 2.5f);
  for (const std::uint32_t wrong : {0u, 48u, 1u << 21}) {
    GgufWriter bad;
    bad.whole("general.alignment", wrong);
    CHECK(has(file_refusal(bad), "metadata general.alignment: got " + std::to_string(wrong)));
  }
}

TEST_CASE("gguf: tensors of types that are not read are kept by name") {
  GgufWriter w;
  w.tensor("q3", {256}, ggml_id::iq3_s, std::string(110, '\0'));
  w.tensor_at("later", {7}, 99, 0);  // its size is unknown
  // Number and bytes of a row of 256.
  for (const auto& [type, bytes] : {std::pair{31u, 144u}, {40u, 144u}, {41u, 36u}, {42u, 72u}}) {
    w.tensor("t" + std::to_string(type), {256}, type, std::string(bytes, '\0'));
  }
  w.zeros("known", {2});
  const GgufFile file = read(w);
  REQUIRE(file.has("q3"));
  for (const auto& [name, type] :
       {std::pair{"t31", "Q4_0_4_4"}, {"t40", "NVFP4"}, {"t41", "Q1_0"}, {"t42", "Q2_0"}}) {
    CAPTURE(name);
    REQUIRE(file.has(name));
    CHECK_FALSE(file.find(name)->dtype);
    CHECK(file.find(name)->type == type);
  }
  CHECK_FALSE(file.find("q3")->dtype);
  CHECK(file.find("q3")->type == "IQ3_S");
  REQUIRE(file.has("later"));
  CHECK(file.find("later")->type == "ggml type 99");
  CHECK(file.find("later")->shape == std::vector<std::uint64_t>{7});
  std::vector<float> values(256);
  CHECK(message_of([&] { read_elements(*file.find("q3"), 0, values); }) ==
        "m.gguf: tensor q3: got element type IQ3_S, expected a type that kvcast reads");
}

TEST_CASE("gguf: other formats, versions and byte orders are refused") {
  CHECK(has(file_refusal(""), "does not start with 'GGUF'"));
  CHECK(has(file_refusal("GGUF"), "does not start with 'GGUF'"));
  CHECK(has(file_refusal("GGML" + std::string(100, '\0')), "does not start with 'GGUF'"));
  CHECK(
      has(file_refusal("GGUF" + raw(std::uint32_t{1}) + std::string(100, '\0')), "GGUF version 1"));
  CHECK(
      has(file_refusal("GGUF" + raw(std::uint32_t{4}) + std::string(100, '\0')), "GGUF version 4"));
  CHECK(has(file_refusal(std::string("GGUF\0\0\0\3", 8) + std::string(100, '\0')), "big-endian"));
}

TEST_CASE("gguf: every prefix of a file is refused, or a file without padding") {
  GgufWriter w;
  w.texts("texts", {"x", "yz"});
  w.whole("n", 3);
  w.tensor("a", {2}, ggml_id::f32, raw_list<float>({1, 2}));
  const std::string bytes = w.bytes();
  // After the tensor's 8 bytes there are only 24 of padding.
  for (std::size_t length = 0; length < bytes.size() - 24; ++length) {
    CAPTURE(length);
    CHECK(file_refusal(bytes.substr(0, length)).starts_with("m.gguf: "));
  }
  CHECK_NOTHROW(read_gguf(in_memory(bytes.substr(0, bytes.size() - 24))));
}

TEST_CASE("gguf: counts and lengths that the file cannot hold are refused before they allocate") {
  const std::string head = "GGUF" + raw(std::uint32_t{3});
  const std::string rest(100, '\0');
  CHECK(has(file_refusal(head + raw(UINT64_MAX) + raw(std::uint64_t{0}) + rest),
            "number of tensors: got 18446744073709551615"));
  CHECK(has(file_refusal(head + raw(std::uint64_t{0}) + raw(std::uint64_t{1} << 60) + rest),
            "number of metadata values: got 1152921504606846976"));
  CHECK(has(refusal_of_value(gguf_id::string, raw(UINT64_MAX) + "x"), "a string of"));
  CHECK(has(refusal_of_value(gguf_id::array, array_head(gguf_id::uint64, UINT64_MAX)),
            "an array's length: got 18446744073709551615"));
  // 2^61 · 8 bytes are 2^64, which is 0 to a careless product.
  CHECK(has(refusal_of_value(gguf_id::array, array_head(gguf_id::uint64, std::uint64_t{1} << 61)),
            "an array's length"));
  CHECK(has(refusal_of_value(gguf_id::array, array_head(gguf_id::string, 1000)),
            "an array's length"));
  // Four strings are at least their four lengths, 32 bytes.
  CHECK(has(file_refusal("GGUF" + raw(std::uint32_t{3}) + raw(std::uint64_t{0}) +
                         raw(std::uint64_t{1}) + gguf_text("k") + raw(gguf_id::array) +
                         array_head(gguf_id::string, 4) + std::string(31, '\0')),
            "an array's length: got 4"));
  CHECK(
      has(refusal_of_value(gguf_id::array, array_head(gguf_id::array, 1000)), "an array's length"));
}

TEST_CASE("gguf: values of no type, odd booleans and deep arrays are refused") {
  CHECK(has(refusal_of_value(13, "abcdefgh"), "metadata k: got value type 13"));
  CHECK(has(refusal_of_value(gguf_id::array, array_head(13, 1) + "abcdefgh"), "value type 13"));
  CHECK(has(refusal_of_value(gguf_id::boolean, "\2"), "a boolean other than 0 and 1"));
  CHECK(has(refusal_of_value(gguf_id::array, array_head(gguf_id::boolean, 2) + "\1\3"),
            "a boolean other than 0 and 1"));
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += array_head(gguf_id::array, 1);
  CHECK(has(refusal_of_value(gguf_id::array, deep), "arrays nested deeper than 4"));
}

TEST_CASE("gguf: keys and names that come twice or are empty are refused") {
  GgufWriter keys;
  keys.whole("n", 1);
  keys.whole("n", 2);
  CHECK(file_refusal(keys) == "m.gguf: metadata n: got the key twice, expected each key once");
  GgufWriter names;
  names.zeros("w", {2});
  names.zeros("w", {2});
  CHECK(file_refusal(names) == "m.gguf: tensor w: got the name twice, expected each name once");
  GgufWriter empty;
  empty.whole("", 1);
  CHECK(has(file_refusal(empty), "a metadata key of 0 bytes, expected 1 to 65535"));
  GgufWriter long_name;
  long_name.zeros(std::string(65536, 'x'), {2});
  CHECK(has(file_refusal(long_name), "a tensor's name of 65536 bytes"));
}

TEST_CASE("gguf: tensors outside the file, on each other or off the alignment are refused") {
  const auto with = [](const std::vector<std::uint64_t>& dims, std::uint32_t type,
                       std::uint64_t offset) {
    GgufWriter w;
    w.zeros("first", {8});  // bytes 0-31
    w.tensor_at("w", dims, type, offset);
    w.zeros("last", {8});  // bytes 32-63
    return file_refusal(w);
  };
  CHECK(has(with({8}, ggml_id::f32, 64), "32 bytes from byte 64"));
  CHECK(has(with({1}, ggml_id::f32, std::uint64_t{1} << 63), "from byte 9223372036854775808"));
  CHECK(has(with({8}, ggml_id::f32, 8), "a multiple of the alignment, 32"));
  CHECK(has(with({8}, ggml_id::f32, 32), "bytes that tensor"));
  CHECK(has(with({9}, ggml_id::f32, 0), "bytes that tensor"));
  CHECK(has(with({1, 1, 1, 1, 1}, ggml_id::f32, 0), "5 dimensions, expected at most 4"));
  CHECK(has(with({31}, ggml_id::q8_0, 0), "rows of 31 elements"));
  CHECK(has(with({128, 2}, ggml_id::q4_k, 0), "multiples of the 256 of a Q4_K block"));
  const std::uint64_t huge = std::uint64_t{1} << 40;
  CHECK(has(with({huge, huge}, ggml_id::f32, 0), "a size above 2^64 bits"));
  CHECK(has(with({huge}, ggml_id::f32, 0), "4398046511104 bytes from byte 0"));
}
