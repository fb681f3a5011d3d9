#include "model/io/tensors/block_writer.h"

#include <map>

#include <doctest/doctest.h>

#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "tests/model/message_of.h"

namespace kvcast {

TEST_CASE("block_writer: blocks are those of ggml's reference, bit for bit") {
  // tests/oracle/make_ggml_blocks.py
  const std::filesystem::path path =
      std::filesystem::path(KVCAST_SOURCE_DIR) / "tests" / "oracle" / "ggml_blocks.safetensors";
  std::map<std::string, StoredTensor> stored;
  for (StoredTensor& t : read_safetensors(MappedFile::open(path))) stored[t.name] = t;
  const StoredTensor& of_numbers = stored.at("numbers");
  std::vector<float> numbers(of_numbers.elements());
  read_elements(of_numbers, 0, std::span(numbers));
  std::size_t types = 0;
  for (const DType dtype : {DType::FP16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q5_0,
                            DType::Q5_1, DType::Q4_K, DType::Q5_K, DType::Q6_K}) {
    CAPTURE(name(dtype));
    CHECK(can_write_blocks(dtype));
    const StoredTensor& expected = stored.at(std::string(ggml_type_name(dtype)));
    std::vector<std::byte> blocks(expected.bytes.size());
    write_blocks(dtype, numbers, blocks);
    // By row of 256 numbers.
    const std::size_t row = blocks.size() / of_numbers.shape[0];
    for (std::size_t r = 0; r < of_numbers.shape[0]; ++r) {
      CAPTURE(r);
      CHECK(std::equal(blocks.begin() + static_cast<std::ptrdiff_t>(r * row),
                       blocks.begin() + static_cast<std::ptrdiff_t>((r + 1) * row),
                       expected.bytes.begin() + static_cast<std::ptrdiff_t>(r * row)));
    }
    ++types;
  }
  CHECK(types + 1 == stored.size());
  std::vector<std::byte> bytes(4 * numbers.size());
  write_blocks(DType::FP32, numbers, bytes);
  CHECK(std::equal(bytes.begin(), bytes.end(), of_numbers.bytes.begin()));
}

TEST_CASE("block_writer: a number and a scale beyond 16 bits are errors") {
  std::vector<float> numbers(32, 1.0F);
  std::vector<std::byte> blocks(64);
  numbers[7] = 1e6F;
  CHECK(message_of([&] { write_blocks(DType::FP16, numbers, blocks); }) ==
        "a number to write: got 1000000, expected at most 65504, the largest of fp16");
  CHECK_NOTHROW(write_blocks(DType::BF16, numbers, blocks));
  numbers[7] = 1e7F;  // / 127 is beyond 65504
  blocks.resize(34);
  CHECK_THROWS_AS(write_blocks(DType::Q8_0, numbers, blocks), Error);
  CHECK(!can_write_blocks(DType::Q2_K));
}

}  // namespace kvcast
