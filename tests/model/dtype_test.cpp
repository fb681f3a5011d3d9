#include "model/base/dtype.h"

#include <array>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "model/base/error.h"

using namespace kvcast;

namespace {

struct BlockCase {
  DType dtype;
  std::string_view name;
  int bits;      // of a block
  int elements;  // of a block
};

// GGUF blocks by hand from ggml-common.h: q8_0 = half + 32 x 8 bits = 272; q4_0 = half + 32 x 4 =
// 144; q4_1 = 2 halves + 32 x 4 = 160; q4_k = 2 halves + 12 bytes of scales + 256 x 4 = 1152;
// q6_k = 256 x 6 + 16 x 8 bits of scales + half = 1680; q5_0, q5_1 and q5_k have a bit more for
// each element; mxfp4 = byte + 32 x 4 = 136.
constexpr std::array blocks{
    BlockCase{DType::FP32, "fp32", 32, 1},
    BlockCase{DType::TF32, "tf32", 32, 1},
    BlockCase{DType::FP16, "fp16", 16, 1},
    BlockCase{DType::BF16, "bf16", 16, 1},
    BlockCase{DType::FP8, "fp8", 8, 1},
    BlockCase{DType::INT8, "int8", 8, 1},
    BlockCase{DType::INT4, "int4", 4, 1},
    BlockCase{DType::Q8_0, "q8_0", 16 + 256, 32},
    BlockCase{DType::Q4_0, "q4_0", 16 + 128, 32},
    BlockCase{DType::Q4_1, "q4_1", 32 + 128, 32},
    BlockCase{DType::Q4_K, "q4_k", 32 + 96 + 1024, 256},
    BlockCase{DType::Q6_K, "q6_k", 1536 + 128 + 16, 256},
    BlockCase{DType::FP64, "fp64", 64, 1},
    BlockCase{DType::Q5_0, "q5_0", 16 + 160, 32},
    BlockCase{DType::Q5_1, "q5_1", 32 + 160, 32},
    BlockCase{DType::Q2_K, "q2_k", 128 + 512 + 32, 256},
    BlockCase{DType::Q3_K, "q3_k", 256 + 512 + 96 + 16, 256},
    BlockCase{DType::Q5_K, "q5_k", 32 + 96 + 1280, 256},
    BlockCase{DType::IQ1_S, "iq1_s", 16 + 256 + 128, 256},
    BlockCase{DType::IQ1_M, "iq1_m", 256 + 128 + 64, 256},
    BlockCase{DType::IQ2_XXS, "iq2_xxs", 16 + 512, 256},
    BlockCase{DType::IQ2_XS, "iq2_xs", 16 + 512 + 64, 256},
    BlockCase{DType::IQ2_S, "iq2_s", 16 + 512 + 64 + 64, 256},
    BlockCase{DType::IQ3_XXS, "iq3_xxs", 16 + 768, 256},
    BlockCase{DType::IQ3_S, "iq3_s", 16 + 512 + 64 + 256 + 32, 256},
    BlockCase{DType::IQ4_NL, "iq4_nl", 16 + 128, 32},
    BlockCase{DType::IQ4_XS, "iq4_xs", 16 + 16 + 32 + 1024, 256},
    BlockCase{DType::TQ1_0, "tq1_0", 384 + 32 + 16, 256},
    BlockCase{DType::TQ2_0, "tq2_0", 512 + 16, 256},
    BlockCase{DType::MXFP4, "mxfp4", 8 + 128, 32},
    BlockCase{DType::NVFP4, "nvfp4", 8 + 64, 16},
    BlockCase{DType::FP8_B128, "fp8_b128", 131072 + 32, 16384},
    BlockCase{DType::INT4_G32, "int4_g32", 128 + 16 + 4, 32},
    BlockCase{DType::INT4_G64, "int4_g64", 256 + 16 + 4, 64},
    BlockCase{DType::INT4_G128, "int4_g128", 512 + 16 + 4, 128},
};

}  // namespace

TEST_CASE("dtype: every name is read back as its dtype, and a block's bits are ggml's") {
  static_assert(blocks.size() == num_dtypes);
  CHECK(dtype_names().size() == blocks.size());
  for (const BlockCase& c : blocks) {
    CAPTURE(c.name);
    CHECK(parse_dtype(c.name) == c.dtype);
    CHECK(name(c.dtype) == c.name);
    CHECK(width(c.dtype).block_bits == c.bits);
    CHECK(width(c.dtype).block_elements == c.elements);
    // 7 blocks of 16,384 elements are a whole number of bytes in every dtype.
    const std::uint64_t elements = 7 * 16384;
    const std::uint64_t bits =
        elements / static_cast<std::uint64_t>(c.elements) * static_cast<std::uint64_t>(c.bits);
    CHECK(bytes_of(elements, c.dtype).at({}) == bits / 8);
    CHECK(bits_per_element(c.dtype) == static_cast<double>(bits) / static_cast<double>(elements));
  }
}

TEST_CASE("dtype: half bytes stay exact until a count is evaluated and round up once") {
  // 3 + 5 four-bit elements: 1.5 + 2.5 = 4 bytes, not 2 + 3.
  CHECK((bytes_of(3, DType::INT4) + bytes_of(5, DType::INT4)).at({}) == 4);
  CHECK(bytes_of(3, DType::INT4).at({}) == 2);
  // 33 elements of q4_0: 33 · 144 / 256 bytes = 18.5625
  CHECK(bytes_of(33, DType::Q4_0).at({}) == 19);
}

TEST_CASE("dtype: an unknown dtype is named with its neighbour") {
  CHECK_THROWS_WITH_AS(parse_dtype("pf16"),
                       doctest::Contains("unknown dtype 'pf16'; did you mean '"), Error);
  for (const char* word : {"", "FP16", "fp16 ", "complex128"}) {
    CHECK_THROWS_AS(parse_dtype(word), Error);
  }
}

TEST_CASE("dtype: PyTorch's names of floats are names too") {
  CHECK(parse_dtype("bfloat16") == DType::BF16);
  CHECK(parse_dtype("torch.float16") == DType::FP16);
  CHECK(parse_dtype("float32") == DType::FP32);
  CHECK_THROWS_AS(parse_dtype("torch.fp16"), Error);
}

TEST_CASE("dtype: a product of two dtypes runs in the wider one") {
  CHECK(product_dtype(DType::FP16, DType::FP16) == DType::FP16);
  CHECK(product_dtype(DType::INT8, DType::INT8) == DType::INT8);
  CHECK(product_dtype(DType::FP16, DType::INT4) == DType::FP16);
  CHECK(product_dtype(DType::Q4_K, DType::BF16) == DType::BF16);
  CHECK(product_dtype(DType::FP16, DType::FP32) == DType::FP32);
  CHECK(product_dtype(DType::FP8, DType::FP16) == DType::FP16);
  CHECK(product_dtype(DType::FP32, DType::FP64) == DType::FP64);
}

TEST_CASE("dtype: only plain integers are multiplied as integers") {
  CHECK(is_integer(DType::INT8));
  CHECK(is_integer(DType::INT4));
  for (const DType d : {DType::FP8, DType::Q8_0, DType::Q4_0, DType::FP32}) {
    CHECK_FALSE(is_integer(d));
  }
}
