#include "model/io/tensors/safetensors.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/io/tensors/mapped_file.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/model/stored_values.h"
#include "tests/test_folder.h"

using namespace kvcast;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<StoredTensor> read(const std::string& header, const std::string& buffer) {
  return read_safetensors(in_memory(safetensors_file(header, buffer)));
}

std::string refusal(const std::string& header, std::size_t buffer_bytes) {
  return message_of([&] { read(header, std::string(buffer_bytes, '\0')); });
}

/// A header with one F32 tensor "w" of the given shape and offsets.
std::string one_tensor(const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

void write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// One F32 tensor of a single value.
std::string scalar_file(const std::string& name, float value) {
  return safetensors_bytes({{name, {1}, std::span(&value, 1)}});
}

struct BadHeader {
  const char* header;
  const char* word;
};

}  // namespace

TEST_CASE("safetensors: tensors come in the order of their bytes with shape, type and values") {
  const std::vector<StoredTensor> stored =
      read(R"({"__metadata__":{"format":"pt"},)"
           R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
           R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}   )",
           raw_list<float>({1, 2, 3, 4, 5, 6}) + raw_list<std::uint16_t>({0x3f80, 0xc000, 0}));
  REQUIRE(stored.size() == 2);
  CHECK(stored[0].name == "a");
  CHECK(stored[0].shape == std::vector<std::uint64_t>{2, 3});
  CHECK(all_of(stored[0]) == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(stored[1].dtype == DType::BF16);
  CHECK(all_of(stored[1]) == std::vector<float>{1, -2, 0});
  CHECK(stored[1].place() == "test-file: tensor b");
}

TEST_CASE("safetensors: empty tensors, scalars and files without tensors are legal") {
  const std::vector<StoredTensor> stored =
      read(R"({"none":{"dtype":"F32","shape":[7,0],"data_offsets":[4,4]},)"
           R"("one":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
           raw(2.5f));
  REQUIRE(stored.size() == 2);
  CHECK(all_of(stored[0]) == std::vector<float>{2.5f});
  CHECK(stored[1].elements() == 0);
  CHECK(read("{}", "").empty());
}

TEST_CASE("safetensors: types that are no weights are given back by name and type") {
  const std::vector<StoredTensor> stored =
      read(R"({"ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
           R"("mask":{"dtype":"BOOL","shape":[3],"data_offsets":[16,19]}})",
           std::string(19, '\0'));
  REQUIRE(stored.size() == 2);
  CHECK(stored[0].name == "ids");
  CHECK(stored[0].type == "I64");
  CHECK(stored[1].shape == std::vector<std::uint64_t>{3});
  CHECK_FALSE(stored[1].dtype);
  CHECK(message_of([&] { all_of(stored[1]); }) ==
        "test-file: tensor mask: got element type BOOL, expected a type that kvcast reads");
}

TEST_CASE("safetensors: a header length that the file does not have is refused") {
  const auto message = [](const std::string& content) {
    return message_of([&] { read_safetensors(in_memory(content)); });
  };
  CHECK(has(message(""), "test-file: got 0 bytes"));
  CHECK(has(message("1234567"), "got 7 bytes"));
  CHECK(has(message(raw(std::uint64_t{3}) + "{}"), "header length of 3 "));
  CHECK(has(message(raw(UINT64_MAX) + "{}"), "header length of 18446744073709551615 "));
  CHECK(has(message(raw(std::uint64_t{0})), "does not start with '{'"));
  // The format's limit holds before the header is read.
  CHECK(has(message(raw(std::uint64_t{100'000'001}) + std::string(100'000'001, ' ')),
            "at most 100000000"));
}

TEST_CASE("safetensors: headers that are no map of tensors are refused") {
  const std::array cases{
      BadHeader{"{", "not valid JSON"},
      BadHeader{"{} {}", "not valid JSON"},
      BadHeader{"{\"a\xff\":1}", "not valid JSON"},
      BadHeader{R"({"a":1e999})", "a number that is too large"},
      BadHeader{"[]", "does not start with '{'"},
      BadHeader{R"({"a":1})", "tensor a: got 1, expected an object"},
      BadHeader{R"({"a":[{}]})", "tensor a: got a list, expected an object"},
      BadHeader{R"({"a":{}})", "tensor a: /dtype: missing"},
      BadHeader{R"({"a":{"dtype":"F32","shape":[0]}})", "tensor a: /data_offsets: missing"},
      BadHeader{R"({"a":{"dtype":7}})", "tensor a: /dtype: got 7, expected a string"},
      BadHeader{R"({"a":{"dtype":["F32"]}})", "dtype: got [\"F32\"]"},
      BadHeader{R"({"a":{"dtype":"F32","shape":[[4]]}})", "lists or objects inside each other"},
      BadHeader{R"({"a":{"dtype":"F32","shape":[{}]}})", "lists or objects inside each other"},
      BadHeader{R"({"a":{"dtype":"F32","dtype":"F16"}})", "the key dtype twice"},
      BadHeader{R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"type":1}})", "key 'type'"},
      BadHeader{R"({"__metadata__":{"a":1}})", "__metadata__: /a: got 1"},
      BadHeader{R"({"__metadata__":{"a":{}}})", "__metadata__: got lists or objects"},
      BadHeader{R"({"__metadata__":{"a":"x","a":"y"}})", "__metadata__: got the key a twice"},
      BadHeader{R"({"a":{"dtype":"F31","shape":[0],"data_offsets":[0,0]}})", "dtype: got F31"},
  };
  const auto check = [](const std::string& header, const std::string& word) {
    const std::string line = refusal(header, 0);
    CAPTURE(header);
    CAPTURE(line);
    CHECK(line.starts_with("test-file: "));
    CHECK(has(line, word));
    CHECK_FALSE(has(line, "\n"));
  };
  for (const BadHeader& c : cases) check(c.header, c.word);
  for (const char* shape :
       {"4", "[-4]", "[4.5]", "[\"4\"]", "[null]", "[true]", "[18446744073709551616]"}) {
    check(one_tensor(shape, "[0,0]"), "tensor w: /shape: got ");
  }
  check(one_tensor("[" + std::string(128, '1') + "]", "[0,0]"), "expected a list of whole numbers");
  std::string long_list = "1";
  for (int i = 0; i < 64; ++i) long_list += ",1";
  check(one_tensor("[" + long_list + "]", "[0,4]"), "a list of more than 64 numbers");
  for (const char* offsets : {"[0]", "[0,0,0]", "[]"}) {
    check(one_tensor("[0]", offsets), "data_offsets: got ");
  }
}

TEST_CASE("safetensors: a name that comes twice is refused, though JSON would keep the last") {
  const std::string tensor = R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  CHECK(refusal("{" + tensor + "," + tensor + "}", 4) ==
        "test-file: tensor w: got its name twice, expected each name once");
}

TEST_CASE("safetensors: a header nested a hundred thousand deep is refused without a crash") {
  const std::string deep = R"({"a":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  CHECK(has(refusal(deep, 0), "tensor a: got a list"));
}

TEST_CASE("safetensors: offsets that contradict the shape or the file are refused") {
  CHECK(has(refusal(one_tensor("[2]", "[0,12]"), 12), "got [0,12], expected 8 bytes"));
  CHECK(has(refusal(one_tensor("[2]", "[0,4]"), 4), "got [0,4], expected 8 bytes"));
  CHECK(has(refusal(one_tensor("[2]", "[8,0]"), 8), "data_offsets: got [8,0]"));
  CHECK(has(refusal(one_tensor("[2]", "[0,8]"), 7), "the file's 7 bytes"));
  CHECK(has(refusal(one_tensor("[4294967296,4294967296]", "[0,0]"), 0), "above 2^64 bits"));
  // 2^62 floats are 2^64 bytes, which is 0 to a careless product.
  CHECK(has(refusal(one_tensor("[4611686018427387904]", "[0,0]"), 0), "above 2^64 bits"));
  CHECK(has(refusal(one_tensor("[4611686018427387904,2]", "[0,0]"), 0), "above 2^64 bits"));
  CHECK(has(refusal(one_tensor("[1]", "[0,18446744073709551615]"), 4), "data_offsets"));
}

TEST_CASE("safetensors: gaps, overlaps and bytes of no tensor are refused") {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + first +
           R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + second + "}}";
  };
  CHECK_NOTHROW(read(two("[8,16]", "[0,8]"), std::string(16, '\0')));
  CHECK(has(refusal(two("[0,8]", "[4,12]"), 12),
            "tensor b: got bytes that tensor a has too, expected bytes of its own"));
  CHECK(has(refusal(two("[0,8]", "[0,8]"), 8), "tensor b: got bytes that tensor a has too"));
  CHECK(has(refusal(two("[0,8]", "[12,20]"), 20),
            "tensor b: got byte 12 as its first, expected byte 8"));
  CHECK(has(refusal(two("[4,12]", "[12,20]"), 20), "got byte 4 as its first, expected byte 0"));
  CHECK(has(refusal(two("[0,8]", "[8,16]"), 20),
            "got 20 bytes after the header, expected 16, where the last tensor ends"));
}

TEST_CASE("safetensors: what is written is read back") {
  const std::vector<float> a{1, 2, 3, 4, 5, 6};
  const std::vector<float> b{-0.5f};
  const std::string bytes = safetensors_bytes({{"second", {2, 3}, a}, {"first", {}, b}});
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  CHECK(header % 8 == 0);
  CHECK(bytes.size() == 8 + header + 28);
  CHECK(nlohmann::json::parse(bytes.substr(8, header))["__metadata__"]["format"] == "pt");
  const std::vector<StoredTensor> stored = read_safetensors(in_memory(bytes));
  REQUIRE(stored.size() == 2);
  CHECK(stored[0].name == "second");
  CHECK(stored[0].shape == std::vector<std::uint64_t>{2, 3});
  CHECK(all_of(stored[0]) == a);
  CHECK(stored[1].shape.empty());
  CHECK(all_of(stored[1]) == b);
}

TEST_CASE("safetensors: each tensor is written in its dtype, floats and doubles alike") {
  const std::vector<float> floats{0.1f, -2};
  const std::vector<double> doubles{0.1, 1e300};
  const std::vector<double> small{0.1, -3};
  const std::string bytes = safetensors_bytes({{"a", {2}, floats, DType::FP64},
                                               {"b", {2}, doubles, DType::FP64},
                                               {"c", {2, 1}, small, DType::FP32},
                                               {"d", {2}, small, DType::FP16},
                                               {"e", {2}, floats, DType::BF16}});
  const std::vector<StoredTensor> stored = read_safetensors(in_memory(bytes));
  REQUIRE(stored.size() == 5);
  const std::array dtypes{DType::FP64, DType::FP64, DType::FP32, DType::FP16, DType::BF16};
  const std::array<std::size_t, 5> sizes{16, 16, 8, 4, 4};
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(stored[i].dtype == dtypes[i]);
    CHECK(stored[i].bytes.size() == sizes[i]);
  }
  const auto exact = [&](std::size_t i) {
    std::vector<double> values(2);
    read_elements(stored[i], 0, values);
    return values;
  };
  CHECK(exact(0) == std::vector<double>{0.1f, -2});
  CHECK(exact(1) == doubles);
  CHECK(exact(2) == std::vector<double>{0.1f, -3});
  // 0.1 = 1.6 · 2^-4: 1638.4 steps of 2^-14 in fp16, 204.8 steps of 2^-11 in bf16.
  CHECK(exact(3) == std::vector<double>{1638 * 0x1p-14, -3});
  CHECK(exact(4) == std::vector<double>{205 * 0x1p-11, -2});
}

TEST_CASE("safetensors: every half and bf16 number is written as its own bits") {
  for (const DType dtype : {DType::FP16, DType::BF16}) {
    const int infinity = dtype == DType::FP16 ? 0x7c00 : 0x7f80;
    std::vector<std::uint16_t> bits;
    for (int i = 0; i < 65536; ++i) {
      if ((i & 0x7fff) < infinity) bits.push_back(static_cast<std::uint16_t>(i));
    }
    StoredTensor t{"w", dtype, {bits.size()}, {}, in_memory(raw_list(bits))};
    t.bytes = t.file->bytes();
    CHECK(safetensors_data({"w", t.shape, all_of(t), dtype}) == raw_list(bits));
  }
}

TEST_CASE("safetensors: halves are rounded to nearest, ties to even, from doubles at once") {
  const auto half = [](double x, DType dtype) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, safetensors_data({"w", {1}, std::span(&x, 1), dtype}).data(), 2);
    return bits;
  };
  // Steps of 2^-10 above 1 (0x3c00) in fp16, of 2^-7 (0x3f80) in bf16.
  CHECK(half(1 + 0x1p-11, DType::FP16) == 0x3c00);
  CHECK(half(1 + 0x3p-11, DType::FP16) == 0x3c02);
  CHECK(half(1 + 0x1p-8, DType::BF16) == 0x3f80);
  CHECK(half(1 + 0x3p-8, DType::BF16) == 0x3f82);
  // Above the tie by less than a float shows: rounding to fp32 first would go down.
  CHECK(half(1 + 0x1p-11 + 0x1p-40, DType::FP16) == 0x3c01);
  CHECK(half(-1 - 0x1p-8 - 0x1p-40, DType::BF16) == 0xbf81);
  // Subnormals are steps of 2^-24 in fp16 and 2^-133 in bf16; half a step goes to 0, the even one.
  CHECK(half(0x1p-25, DType::FP16) == 0);
  CHECK(half(-0x1p-25, DType::FP16) == 0x8000);
  CHECK(half(0x3p-25, DType::FP16) == 2);
  CHECK(half(0x1p-14 - 0x1p-26, DType::FP16) == 0x0400);
  CHECK(half(0x3p-134, DType::BF16) == 2);
  CHECK(half(0x1p-1070, DType::BF16) == 0);
  // The next binade.
  CHECK(half(2 - 0x1p-12, DType::FP16) == 0x4000);
  CHECK(half(65519, DType::FP16) == 0x7bff);
}

TEST_CASE("safetensors: a number that the dtype does not reach is refused by tensor and element") {
  const auto message = [](double value, DType dtype, std::uint64_t first = 0) {
    const std::vector<double> values{1, value};
    return message_of([&] { safetensors_data({"w", {2}, values, dtype}, first); });
  };
  CHECK(message(70000, DType::FP16, 30) ==
        "tensor w, element 31: got 70000, expected a number of fp16, at most 65504");
  // The tie between 65504 and 2^16.
  CHECK(has(message(-65520, DType::FP16), "element 1: got -65520"));
  CHECK(message(0x1.fffp127, DType::BF16) != message(1, DType::BF16));
  CHECK(has(message(3.4e38, DType::BF16), "got 3.4e+38, expected a number of bf16, at most 3.38"));
  CHECK(has(message(1e39, DType::FP32), "got 1e+39, expected a number of fp32, at most 3.40"));
  CHECK(has(message(std::numeric_limits<double>::quiet_NaN(), DType::FP16), "got nan"));
  CHECK(has(message(std::numeric_limits<double>::infinity(), DType::BF16), "got inf"));
  CHECK(
      has(message(1, DType::Q8_0), "tensor w: got dtype q8_0, expected fp64, fp32, fp16 or bf16"));
}

TEST_CASE("safetensors: a header and pieces of the tensors are the whole file") {
  std::vector<double> numbers(1000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.37 * static_cast<double>(i);
  const std::vector<float> floats{1, 2, 3};
  const std::vector<TensorToWrite> whole{{"a", {10, 100}, numbers, DType::BF16},
                                         {"b", {3}, floats, DType::FP32}};
  std::string streamed = safetensors_header({{"a", {10, 100}, {}, DType::BF16}, {"b", {3}, {}}});
  for (std::size_t first = 0; first < 1000; first += 300) {
    const std::size_t n = std::min<std::size_t>(300, 1000 - first);
    streamed += safetensors_data(
        {"a", {10, 100}, std::span(numbers).subspan(first, n), DType::BF16}, first);
  }
  streamed += safetensors_data(whole[1]);
  CHECK(streamed == safetensors_bytes(whole));
}

TEST_CASE("safetensors: a folder is its model.safetensors, its shards or its only file") {
  const TestFolder folder;
  const auto names = [&] {
    std::string line;
    for (const StoredTensor& t : read_safetensors_folder(folder.path())) line += t.name;
    return line;
  };
  CHECK(has(message_of(names), "got 0 *.safetensors files"));
  write(folder / "b.safetensors", scalar_file("b", 1));
  CHECK(names() == "b");
  write(folder / "a.safetensors", scalar_file("a", 2));
  CHECK(has(message_of(names), "got 2 *.safetensors files"));
  write(folder / "model.safetensors.index.json",
        R"({"metadata":{},"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})");
  CHECK(names() == "ab");
  write(folder / "model.safetensors", scalar_file("whole", 3));
  CHECK(names() == "whole");
  CHECK(has(message_of([&] { read_safetensors_folder(folder / "none"); }), "none: no folder"));
}

TEST_CASE("safetensors: an index that is wrong about its shards is refused") {
  const TestFolder folder;
  write(folder / "a.safetensors", scalar_file("a", 2));
  const auto message = [&](const std::string& index) {
    write(folder / "model.safetensors.index.json", index);
    return message_of([&] { read_safetensors_folder(folder.path()); });
  };
  CHECK(has(message("{}"), "/weight_map: missing"));
  CHECK(has(message(R"({"weight_map":[]})"), "/weight_map: got [], expected an object"));
  CHECK(has(message(R"({"weight_map":{"a":1}})"), "/weight_map/a: got 1, expected a string"));
  CHECK(has(message(R"({"weight_map":{"a":"c.safetensors"}})"),
            "names c.safetensors, which is not in the folder"));
  CHECK(has(message(R"({"weight_map":{"a":"a.safetensors","z":"a.safetensors"}})"),
            "a.safetensors: has no tensor z"));
}

TEST_CASE("safetensors: an index cannot lead out of its folder") {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "model");
  write(folder / "a.safetensors", scalar_file("a", 2));
  const std::string outside = (folder / "a.safetensors").string();
  for (const std::string& name :
       {std::string("../a.safetensors"), outside, std::string(".."), std::string("."),
        std::string(), std::string("x\\\\a"), std::string("model/../../a.safetensors")}) {
    CAPTURE(name);
    write(folder / "model" / "model.safetensors.index.json",
          R"({"weight_map":{"a":")" + name + R"("}})");
    const std::string line = message_of([&] { read_safetensors_folder(folder / "model"); });
    CHECK(has(line, "the name of a file in the same folder"));
  }
}

TEST_CASE("safetensors: a tensor counts where the index places it") {
  const TestFolder folder;
  write(folder / "a.safetensors", scalar_file("w", 1));
  write(folder / "b.safetensors", scalar_file("w", 2));
  write(folder / "model.safetensors.index.json", R"({"weight_map":{"w":"b.safetensors"}})");
  const std::vector<StoredTensor> stored = read_safetensors_folder(folder.path());
  REQUIRE(stored.size() == 1);
  CHECK(all_of(stored[0]) == std::vector<float>{2});
}
