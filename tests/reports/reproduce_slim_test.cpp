#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "reports/reproduce/slim_steps.h"
#include "tests/near.h"
#include "tests/reports/reproduced_tables.h"

namespace kvcast::reports {
namespace {

TEST_CASE("reproduce slim: Whisper-tiny's caches, matrices and reads, by hand") {
  // d = 384, 4 layers, MLP 1536, 1500 frames, 448 tokens, vocabulary 51865
  // A layer: four matrices of self-attention, two of cross-attention, two of the MLP.
  const double square = 384.0 * 384;
  const double params = 384.0 * 51865 + 4 * (6 * square + 2 * 384.0 * 1536);
  const auto rows = rows_of("slim-whisper");
  for (const auto& [quantity, elements] : std::map<std::string, double>{
           {"encoder_e_cache", 1500.0 * 384},
           {"cross_kv_cache", 2.0 * 1500 * 384 * 4},
           {"self_kv_cache", 2.0 * 448 * 384 * 4},
           {"baseline_cache", 2.0 * 1948 * 384 * 4},
           {"option_1_cache", 1948.0 * 384 * 4},
           {"option_2_cache", 448.0 * 384 * 4},
           {"baseline_params", params},
           {"option_1_params", params + 4 * square},
           {"option_2_params", params + 4 * 2 * square},
           {"option_2_reads at batch 64", 448.0 * 384 * 4 + (params + 4 * 2 * square) / 64}}) {
    CAPTURE(quantity);
    CHECK(find(rows, "whisper-tiny: " + quantity + ",").ours == elements / 1e6);
  }
  // 2·(1500 + 448)/448 whatever the size
  CHECK(find(rows, "whisper-large-v2: option_2_cache_savings").ours == near(2 * 1948 / 448.0));
  CHECK(find(rows, "whisper-large-v2: option_2_speedup at batch 64").published == "5.3");
}

TEST_CASE("reproduce slim: steps count what hand-multiplied shapes give") {
  // d = 6, h = 2, d_k = 5, so e = 10; n = 7 cached tokens
  const SlimShape s{6, 2, 5};
  const auto number = [](const Count& c) { return c.constant(); };
  const AttentionStep vanilla = attention_step("vanilla", s, 7);
  CHECK(number(vanilla.ops({"query", "key", "value"})) == 3 * 2 * 6 * 10);
  CHECK(number(vanilla.ops({"attention_output"})) == 2 * 10 * 6);
  CHECK(number(vanilla.ops({"scores"})) == 2 * (2 * 5 * 7));
  CHECK(number(vanilla.ops({"weighted_sum"})) == 2 * (2 * 7 * 5));
  CHECK(number(vanilla.cache()) == 2 * 7 * 10);
  CHECK(number(vanilla.weights({"query", "key", "value", "attention_output"})) == 4 * 6 * 10);

  const AttentionStep unoptimized = attention_step("unoptimized", s, 7);
  CHECK(number(unoptimized.ops({"value"})) == 2 * 7 * 10 * 10);
  CHECK(number(unoptimized.ops({"weighted_sum"})) == 2 * (2 * 7 * 5));
  CHECK(number(unoptimized.cache()) == 7 * 10);

  const AttentionStep optimized = attention_step("optimized", s, 7);
  CHECK(number(optimized.ops({"weighted_sum"})) == 2 * (2 * 7 * 10));
  CHECK(number(optimized.ops({"value"})) == 2 * (2 * 10 * 5));
  CHECK(number(optimized.weights({"value"})) == 10 * 10);
  CHECK(number(optimized.cache()) == 7 * 10);

  const AttentionStep x_cache = attention_step("x_cache", s, 7);
  CHECK(number(x_cache.ops({"query"})) == 2 * 6 * 10);
  CHECK(number(x_cache.ops({"key"})) == 2 * (2 * 5 * 6));
  CHECK(number(x_cache.ops({"scores"})) == 2 * (2 * 6 * 7));
  CHECK(number(x_cache.ops({"weighted_sum"})) == 2 * (2 * 7 * 6));
  CHECK(number(x_cache.ops({"value"})) == 2 * (2 * 6 * 5));
  CHECK(number(x_cache.weights({"key", "value"})) == 2 * 6 * 10);
  CHECK(number(x_cache.cache()) == 7 * 6);
  CHECK(number(product_ops(7, 6, 10)) == 2 * 7 * 6 * 10);

  CHECK_THROWS_WITH_AS(slim_shape(load_model(catalog(), "llama-3.1-8b")),
                       "llama-3.1-8b: got 8 key-value heads, expected as many as query heads",
                       Error);
}

TEST_CASE("reproduce slim: errata are named, and where bounds are claimed they are bounds") {
  const auto prose = rows_of("slim-prose");
  // 2·3072·32·131072 bytes
  CHECK(find(prose, "p07 ").ours == near(25.769803776));
  CHECK(find(prose, "p07 ").erratum.starts_with("E16"));
  CHECK(find(prose, "p12 ").ours == near(29.590883 / 16.705981).epsilon(1e-6));
  CHECK(find(prose, "p12 ").erratum.empty());
  CHECK(find(prose, "p05 ").ours == 32);
  CHECK(find(prose, "p14 ").ours == 2 * 64 + 2);
  CHECK(find(prose, "p33 ").ours == near(4096.0 / 3584));
  const ReproducedRow below = find(prose, "p27 whisper_tiny_base_e_cache_max, less than values");
  CHECK(below.ours == 1500 * 512);

  const auto chips = rows_of("slim-table3");
  const ReproducedRow h200 = find(chips, "NVIDIA H200: arithmetic_intensity");
  CHECK(h200.ours == near(1978.9 / 4.8));
  CHECK(h200.erratum.starts_with("E18b"));
  CHECK(find(chips, "NVIDIA B200: arithmetic_intensity").ours == near(562.5));
  CHECK(find(rows_of("slim-whisper"), "whisper-base: option_1_params").erratum.starts_with("E17"));
}

/// One printed cell replaced by another, and the row that has to notice.
struct Mutation {
  std::string table, file, from, to, cell;
};

TEST_CASE("reproduce slim: a printed number or formula that differs is a disagreement") {
  const std::string options = "slim_nonsquare_options.csv";
  for (const Mutation& m :
       {Mutation{"slim-whisper", "slim_whisper_table.csv", "option_2_speedup,large,5.3",
                 "option_2_speedup,large,5.4", "whisper-large-v2: option_2_speedup at batch 64"},
        {"slim-whisper", "slim_whisper_table.csv", "baseline_reads,medium,102.1",
         "baseline_reads,medium,102.2", "whisper-medium: baseline_reads at batch 64"},
        {"slim-whisper", "slim_whisper_table.csv", "d_ffn,small,3072", "d_ffn,small,3071",
         "whisper-small: d_ffn"},
        {"slim-table2", "slim_table2_complexity_formulas.csv", "2*n*d*(h+1)", "2*n*d*h",
         "optimized, mha: ops"},
        {"slim-table2", "slim_table2_complexity_formulas.csv", "(n+3)/2", "(n+2)/2",
         "unoptimized, projection: intensity"},
        {"slim-table3", "slim_table3_chips.csv", "M4 Max,38,410,93", "M4 Max,38,410,92",
         "Apple M4 Max: arithmetic_intensity"},
        {"slim-table3", "slim_table3_chips.csv", "4800,413", "4800,414",
         "NVIDIA H200: arithmetic_intensity"},
        {"slim-nonsquare", options, "option_2,2*r", "option_2,r",
         "T5-11B: cache_reduction_factor, option_2"},
        {"slim-nonsquare", options, "option_1,e**2", "option_1,d*e",
         "CodeGemma-7B: size_of_wv_or_wkv_params, option_1"},
        {"slim-encdec", "slim_encdec_options.csv", "cross_kv_cache_size,option_2,0",
         "cross_kv_cache_size,option_2,50%", "whisper-large-v2: cross_kv_cache_size, option_2"},
        {"slim-encdec", "slim_encdec_options.csv", "phase,option_1,half", "phase,option_1,full",
         "whisper-large-v2: complexity_of_cross_phase, option_1"},
        {"slim-appendix-b", "slim_appendix_b_mha_ops.csv", ",2*n*d,", ",2*n*d_k,",
         "per_head_term: weighted_sum_of_k"},
        {"slim-appendix-i", "slim_appendix_i_mha_models.csv", "12B,12000000000,5120,36",
         "12B,12000000000,5120,40", "dolly-v2-12b: n_layers"},
        {"slim-equations", "slim_equations.csv", "m*p*(2*n-1)", "2*m*p*n", "matmul_ops_exact"},
        {"slim-equations", "slim_equations.csv", "4*d*e", "2*d*e", "x_cache_query_trick_ops"},
        {"slim-prose", "slim_prose.csv", "param_memory,3.8,", "param_memory,3.9,", "p06 "},
        {"slim-prose", "slim_prose.csv", "batch_64,5,x,over", "batch_64,6,x,over", "p25 "},
        {"slim-prose", "slim_prose.csv", "e_cache_max,1000000,", "e_cache_max,700000,", "p27 "}}) {
    CAPTURE(m.to);
    ChangedData data;
    data.replace(m.file, m.from, m.to);
    const auto before = rows_of(m.table);
    const auto rows = table(m.table).rows(data.open(), "");
    CHECK(find(before, m.cell).agrees);
    CHECK_FALSE(find(rows, m.cell).agrees);
  }
}

TEST_CASE("reproduce slim: rows that the program does not know are refused with file and line") {
  for (const Mutation& m :
       {Mutation{"slim-whisper", "slim_whisper_table.csv", "encoder_e_cache,tiny",
                 "encoder_f_cache,tiny", "whisper_table.csv:22: column 'quantity'"},
        {"slim-whisper", "slim_whisper_table.csv", "reads_batch_64,baseline_reads,tiny",
         "reads_batch_,baseline_reads,tiny", "column 'quantity'"},
        {"slim-whisper", "slim_whisper_table.csv", "params,tiny", "params,turbo",
         "whisper_table.csv:2: column 'whisper_model'"},
        {"slim-table2", "slim_table2_complexity_formulas.csv", "vanilla,mha", "vanilla,mlp",
         "column 'part'"},
        {"slim-table2", "slim_table2_complexity_formulas.csv", "4*n*d,", "4*n*D,",
         "formulas.csv:5: column 'expression_python': got 'D'"},
        {"slim-table2", "slim_table2_complexity_formulas.csv", "4*n*d,",
         std::string(300, '(') + ",", "got 300 characters"},
        {"slim-table3", "slim_table3_chips.csv", "NVIDIA H200", "NVIDIA H2000", "'h200'"},
        {"slim-table3", "slim_table3_chips.csv", "NVIDIA H200", "NVIDIA V100-32GB-SXM2",
         "no int8 peak"},
        {"slim-encdec", "slim_encdec_options.csv", "50%", "49%", "column 'value'"},
        {"slim-nonsquare", "slim_nonsquare_models.csv", "T5-3B", "T5-4B", "'t5-3b'"},
        {"slim-appendix-b", "slim_appendix_b_mha_ops.csv", "optimized,total", "optimal,total",
         "column 'variant_or_group'"},
        {"slim-equations", "slim_equations.csv", "d_cache,", "d_cash,", "column 'equation_id'"},
        {"slim-prose", "slim_prose.csv", "slim_p37", "slim_p38", "column 'claim_id'"}}) {
    CAPTURE(m.to);
    CHECK(refusal(m.table, m.file, m.from, m.to).find(m.cell) != std::string::npos);
  }
}

}  // namespace
}  // namespace kvcast::reports
