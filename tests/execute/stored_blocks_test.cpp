#include "model/execute/stored_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include <doctest/doctest.h>

#include "model/execute/generate.h"
#include "model/execute/machine_probe.h"
#include "model/execute/matrix.h"
#include "model/execute/weight_store.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/packed_weight.h"
#include "tests/execute/random_blocks.h"
#include "tests/execute/relative_difference.h"
#include "tests/execute/stored_weight.h"
#include "tests/execute/whole_numbers.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

namespace kvcast::execute {
namespace {

constexpr auto types = tested_types;

std::vector<float> product(const Matrix& m, const std::vector<float>& x, std::size_t rows,
                           std::size_t out, const float* bias = nullptr) {
  std::vector<float> y(rows * out + 1, 0.5F);
  m.multiply(x.data(), rows, y.data(), bias);
  CHECK(y.back() == 0.5F);  // nothing is written after them
  y.pop_back();
  return y;
}

}  // namespace

TEST_CASE("stored_blocks: a product with one input of 1 is that column of read_elements") {
  for (const DType dtype : all_types()) {
    const std::size_t in = input_sizes(dtype).back();
    const StoredWeight w(output_sizes(dtype).back(), in, dtype);
    FloatStore store;
    const Matrix m = w.matrix(store);
    CHECK(m.bytes() < w.out * w.in * sizeof(float));
    // Scales are added to numbers of up to the largest size: 4 units in its last place.
    const double bound = std::ldexp(w.largest(), -22);
    std::vector<float> all(in * in);
    for (std::size_t i = 0; i < in; ++i) all[i * in + i] = 1;
    const std::vector<float> many = product(m, all, in, w.out);
    double worst = 0;
    double worst_of_one = 0;
    for (std::size_t i = 0; i < in; ++i) {
      const std::vector<float> x(&all[i * in], &all[i * in] + in);
      const std::vector<float> one = product(m, x, 1, w.out);
      for (std::size_t o = 0; o < w.out; ++o) {
        const double number = w.numbers[o * in + i];
        worst = std::max(worst, std::abs(many[i * w.out + o] - number));
        worst_of_one = std::max(worst_of_one, std::abs(one[o] - number));
      }
    }
    CAPTURE(name(dtype));
    CHECK(worst <= bound);
    CHECK(worst_of_one <= bound);
  }
}

TEST_CASE("stored_blocks: products of all sizes are sums in fp64, within the rounding of fp32") {
  for (const DType dtype : all_types()) {
    for (const std::size_t out : output_sizes(dtype)) {
      for (const std::size_t in : input_sizes(dtype)) {
        const StoredWeight w(out, in, dtype);
        FloatStore store;
        const Matrix m = w.matrix(store);
        const double largest_weight = w.largest();
        const std::vector<float> bias = whole_numbers(out, 2);
        for (const std::size_t rows : {1u, 2u, 3u, 4u, 7u, 24u, 25u, 60u}) {
          std::vector<float> x = whole_numbers(rows * in, 3);
          for (float& number : x) number *= 0.1F;
          for (const bool with_bias : {false, true}) {
            const std::vector<float> y =
                product(m, x, rows, out, with_bias ? bias.data() : nullptr);
            double worst = 0;  // as a share of the bound
            for (std::size_t r = 0; r < rows; ++r) {
              double sum_of_x = 0;
              for (std::size_t i = 0; i < in; ++i) sum_of_x += std::abs(x[r * in + i]);
              // Each of in + 16 additions rounds a sum of at most three times the largest numbers:
              // a scaled number and its minimum may be twice as large as what they add up to.
              const double largest = 3 * largest_weight * sum_of_x + std::abs(bias[0]) + 8;
              const double bound = std::ldexp(static_cast<double>(in + 16) * largest, -24);
              for (std::size_t o = 0; o < out; ++o) {
                double sum = with_bias ? bias[o] : 0;
                for (std::size_t i = 0; i < in; ++i) {
                  sum += static_cast<double>(w.numbers[o * in + i]) * x[r * in + i];
                }
                worst = std::max(worst, std::abs(y[r * out + o] - sum) / bound);
              }
            }
            CAPTURE(name(dtype));
            CAPTURE(out);
            CAPTURE(in);
            CAPTURE(rows);
            CHECK(worst <= 1);
          }
        }
      }
    }
  }
}

TEST_CASE("stored_blocks: one, two and three threads give the same numbers, to the last bit") {
  const int before = use_threads(0);
  for (const DType dtype : all_types()) {
    const StoredWeight w(output_sizes(dtype).back(), 768, dtype);
    FloatStore store;
    const Matrix m = w.matrix(store);
    for (const std::size_t rows : {1u, 3u, 5u, 60u}) {
      const std::vector<float> x = whole_numbers(rows * w.in, 3);
      use_threads(1);
      const std::vector<float> one = product(m, x, rows, w.out);
      for (const int threads : {2, 3}) {
        use_threads(threads);
        CHECK(product(m, x, rows, w.out) == one);
      }
    }
  }
  use_threads(before);
}

TEST_CASE("stored_blocks: a few rows together are each as alone, to the last bit") {
  REQUIRE(max_strip_rows() >= 2);
  for (const DType dtype : all_types()) {
    const StoredWeight w(output_sizes(dtype).back(), input_sizes(dtype).back(), dtype);
    FloatStore store;
    const Matrix m = w.matrix(store);
    for (std::size_t rows = 2; rows <= max_strip_rows(); ++rows) {
      const std::vector<float> x = whole_numbers(rows * w.in, 3);
      const std::vector<float> together = product(m, x, rows, w.out);
      for (std::size_t r = 0; r < rows; ++r) {
        const std::vector<float> row(&x[r * w.in], &x[r * w.in] + w.in);
        const auto first = together.begin() + static_cast<std::ptrdiff_t>(r * w.out);
        CHECK(std::equal(first, first + static_cast<std::ptrdiff_t>(w.out),
                         product(m, row, 1, w.out).begin()));
      }
    }
  }
}

TEST_CASE("stored_blocks: a scale that is not finite is an error that names the element") {
  for (const DType dtype : types) {
    StoredWeight w(2, 256, dtype);
    std::vector<std::byte> bytes(w.tensor.bytes.begin(), w.tensor.bytes.end());
    if (dtype == DType::MXFP4) {
      bytes[bytes.size() / 2] = std::byte{255};
    } else {
      const bool blocks = width(dtype).block_elements > 1;
      const std::size_t at = bytes.size() / 2 + (blocks ? block_halves(dtype).back().at : 0);
      const std::uint16_t infinity = dtype == DType::BF16 ? 0x7f80 : 0x7c00;
      std::memcpy(&bytes[at], &infinity, sizeof infinity);
    }
    w.tensor.file = MappedFile::from_bytes("test", bytes);
    w.tensor.bytes = w.tensor.file->bytes();
    CAPTURE(name(dtype));
    std::vector<std::byte> row(bytes.size() / 2);
    CHECK_NOTHROW(read_blocks(w.tensor, 0, row));
    const std::string message = message_of([&] { read_blocks(w.tensor, 256, row); });
    CHECK(message.find("test: tensor w, element ") == 0);
    CHECK(message.find("expected finite weights") != std::string::npos);
    FloatStore store;
    CHECK_THROWS_AS(w.matrix(store), Error);
  }
}

TEST_CASE("stored_blocks: MXFP4 with its smallest and largest scales, and one beyond them") {
  constexpr std::size_t in = 64;
  // Two blocks: 2^-127 times the numbers of the codes 0 to 15, and 2^126 times those of 0 to 3.
  // Behind them 16 zeros each.
  constexpr std::array numbers{0.,  .5,  1.,  1.5,  2.,  3.,  4.,  6.,
                               -0., -.5, -1., -1.5, -2., -3., -4., -6.};
  StoredTensor tensor;
  tensor.name = "w";
  tensor.dtype = DType::MXFP4;
  tensor.shape = {1, in};
  std::vector<std::byte> bytes(34);
  bytes[17] = std::byte{253};
  for (std::size_t i = 0; i < 16; ++i) {
    bytes[1 + i] = static_cast<std::byte>(i);
    bytes[18 + i] = static_cast<std::byte>(i % 4);
  }
  FloatStore store;
  const auto matrix = [&] {
    tensor.file = MappedFile::from_bytes("test", bytes);
    tensor.bytes = tensor.file->bytes();
    return Matrix(
        1, in, DType::MXFP4,
        [&](std::size_t, std::size_t, std::span<std::byte> out) { read_blocks(tensor, 0, out); },
        store);
  };
  const Matrix m = matrix();
  for (std::size_t i = 0; i < in; ++i) {
    const double number = i < 16              ? std::ldexp(numbers[i], -127)
                          : i >= 32 && i < 48 ? std::ldexp(numbers[i % 4], 126)
                                              : 0;
    std::vector<float> x(in);
    x[i] = 1;
    CAPTURE(i);
    CHECK(product(m, x, 1, 1)[0] == number);
    x.resize(2 * in);
    CHECK(product(m, x, 2, 1)[0] == number);
  }
  bytes[18 + 6] = std::byte{6};  // 4 · 2^126 is no fp32 number
  CHECK(message_of(matrix) ==
        "test: tensor w, element 38: got an infinity, expected finite weights");
}

TEST_CASE("stored_blocks: a reader gives the rows, pieces and columns that the numbers come from") {
  const StoredWeight w(6, 96, DType::Q8_0);
  const auto check = [&](const WeightReader& reader, std::size_t rows, std::size_t row) {
    CHECK(reader.stored_dtype() == DType::Q8_0);
    std::vector<float> numbers(rows * row);
    reader.read_rows(0, std::span(numbers));
    std::vector<std::byte> blocks(rows * row / 32 * 34);
    reader.read_stored(0, rows, blocks);
    StoredTensor stored;
    stored.dtype = DType::Q8_0;
    stored.shape = {rows, row};
    stored.bytes = blocks;
    std::vector<float> read(rows * row);
    read_elements(stored, 0, std::span(read));
    CHECK(read == numbers);
  };
  check({{w.tensor}, {.names = {"w"}, .rows = {}}}, 6, 96);
  check({{w.tensor}, {.names = {"w"}, .rows = {5, 0, 3}}}, 3, 96);
  check({{w.tensor, w.tensor}, {.names = {"w"}, .rows = {}, .pieces = 2}}, 12, 96);
  // Half of 8 rows, of which the file has 6, and of 96 columns a block.
  WeightReader part({w.tensor}, {.names = {"w"}, .rows = {}});
  TensorInfo info;
  info.shape = {4, 32};
  info.part = WeightPart{.whole = {6, 96}};
  info.part->first_row = 4;
  info.part->first_column = 64;
  part.take_part(info);
  check(part, 4, 32);
  info.part->first_column = 16;  // within a block
  part.take_part(info);
  CHECK(!part.stored_dtype());
  CHECK(!WeightReader({w.tensor}, {.names = {"w"}, .rows = {}, .transposed = true}).stored_dtype());
  CHECK(!WeightReader({w.tensor}, {.names = {"w"}, .rows = {}, .offset = -1}).stored_dtype());
}

namespace {

/// A small Llama whose matrices take turns in the types, its tied embedding in Q8_0.
std::string llama_file() {
  struct Tensor {
    const char* name;
    std::uint64_t out;
    std::uint64_t in;
  };
  constexpr std::array layer{Tensor{"attn_q", 256, 256},   Tensor{"attn_k", 128, 256},
                             Tensor{"attn_v", 128, 256},   Tensor{"attn_output", 256, 256},
                             Tensor{"ffn_gate", 512, 256}, Tensor{"ffn_up", 512, 256},
                             Tensor{"ffn_down", 256, 512}};
  constexpr std::array<std::uint32_t, types.size()> ids{30, 1,  8,  2,  3,  6, 7,
                                                        12, 13, 14, 20, 23, 39};
  GgufWriter w;
  w.text("general.architecture", "llama");
  w.text("general.name", "Test model");
  w.whole("llama.block_count", 3);
  w.whole("llama.context_length", 128);
  w.whole("llama.embedding_length", 256);
  w.whole("llama.feed_forward_length", 512);
  w.whole("llama.attention.head_count", 4);
  w.whole("llama.attention.head_count_kv", 2);
  w.number("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  std::size_t turn = 0;
  const auto matrix = [&](const std::string& tensor, std::uint64_t out, std::uint64_t in,
                          std::size_t type) {
    const std::vector<std::byte> blocks =
        random_blocks(types[type], out * in, static_cast<unsigned>(++turn));
    w.tensor(tensor, {in, out}, ids[type],
             {reinterpret_cast<const char*>(blocks.data()), blocks.size()});
  };
  const auto norm = [&](const std::string& tensor) {
    const std::vector<float> ones(256, 1.0F);
    w.tensor(tensor, {256}, 0, {reinterpret_cast<const char*>(ones.data()), 1024});
  };
  matrix("token_embd.weight", 301, 256, 2);
  norm("output_norm.weight");
  for (int i = 0; i < 3; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    for (const Tensor& t : layer) {
      matrix(prefix + t.name + ".weight", t.out, t.in, turn % types.size());
    }
    norm(prefix + "attn_norm.weight");
    norm(prefix + "ffn_norm.weight");
  }
  return w.bytes();
}

}  // namespace

TEST_CASE(
    "stored_blocks: a model whose weights stay as stored generates the same, counts and all") {
  const TestFolder folder;
  std::ofstream(folder / "model.gguf", std::ios::binary) << llama_file();
  const Checkpoint checkpoint(folder / "model.gguf");
  Request request;
  request.tokens.resize(1);
  for (TokenId i = 0; i < 30; ++i) request.tokens[0].push_back(i * 37 % 301);
  request.output_len = 20;
  SessionOptions fp32;
  fp32.logits = Logits::All;
  SessionOptions stored = fp32;
  stored.weights = stored_weight_types(checkpoint);
  const Session wide(checkpoint, fp32);
  const Session narrow(checkpoint, stored);
  CHECK(narrow.weight_bytes() < wide.weight_bytes() / 3);
  const Generation expected = wide.run(request);
  const Generation g = narrow.run(request);
  CHECK(g.tokens == expected.tokens);
  CHECK(relative_difference(g.logits, expected.logits) < 1e-5);
  CHECK(g.analytic_flops == expected.analytic_flops);

  request.output_len = 3;
  stored.loops = fp32.loops = Loops::Counting;
  const Generation counted = Session(checkpoint, stored).run(request);
  CHECK(counted.counted.flops == counted.analytic_flops);
  CHECK(counted.counted.bytes() == counted.analytic_bytes);
  const Generation counted_wide = Session(checkpoint, fp32).run(request);
  CHECK(counted.analytic_bytes < counted_wide.analytic_bytes);
}

}  // namespace kvcast::execute
