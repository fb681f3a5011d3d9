#include "simulate/serving/generated_requests.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/simulate/temporary_file.h"

namespace kvcast::simulate {
namespace {

std::vector<ServingRequest> all_of(const GeneratedLoad& load) {
  const auto source = generate_requests(load);
  std::vector<ServingRequest> requests;
  while (const auto request = source->next()) requests.push_back(*request);
  CHECK(requests.size() == load.count);
  CHECK_FALSE(source->next());
  return requests;
}

GeneratedLoad load_of(const std::string& prompt, const std::string& output, std::uint64_t count,
                      std::uint64_t seed = 42) {
  return {.arrivals = parse_arrivals("poisson:rate=2.5", "--arrivals"),
          .prompt = parse_lengths(prompt, "--prompt-lens"),
          .output = parse_lengths(output, "--output-lens"),
          .count = count,
          .seed = seed};
}

std::vector<std::uint64_t> prompts_of(const std::string& text, std::uint64_t count) {
  std::vector<std::uint64_t> lengths;
  for (const ServingRequest& r : all_of(load_of(text, "1", count))) {
    lengths.push_back(r.prompt_tokens);
  }
  return lengths;
}

std::vector<std::uint64_t> outputs_of(const std::string& text, std::uint64_t count) {
  std::vector<std::uint64_t> lengths;
  for (const ServingRequest& r : all_of(load_of("1", text, count))) {
    lengths.push_back(r.output_tokens);
  }
  return lengths;
}

double mean_of(const std::vector<std::uint64_t>& values) {
  double sum = 0;
  for (const std::uint64_t v : values) sum += static_cast<double>(v);
  return sum / static_cast<double>(values.size());
}

using Values = std::vector<std::uint64_t>;

// From the program in Python that arrivals_test.cpp names.
TEST_CASE("generated requests: a seed gives the same lengths everywhere") {
  CHECK(prompts_of("uniform:100,200", 6) == Values{146, 100, 111, 107, 121, 170});
  CHECK(prompts_of("normal:mean=500,sd=200", 6) == Values{499, 301, 196, 642, 422, 254});
  CHECK(outputs_of("lognormal:mean=1000,p50=600,max=1500", 8) ==
        Values{1000, 818, 900, 1500, 122, 972, 182, 1425});
  CHECK(prompts_of("1k", 2) == Values{1024, 1024});
  CHECK(prompts_of("fixed:7", 2) == Values{7, 7});
  const auto requests = all_of(load_of("uniform:100,200", "5", 3));
  CHECK(requests[2].id == 2);
  CHECK(requests[2].arrival_s == near(1.5415087787194848).epsilon(1e-14));
  CHECK(requests[2].output_tokens == 5);
  CHECK(requests[2].blocks.empty());
  CHECK(generate_requests(load_of("1", "1", 1))->block_tokens() == 0);
}

TEST_CASE("generated requests: a rate, a seed or the other lengths move nothing else") {
  GeneratedLoad load = load_of("uniform:1,1000", "uniform:1,1000", 50);
  const auto before = all_of(load);
  load.arrivals.rate = 5;
  load.output = parse_lengths("normal:mean=30,sd=5", "--output-lens");
  const auto after = all_of(load);
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(before[i].prompt_tokens == after[i].prompt_tokens);
    CHECK(before[i].arrival_s == 2 * after[i].arrival_s);
  }
  load.seed = 43;
  const auto other = all_of(load);
  CHECK_FALSE(std::equal(after.begin(), after.end(), other.begin(), other.end()));
}

TEST_CASE("generated requests: lengths have the mean and the spread asked for") {
  constexpr std::uint64_t count = 100000;
  // Whole numbers from 100 to 200: mean 150, deviation sqrt((101^2 - 1) / 12) = 29.15, so that of
  // the mean is 0.092; each of the 101 numbers about 990 times, with a deviation of 31.
  std::map<std::uint64_t, int> seen;
  const Values uniform = prompts_of("uniform:100,200", count);
  for (const std::uint64_t v : uniform) ++seen[v];
  CHECK(std::abs(mean_of(uniform) - 150) < 0.37);
  CHECK(seen.size() == 101);
  CHECK(seen.begin()->first == 100);
  for (const auto& [value, times] : seen) CHECK(std::abs(times - 990) < 140);
  // Mean 5000, deviation 500: that of the mean is 1.6.
  Values normal = prompts_of("normal:mean=5000,sd=500", count);
  CHECK(std::abs(mean_of(normal) - 5000) < 6.4);
  std::sort(normal.begin(), normal.end());
  // One deviation below and above the mean lie 15.866 % and 84.134 %; a quantile's deviation there
  // is 500 sqrt(0.159 * 0.841 / 100000) / 0.242 = 2.4.
  CHECK(std::abs(static_cast<double>(normal[15866]) - 4500) < 10);
  CHECK(std::abs(static_cast<double>(normal[84134]) - 5500) < 10);
  // sigma^2 = 2 ln(1.25), so the mean's deviation is 2000 sqrt(exp(sigma^2) - 1) / sqrt(n) = 4.7,
  // and the median's is 1600 sigma sqrt(pi / 2) / sqrt(n) = 4.2.
  Values lognormal = outputs_of("lognormal:mean=2000,p50=1600", count);
  CHECK(std::abs(mean_of(lognormal) - 2000) < 19);
  std::sort(lognormal.begin(), lognormal.end());
  CHECK(std::abs(static_cast<double>(lognormal[count / 2]) - 1600) < 17);
  const Values same = outputs_of("lognormal:mean=2000,sigma=0.6680472308365775", 100);
  const Values other = outputs_of("lognormal:mean=2000,p50=1600", 100);
  CHECK(same == other);
}

TEST_CASE("generated requests: lengths are cut to 1 and to the largest") {
  const Values low = prompts_of("normal:mean=1,sd=1000", 1000);
  CHECK(*std::min_element(low.begin(), low.end()) == 1);
  const Values high = prompts_of("lognormal:mean=1e9,sigma=100", 1000);
  CHECK(*std::max_element(high.begin(), high.end()) <= max_request_tokens);
  const Values cut = prompts_of("normal:mean=50,sd=50,max=60", 1000);
  CHECK(*std::max_element(cut.begin(), cut.end()) == 60);
  CHECK(prompts_of("normal:mean=2.4,sd=0", 2) == Values{2, 2});
  CHECK(prompts_of("uniform:2147483648,2147483648", 1) == Values{2147483648});
  CHECK(prompts_of("lognormal:mean=64,p50=64", 2) == Values{64, 64});
}

TEST_CASE("generated requests: prompts, outputs and gaps do not depend on each other") {
  constexpr std::uint64_t count = 100000;
  const auto requests = all_of(load_of("uniform:1,1000", "uniform:1,1000", count));
  // Correlations of independent draws have a deviation of 1 / sqrt(n) = 0.0032.
  const auto correlation = [&](auto&& x_of, auto&& y_of) {
    double x = 0, y = 0, xx = 0, yy = 0, xy = 0;
    for (std::size_t i = 1; i < requests.size(); ++i) {
      const double a = x_of(i);
      const double b = y_of(i);
      x += a, y += b, xx += a * a, yy += b * b, xy += a * b;
    }
    const auto n = static_cast<double>(requests.size() - 1);
    return (xy / n - x * y / n / n) /
           std::sqrt((xx / n - x * x / n / n) * (yy / n - y * y / n / n));
  };
  const auto gap = [&](std::size_t i) { return requests[i].arrival_s - requests[i - 1].arrival_s; };
  const auto prompt = [&](std::size_t i) { return static_cast<double>(requests[i].prompt_tokens); };
  const auto output = [&](std::size_t i) { return static_cast<double>(requests[i].output_tokens); };
  const auto before = [&](std::size_t i) { return prompt(i - 1); };
  CHECK(std::abs(correlation(prompt, output)) < 0.014);
  CHECK(std::abs(correlation(prompt, gap)) < 0.014);
  CHECK(std::abs(correlation(output, gap)) < 0.014);
  CHECK(std::abs(correlation(output, before)) < 0.014);
  CHECK(std::abs(correlation(prompt, before)) < 0.014);
  CHECK(correlation(prompt, prompt) == near(1.0));
}

TEST_CASE("generated requests: both lengths drawn from one trace are those of one request") {
  const TemporaryFile trace(
      "trace.csv", "arrival_s,prompt_tokens,output_tokens\n5,10,11\n6,20,21\n7,30,31\n8,40,41\n");
  const std::string text = "empirical:" + trace.path.string();
  const auto requests = all_of(load_of(text, text, 8));
  const Values rows{1, 0, 0, 0, 0, 2, 1, 1};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(requests[i].prompt_tokens == 10 * (rows[i] + 1));
    CHECK(requests[i].output_tokens == requests[i].prompt_tokens + 1);
  }
  CHECK(requests[0].arrival_s == near(1.2471303698166796).epsilon(1e-14));
  // One of them alone, and numbers without a trace.
  CHECK(outputs_of(text, 8) == Values{31, 11, 41, 41, 41, 41, 41, 41});
  const TemporaryFile numbers("numbers.txt", "5\r\n6\n7\n8\n\n");
  CHECK(outputs_of("empirical:" + numbers.path.string(), 8) == Values{7, 5, 8, 8, 8, 8, 8, 8});
  CHECK(prompts_of("empirical:" + numbers.path.string(), 8) == Values{6, 5, 5, 5, 5, 7, 6, 6});
  // A list of numbers has no requests: both are drawn by themselves.
  const std::string list = "empirical:" + numbers.path.string();
  const auto both = all_of(load_of(list, list, 8));
  CHECK(both[0].prompt_tokens == 6);
  CHECK(both[0].output_tokens == 7);

  const TemporaryFile prompts("prompts.csv", "input_tokens,arrival_s_qps5_run1\n10,1\n20,2\n");
  const std::string no_outputs = "empirical:" + prompts.path.string();
  CHECK(prompts_of(no_outputs, 6) == Values{10, 10, 10, 10, 10, 20});
  check_line(message_of([&] { outputs_of(no_outputs, 3); }),
             {"prompts.csv", "without output tokens"});
  const TemporaryFile broken("broken.txt", "5\nx\n");
  check_line(message_of([&] { prompts_of("empirical:" + broken.path.string(), 3); }),
             {"broken.txt:2: got 'x', expected a whole number from 1 to 2147483648"});
  check_line(message_of([] { prompts_of("empirical:no/such", 3); }),
             {"no/such", "cannot be opened"});
}

TEST_CASE("generated requests: shared prefixes give equal ids to their full blocks") {
  GeneratedLoad load = load_of("uniform:1,40", "3", 3000);
  load.prefixes = parse_shared_prefixes("prefix:groups=3,tokens=37", "--prefixes");
  load.block_tokens = 16;
  CHECK(generate_requests(load)->block_tokens() == 16);
  const auto requests = all_of(load);
  const auto plain = all_of(load_of("uniform:1,40", "3", 3000));
  // 37 tokens: two full blocks are shared, the third begins alike but ends with the prompt's own.
  const Values groups{1, 2, 2, 1, 2, 0, 0, 1};
  std::set<std::uint64_t> own;
  std::size_t own_count = 0;
  std::map<std::uint64_t, int> members;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const ServingRequest& r = requests[i];
    REQUIRE(r.prompt_tokens == plain[i].prompt_tokens + 37);
    CHECK(r.arrival_s == plain[i].arrival_s);
    REQUIRE(r.blocks.size() == r.prompt_tokens / 16);
    const std::uint64_t group = r.blocks[0] / 2;
    if (i < groups.size()) CHECK(group == groups[i]);
    CHECK(group < 3);
    CHECK(r.blocks[0] == 2 * group);
    CHECK(r.blocks[1] == 2 * group + 1);
    ++members[group];
    for (std::size_t b = 2; b < r.blocks.size(); ++b, ++own_count) own.insert(r.blocks[b]);
  }
  CHECK(own.size() == own_count);  // nobody else's
  CHECK(*own.begin() == 6);
  // 1000 each, with a deviation of 26.
  for (const auto& [group, count] : members) CHECK(std::abs(count - 1000) < 110);

  load.prefixes.tokens = max_request_tokens;
  load.block_tokens = 1U << 20U;
  check_line(message_of([&] { all_of(load); }), {"prefix:groups=3", "at most 2147483648"});
}

TEST_CASE("generated requests: a closed loop takes them all at 0") {
  GeneratedLoad load = load_of("uniform:1,40", "3", 5);
  const auto open = all_of(load);
  load.arrivals = parse_arrivals("closed:users=2", "--arrivals");
  const auto closed = all_of(load);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(closed[i].arrival_s == 0);
    CHECK(closed[i].prompt_tokens == open[i].prompt_tokens);
  }
  load.count = 0;
  CHECK(message_of([&] { generate_requests(load); }) ==
        "got 0 requests to generate, expected at least 1");
}

TEST_CASE("generated requests: texts read back") {
  for (const char* const text :
       {"fixed:1024", "uniform:5,9", "normal:mean=500,sd=20.5", "normal:mean=500,sd=20,max=600",
        "lognormal:mean=500,sigma=0.75,max=600", "empirical:a:b,c=d.csv"}) {
    CHECK(to_string(parse_lengths(text, "--prompt-lens")) == text);
  }
  CHECK(to_string(parse_lengths("12", "--prompt-lens")) == "fixed:12");
  CHECK(to_string(parse_shared_prefixes("prefix:tokens=5,groups=7", "--prefixes")) ==
        "prefix:groups=7,tokens=5");
}

TEST_CASE("generated requests: wrong texts are refused") {
  const auto failure = [](const std::string& text) {
    return message_of([&] { parse_lengths(text, "--prompt-lens"); });
  };
  CHECK(failure("unifrom:1,2") ==
        "--prompt-lens: unknown lengths 'unifrom'; did you mean 'uniform'?");
  check_line(failure(""), {"--prompt-lens: unknown lengths ''", "fixed", "empirical"});
  check_line(failure("0"), {"--prompt-lens: got \"0\"", "a whole number above 0"});
  check_line(failure("1.5"), {"--prompt-lens: got \"1.5\""});
  check_line(failure("fixed:"), {"--prompt-lens: got"});
  check_line(failure("-5"), {"--prompt-lens: unknown lengths '-5'"});
  CHECK(failure("4M") == "(no Error was thrown)");
  CHECK(failure("4096M") == "--prompt-lens: got '4096M', expected at most 2147483648 tokens");
  CHECK(failure("uniform:9,5") ==
        "--prompt-lens: got 'uniform:9,5', expected uniform:LO,HI with LO <= HI");
  CHECK(failure("uniform:9") == "--prompt-lens: got 'uniform:9', expected uniform:LO,HI");
  check_line(failure("uniform:0,9"), {"--prompt-lens: got \"0\""});
  CHECK(failure("lognormal:mean=500") ==
        "--prompt-lens: got neither p50 nor sigma, expected lognormal:mean=M,p50=P or "
        "lognormal:mean=M,sigma=S");
  check_line(failure("lognormal:mean=500,p50=5,sigma=1"), {"both p50 and sigma"});
  CHECK(failure("lognormal:mean=500,p50=501") ==
        "--prompt-lens: option 'p50': got '501', expected a number from 1 to 500");
  CHECK(failure("lognormal:mean=0,p50=1") ==
        "--prompt-lens: option 'mean': got '0', expected a number from 1 to 2.14748e+09");
  CHECK(failure("normal:mean=5,sd=-1") ==
        "--prompt-lens: option 'sd': got '-1', expected a number from 0 to 2.14748e+09");
  check_line(failure("normal:mean=5,sd=1,p50=3"), {"unknown option 'p50'", "mean, sd"});
  CHECK(failure("normal:mean=5,sd=1,max=0") ==
        "--prompt-lens: option 'max': got '0', expected a whole number from 1 to 2147483648");
  CHECK(failure("empirical") == "--prompt-lens: got 'empirical', expected empirical:FILE");
  const auto prefix = [](const char* text) {
    return message_of([&] { parse_shared_prefixes(text, "--prefixes"); });
  };
  CHECK(prefix("groups=3,tokens=4") ==
        "--prefixes: got 'groups=3,tokens=4', expected prefix:groups=G,tokens=T");
  CHECK(prefix("prefix:groups=0,tokens=4") ==
        "--prefixes: option 'groups': got '0', expected a whole number from 1 to 2147483648");
  check_line(prefix("prefix:groups=3"), {"without tokens"});
}

}  // namespace
}  // namespace kvcast::simulate
