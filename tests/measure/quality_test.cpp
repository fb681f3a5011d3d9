#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

#include "measure/quality_matrix.h"
#include "measure/quality_summary.h"
#include "measure/quality_task.h"
#include "model/base/error.h"
#include "model/io/files/csv_table.h"
#include "reports/plot/quality_plots.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::measure {
using namespace reports;
namespace {

using execute::Request;
using execute::Session;
using execute::SessionOptions;
using execute::TokenId;

const std::string checkpoint_folder = KVCAST_SOURCE_DIR "/tests/oracle/llama_gqa_llama3_rope";

/// Ids of the checkpoint's vocabulary.
std::vector<TokenId> ids(std::size_t count) {
  const std::size_t vocab = Checkpoint(checkpoint_folder).architecture().vocab_size;
  std::vector<TokenId> list;
  for (std::size_t i = 0; i < count; ++i) {
    list.push_back(static_cast<TokenId>((i * i * 7 + 11 * i + 3) % vocab));
  }
  return list;
}

std::vector<QualityMethod> methods(const std::vector<std::string>& words,
                                   const std::vector<std::string>& rates) {
  return quality_methods(words, rates);
}

/// -log softmax of one logit, in long double.
double loss_of(std::span<const float> logits, std::size_t token) {
  long double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<long double>(x) - logits[token]);
  return static_cast<double>(std::log(sum));
}

// p = (1/4, 3/4), q = (1/2, 1/2): KL = 1/4 log(1/2) + 3/4 log(3/2). Of q's equal tokens the first
// counts as the most likely, p's is the second.
TEST_CASE("quality: KL divergence, cross-entropy and agreement of a position by hand") {
  const std::vector<float> p{0, static_cast<float>(std::log(3.0))};
  const std::vector<float> q{5, 5};
  NextTokens sums;
  add_position(sums, p, q, 0);
  CHECK(sums.positions == 1);
  CHECK(sums.agreeing == 0);
  CHECK(sums.correct == 1);
  CHECK(sums.kl_nats == near(0.25 * std::log(0.5) + 0.75 * std::log(1.5)));
  CHECK(sums.cross_entropy_nats == near(std::log(2.0)));
  add_position(sums, p, p, 1);
  CHECK(sums.positions == 2);
  CHECK(sums.agreeing == 1);
  CHECK(sums.all_correct());
  CHECK(sums.kl_nats == near(0.25 * std::log(0.5) + 0.75 * std::log(1.5)));
  CHECK(sums.cross_entropy_nats == near(std::log(2.0) + std::log(4.0 / 3)));
  add_position(sums, p, p, 0);
  CHECK_FALSE(sums.all_correct());
}

// 1, 2, 3, 4: the standard error is sqrt(5/3) / 2. Quantiles from tables of Student's distribution:
// 3.182446 with 3 degrees of freedom, 4.302653 with 2, 12.706205 with 1, 2.228139 with 10.
TEST_CASE("quality: intervals are Student's and Wilson's") {
  const Interval four = mean_interval(std::vector<double>{1, 2, 3, 4});
  CHECK(four.mean == 2.5);
  CHECK(four.high - four.mean == near(3.182446 * std::sqrt(5.0 / 3) / 2).epsilon(0.005));
  CHECK(four.mean - four.low == near(four.high - four.mean));
  CHECK(mean_interval(std::vector<double>{0, 2}).high == near(1 + 12.706205));
  CHECK(mean_interval(std::vector<double>{0, 1, 2}).high == near(1 + 4.302653 / std::sqrt(3.0)));
  std::vector<double> eleven(11);
  std::iota(eleven.begin(), eleven.end(), -5.0);  // variance 11
  CHECK(mean_interval(eleven).high == near(2.228139).epsilon(1e-4));
  CHECK(std::isnan(mean_interval(std::vector<double>{7}).low));
  // Brown, Cai and DasGupta 2001 ("Interval estimation for a binomial proportion"): none of 10
  // leaves 0 to z²/(10 + z²).
  CHECK(std::abs(share_interval(0, 10).low) < 1e-12);
  CHECK(share_interval(0, 10).high == near(3.841459 / 13.841459));
  CHECK(share_interval(5, 10).low + share_interval(5, 10).high == near(1));
}

TEST_CASE("quality: a method without its share gets each rate, and one with {keep} too") {
  const auto list = methods({"specprefill:lookahead=2", "lazyllm", "random-prune:keep=0.4",
                             "kvp:auxiliary=some/lp-{keep},predictor=maps-{keep}", "plain"},
                            {"0.5", "0.25"});
  std::vector<std::string> names;
  for (const QualityMethod& m : list) names.push_back(m.method);
  CHECK(names == std::vector<std::string>{"plain", "specprefill:lookahead=2,keep=0.5",
                                          "specprefill:lookahead=2,keep=0.25",
                                          "lazyllm:begin=0.5,end=0.5",
                                          "lazyllm:begin=0.25,end=0.25", "random-prune:keep=0.4",
                                          "kvp:auxiliary=some/lp-0.5,predictor=maps-0.5",
                                          "kvp:auxiliary=some/lp-0.25,predictor=maps-0.25"});
  CHECK(list[1].family == "specprefill:lookahead=2");
  CHECK(list[1].keep == "0.5");
  CHECK(list[5].keep.empty());
  CHECK(list[7].family == "kvp");
  const auto two = methods({"kvp:auxiliary=some/lp-{keep},predictor=some/maps-{keep}",
                            "kvp:auxiliary=other/new-{keep},predictor=other/new-{keep}/predictor"},
                           {"0.5"});
  CHECK(two[1].family == "kvp:auxiliary=lp-{keep},predictor=maps-{keep}");
  CHECK(two[2].family == "kvp:auxiliary=new-{keep},predictor=predictor");
  const auto alike = methods(
      {"specprefill:speculator=a/small,keep=0.5", "specprefill:speculator=b/small,keep=0.5"}, {});
  CHECK(alike[1].family == "specprefill:speculator=a/small,keep=0.5");
  CHECK(alike[2].family == "specprefill:speculator=b/small,keep=0.5");
  for (const char* rate : {"0", "1.5", "half", "0.5x", "-1", "nan"}) {
    CAPTURE(rate);
    CHECK(message_of([&] { methods({"specprefill"}, {rate}); }).find("a fraction above 0") !=
          std::string::npos);
  }
  CHECK(message_of([] { methods({"specprefil"}, {"0.5"}); }).find("did you mean 'specprefill'?") !=
        std::string::npos);
}

// (100 - 15) · i / 2 = 0, 42, 85.
TEST_CASE("quality: windows of a text are spread over it and do not overlap") {
  std::vector<TokenId> text(100);
  std::iota(text.begin(), text.end(), 0u);
  const auto samples = text_samples(text, {}, "t", {.prompt_len = 10, .continuation_len = 5}, 3);
  REQUIRE(samples.size() == 3);
  CHECK(samples[1].name == "t@42");
  CHECK(samples[1].prompt.front() == 42);
  CHECK(samples[1].prompt.size() == 10);
  CHECK(samples[1].continuation == std::vector<TokenId>{52, 53, 54, 55, 56});
  CHECK(samples[2].continuation.back() == 99);

  // A token that begins every text begins every prompt, and is no part of the text.
  const std::vector<TokenId> begin{0};
  const auto begun = text_samples(text, begin, "t", {.prompt_len = 10, .continuation_len = 5}, 2);
  CHECK(begun[0].prompt == std::vector<TokenId>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(begun[1].prompt.front() == 0);
  CHECK(begun[1].prompt[1] == 86);

  const auto refused = [&](std::uint64_t count) {
    return message_of(
        [&] { text_samples(text, {}, "t", {.prompt_len = 10, .continuation_len = 5}, count); });
  };
  CHECK(refused(6) == "(no Error was thrown)");
  CHECK(refused(7).find("got 100 tokens, expected at least 105") != std::string::npos);
  CHECK(refused(0).find("expected at least one") != std::string::npos);
}

TEST_CASE("quality: a needle's prompt has its length, one needle, and the question at its end") {
  const auto tokenizer =
      text::Tokenizer::from_json_file(KVCAST_SOURCE_DIR "/tests/text/data/smollm.json");
  constexpr std::uint64_t length = 700;
  const auto samples = needle_samples(tokenizer, length, 4, 9);
  REQUIRE(samples.size() == 4);
  double depth_before = -1;
  std::set<std::string> haystacks;
  for (const QualitySample& s : samples) {
    CHECK(s.prompt.size() == length);
    const std::string text = tokenizer.decode(s.prompt);
    const std::string answer = tokenizer.decode(s.continuation);
    REQUIRE(answer.size() == 6);  // a blank and five digits
    const std::size_t needle = text.find("The secret number of ");
    REQUIRE(needle != std::string::npos);
    const std::size_t city = needle + std::string("The secret number of ").size();
    const std::string name = text.substr(city, text.find(' ', city) - city);
    CHECK(text.find("The secret number of " + name + " is" + answer + ". ") == needle);
    CHECK(text.find(answer.substr(1), needle + 60) == std::string::npos);
    CHECK(text.ends_with("What is the secret number of " + name + "? The secret number of " + name +
                         " is"));
    const double depth = static_cast<double>(needle) / static_cast<double>(text.size());
    CHECK(depth > depth_before);
    depth_before = depth;
    haystacks.insert(text);
  }
  CHECK(haystacks.size() == 4);
  CHECK(needle_samples(tokenizer, length, 4, 9)[2].prompt == samples[2].prompt);
  CHECK(needle_samples(tokenizer, length, 4, 10)[2].prompt != samples[2].prompt);
  CHECK(message_of([&] { needle_samples(tokenizer, 50, 4, 9); }).find("got prompts of 50 tokens") !=
        std::string::npos);
}

TEST_CASE("quality: a method that keeps everything is the base, and one that does not is not") {
  const TestFolder folder;
  const Checkpoint checkpoint(checkpoint_folder);
  const auto text = ids(60);
  const auto samples = text_samples(text, {}, "ids", {.prompt_len = 12, .continuation_len = 5}, 3);
  const auto list = methods({"random-prune:keep=1", "specprefill:keep=1", "static-prune:keep=1",
                             "lazyllm:begin=1,end=1", "random-prune:keep=0.5"},
                            {});
  const MeasuredRows result = measure_quality(checkpoint, list, samples, {folder / "q.csv"});
  CHECK_FALSE(result.stopped);
  CHECK(result.rows_written == 18);
  const auto rows = summarize_quality(folder / "q.csv");
  REQUIRE(rows.size() == 6);
  for (std::size_t i = 0; i < 5; ++i) {
    CAPTURE(rows[i].method);
    CHECK(rows[i].samples == 3);
    CHECK(rows[i].positions == 15);
    CHECK(rows[i].agreement.mean == 1);
    CHECK(std::abs(rows[i].kl_nats.mean) < 1e-6);
    CHECK(rows[i].perplexity_ratio.mean == near(1).epsilon(1e-6));
    CHECK(rows[i].perplexity.mean == near(rows[0].perplexity.mean).epsilon(1e-6));
  }
  CHECK(rows[5].kl_nats.mean > 1e-4);
  CHECK(rows[5].perplexity.mean != near(rows[0].perplexity.mean));

  // The whole window in one pass gives the base model's cross-entropies.
  SessionOptions all;
  all.logits = Logits::All;
  const Session session(checkpoint, all);
  const CsvTable table = CsvTable::read(folder / "q.csv");
  for (std::size_t s = 0; s < samples.size(); ++s) {
    Request request;
    request.tokens = {samples[s].prompt};
    auto& tokens = request.tokens[0];
    tokens.insert(tokens.end(), samples[s].continuation.begin(), samples[s].continuation.end());
    const auto g = session.run(request);
    const std::size_t vocab = g.logits_shape.back();
    double loss = 0;
    for (std::size_t p = 12; p < 17; ++p) {
      loss += loss_of(g.logits.subspan((p - 1) * vocab, vocab), tokens[p]);
    }
    CHECK(table[s].text("method") == "plain");
    CHECK(table[s].number("cross_entropy_nats") == near(loss / 5).epsilon(1e-5));
    CHECK(table[15 + s].number("base_cross_entropy_nats") == near(loss / 5).epsilon(1e-5));
    CHECK(table[15 + s].whole("kept_tokens") == 6);
  }
}

TEST_CASE("quality: types of products and of the cache are measured as methods are") {
  const TestFolder folder;
  const Checkpoint checkpoint(checkpoint_folder);
  const auto text = ids(80);
  const auto samples = text_samples(text, {}, "ids", {.prompt_len = 32, .continuation_len = 5}, 2);
  const std::vector<NumberTypes> types{
      {}, {.arithmetic = execute::Arithmetic::BF16}, {.cache = DType::FP8}};
  const auto list = with_types(methods({"static-prune:keep=0.5"}, {}), types);
  REQUIRE(list.size() == 6);
  measure_quality(checkpoint, list, samples, {folder / "q.csv"});
  const auto rows = summarize_quality(folder / "q.csv");
  REQUIRE(rows.size() == 6);
  const auto twice = with_types(methods({}, {}), std::vector{types[1], types[1]});
  CHECK(message_of([&] { measure_quality(checkpoint, twice, samples, {folder / "t.csv"}); }) ==
        "plain [bf16]: got two of them, expected methods, files and types of other names");
  CHECK(rows[0].method == "plain");
  CHECK(rows[2].method == "plain [bf16]");
  CHECK(rows[5].method == "static-prune:keep=0.5 [cache fp8]");
  CHECK(rows[5].family == "static-prune:keep=0.5 [cache fp8]");
  for (const std::size_t i : {2u, 4u}) {
    CAPTURE(rows[i].method);
    CHECK(rows[i].kl_nats.mean > 1e-9);
    CHECK(rows[i].kl_nats.mean < rows[1].kl_nats.mean);
    CHECK(rows[i].tpot_s > 0);
  }
  // Keys and values of 32 + 5 tokens, 2 layers, 2 heads of 6: a byte each instead of four.
  CHECK(rows[0].memory_bytes - rows[4].memory_bytes == 3 * 37 * 2 * 2 * 2 * 6);
}

TEST_CASE("quality: a row's KL divergence is that of the two sessions' first logits") {
  const TestFolder folder;
  const Checkpoint checkpoint(checkpoint_folder);
  const auto text = ids(20);
  const auto samples = text_samples(text, {}, "ids", {.prompt_len = 16, .continuation_len = 1}, 1);
  const std::string method = "static-prune:keep=0.4";
  measure_quality(checkpoint, methods({method}, {}), samples, {folder / "q.csv"});
  const auto logits = [&](const std::string& m) {
    SessionOptions o;
    o.methods = parse_methods(m);
    Request request;
    request.tokens = {samples[0].prompt};
    const auto g = Session(checkpoint, o).run(request);
    return std::vector<float>(g.logits.begin(), g.logits.end());
  };
  const auto p = logits("plain");
  const auto q = logits(method);
  double kl = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    kl += std::exp(-loss_of(p, i)) * (loss_of(q, i) - loss_of(p, i));
  }
  CHECK(kl > 1e-4);
  const CsvTable table = CsvTable::read(folder / "q.csv");
  CHECK(table[1].number("kl_nats") == near(kl).epsilon(1e-5));
  CHECK(table[1].number("cross_entropy_nats") ==
        near(loss_of(q, samples[0].continuation[0])).epsilon(1e-5));
}

TEST_CASE("quality: rows of weights that have changed since are not resumed") {
  namespace fs = std::filesystem;
  const TestFolder folder;
  const fs::path base = folder / "base";
  const fs::path speculator = folder / "speculator";
  for (const fs::path& to : {base, speculator}) fs::copy(checkpoint_folder, to);
  const auto flip_last_bit = [](const fs::path& model) {
    std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const int byte = file.get();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  };
  const auto text = ids(60);
  const auto samples = text_samples(text, {}, "ids", {.prompt_len = 8, .continuation_len = 3}, 2);
  const auto list =
      methods({"specprefill:keep=0.5,lookahead=1,speculator=" + speculator.string()}, {});
  const auto run = [&](std::uint64_t rows) {
    std::atomic<bool> stop = false;
    QualityOptions o{folder / "q.csv"};
    o.stop = &stop;
    o.on_progress = [&](std::uint64_t done, std::uint64_t, std::uint64_t) { stop = done == rows; };
    return measure_quality(Checkpoint(base), list, samples, o);
  };
  CHECK(run(1).rows_written == 1);
  for (const fs::path& changed : {base, speculator}) {
    CAPTURE(changed);
    flip_last_bit(changed);
    CHECK(message_of([&] { run(2); }).find("--restart") != std::string::npos);
    flip_last_bit(changed);
  }
  CHECK(run(2).rows_resumed == 1);
}

TEST_CASE("quality: an interrupted run goes on, and its rows stay as they are") {
  const TestFolder folder;
  const Checkpoint checkpoint(checkpoint_folder);
  const auto text = ids(60);
  const auto samples = text_samples(text, {}, "ids", {.prompt_len = 8, .continuation_len = 3}, 2);
  const auto list = methods({"random-prune"}, {"0.5", "0.75"});
  std::atomic<bool> stop = false;
  QualityOptions first{folder / "q.csv"};
  first.stop = &stop;
  first.on_progress = [&](std::uint64_t done, std::uint64_t, std::uint64_t) { stop = done == 3; };
  const MeasuredRows cut = measure_quality(checkpoint, list, samples, first);
  CHECK(cut.stopped);
  CHECK(cut.rows_written == 3);
  const auto contents = [](const std::filesystem::path& path) {
    std::ostringstream all;
    all << std::ifstream(path).rdbuf();
    return all.str();
  };
  const std::string three = contents(cut.file);
  CHECK_FALSE(std::filesystem::exists(folder / "q.csv"));
  const MeasuredRows rest = measure_quality(checkpoint, list, samples, {folder / "q.csv"});
  CHECK(rest.rows_resumed == 3);
  CHECK(rest.rows_written == 6);
  CHECK(contents(folder / "q.csv").starts_with(three));
  CHECK(folder.num_files() == 1);

  // The rest is what an uninterrupted run finds; only times differ.
  measure_quality(checkpoint, list, samples, {folder / "whole.csv"});
  const CsvTable resumed = CsvTable::read(folder / "q.csv");
  const CsvTable whole = CsvTable::read(folder / "whole.csv");
  for (std::size_t i = 0; i < 6; ++i) {
    for (const char* column : {"task", "sample", "method", "keep", "kl_nats", "agreement"}) {
      CHECK(resumed[i].text(column) == whole[i].text(column));
    }
  }

  // Times may come from another run of the same methods, and of no other.
  const auto timed = summarize_quality(folder / "q.csv", folder / "whole.csv");
  const double one = whole[0].number("ttft_s");
  CHECK(timed[0].ttft_s == near((one + whole[1].number("ttft_s")) / 2));
  measure_quality(checkpoint, methods({"random-prune"}, {"0.5"}), samples, {folder / "few.csv"});
  CHECK(message_of([&] {
          summarize_quality(folder / "q.csv", folder / "few.csv");
        }).find("random-prune:keep=0.75") != std::string::npos);
}

TEST_CASE("quality: what does not fit is refused before anything is written") {
  const TestFolder folder;
  const Checkpoint checkpoint(checkpoint_folder);
  const auto text = ids(60);
  const auto samples = text_samples(text, {}, "ids", {.prompt_len = 8, .continuation_len = 3}, 2);
  CHECK(message_of([&] {
          measure_quality(checkpoint, methods({"kvp:auxiliary=lp-0.50,predictor=/no/maps"}, {}),
                          samples, {folder / "q.csv"});
        }).find("/no/maps") != std::string::npos);
  CHECK(message_of([&] {
          measure_quality(checkpoint, methods({}, {}), {}, {folder / "q.csv"});
        }).find("a text or needles") != std::string::npos);
  CHECK(folder.num_files() == 0);
}

// Two texts. TTFTs 4, 2 and 3 s; method b is slower than a and farther from the base.
TEST_CASE("quality: the front holds what nothing beats in both") {
  const TestFolder folder;
  std::ofstream(folder / "q.csv")
      << "task,sample,method,family,keep,prompt_len,kept_tokens,positions,agreement,correct,"
         "kl_nats,cross_entropy_nats,base_cross_entropy_nats,answered,ttft_s\n"
         "text,x,plain,plain,,8,,2,1,0.5,0,1,1,0,4\n"
         "text,x,a,f,0.5,8,4,2,0.5,0.5,0.1,1.5,1,0,2\n"
         "text,x,b,f,0.6,8,5,2,0.5,0.5,0.2,1.5,1,0,3\n"
         "needle,n,plain,plain,,8,,2,1,1,0,1,1,1,4\n"
         "needle,n,a,f,0.5,8,4,2,1,1,0.3,1.5,1,1,2\n";
  const auto rows = summarize_quality(folder / "q.csv");
  REQUIRE(rows.size() == 5);
  CHECK(rows[0].on_front);
  CHECK(rows[1].on_front);
  CHECK_FALSE(rows[2].on_front);
  CHECK_FALSE(rows[3].on_front);  // a answers as many, faster
  CHECK(rows[4].on_front);
  CHECK(rows[1].ttft_speedup == 2);
  CHECK(rows[1].perplexity_ratio.mean == near(std::exp(0.5)));
  const auto plots = quality_plots(rows, folder / "q.svg");
  std::vector<std::string> files;
  for (const QualityPlot& p : plots) files.push_back(p.picture.filename().string());
  CHECK(files ==
        std::vector<std::string>{"q.svg", "q-agreement.svg", "q-needle.svg", "q-keep.svg"});
  CHECK(plot_csv(plots[0].plot).find("f,2,0.1,a") != std::string::npos);
}

// TPOTs 3, 1 and 2 s, memory 30, 20 and 10 bytes: c is small, a fast, b neither.
TEST_CASE("quality: times of a token and memory have fronts of their own") {
  const TestFolder folder;
  std::ofstream(folder / "q.csv")
      << "task,sample,method,family,keep,weights,arithmetic,cache_dtype,prompt_len,kept_tokens,"
         "positions,agreement,correct,kl_nats,cross_entropy_nats,base_cross_entropy_nats,answered,"
         "ttft_s,tpot_s,memory_bytes\n"
         "text,x,plain,plain,,m,fp32,fp32,8,,2,1,0.5,0,1,1,0,4,3,30\n"
         "text,x,a,f,,m,fp32,fp32,8,,2,0.5,0.5,0.1,1.5,1,0,2,1,20\n"
         "text,x,b,f,,m,fp32,fp32,8,,2,0.5,0.5,0.3,1.5,1,0,3,2,20\n"
         "text,x,c,f,,m,fp32,fp32,8,,2,0.5,0.5,0.2,1.5,1,0,3,2,10\n";
  const auto rows = summarize_quality(folder / "q.csv");
  REQUIRE(rows.size() == 4);
  CHECK(rows[1].tpot_s == 1);
  CHECK(rows[3].memory_bytes == 10);
  const auto front = [&](double QualityRow::*cost) {
    std::string methods;
    for (const QualityRow& r : rows) {
      if (is_on_front(r, rows, cost)) methods += r.method + " ";
    }
    return methods;
  };
  CHECK(front(&QualityRow::tpot_s) == "plain a ");
  CHECK(front(&QualityRow::memory_bytes) == "plain a c ");
  const auto plots = quality_plots(rows, folder / "q.svg");
  REQUIRE(plots.size() == 4);
  CHECK(plots[2].picture.filename() == "q-tpot.svg");
  CHECK(plots[3].picture.filename() == "q-memory.svg");
  CHECK(plot_csv(plots[3].plot).find("f,1e-05,0.2,c") != std::string::npos);
}

}  // namespace
}  // namespace kvcast::measure
