#include "simulate/serving/requests.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/serving/request_files.h"
#include "tests/model/message_of.h"
#include "tests/simulate/temporary_file.h"

namespace kvcast::simulate {
namespace {

std::unique_ptr<RequestSource> open(const std::string& text,
                                    const RequestFileOptions& options = {}) {
  return open_requests(std::make_unique<std::istringstream>(text), "trace", options);
}

std::vector<ServingRequest> all_of(RequestSource& source) {
  std::vector<ServingRequest> requests;
  while (std::optional<ServingRequest> request = source.next()) requests.push_back(*request);
  CHECK_FALSE(source.next());
  return requests;
}

std::vector<ServingRequest> read(const std::string& text, const RequestFileOptions& options = {}) {
  return all_of(*open(text, options));
}

std::string failure(const std::string& text, const RequestFileOptions& options = {}) {
  return message_of([&] { read(text, options); });
}

// The first lines of the published traces.
const char* const mooncake =
    "{\"timestamp\": 0, \"input_length\": 2290, \"output_length\": 316, "
    "\"hash_ids\": [0, 42, 43, 44, 45]}\n"
    "{\"timestamp\": 3000, \"input_length\": 891, \"output_length\": 1, \"hash_ids\": [0, 9]}\n";
const char* const azure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-17 00:00:00.0000001,879,55\n";
const char* const burstgpt =
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
    "19440161.0,d5983bf9,2,ChatGPT,36,29,65,\"Conversation, \"\"log\"\"\"\n";
const char* const accelmark =
    "request_id,input_tokens,arrival_s_qps5_run1,arrival_s_qps5_run2\n"
    "0,395,0.204012057,0.468532664\n"
    "1,342,0.209077825,0.626283872\n";

TEST_CASE("requests: Mooncake's lines have ids of 512 tokens, the partial block included") {
  const auto source = open(mooncake);
  CHECK(source->block_tokens() == 512);
  const auto requests = all_of(*source);
  REQUIRE(requests.size() == 2);
  CHECK(requests[0] == ServingRequest{0, 0, 2290, 316, {0, 42, 43, 44, 45}});
  CHECK(requests[1] == ServingRequest{1, 3, 891, 1, {0, 9}});
}

TEST_CASE("requests: the number of ids tells 16-token full blocks from Mooncake's") {
  // 40 tokens: two full blocks of 16, one partial of 512. 20 tokens: one block of either kind.
  const std::string doubtful =
      R"({"timestamp": 0.5, "input_length": 20, "output_length": 2, "hash_ids": [7]})"
      "\n";
  const std::string sixteen =
      R"({"timestamp": 46.926808, "input_length": 40, "output_length": 3, "hash_ids": [1, 2]})"
      "\n";
  const std::string mooncakes =
      R"({"timestamp": 46.9, "input_length": 40, "output_length": 3, "hash_ids": [1]})"
      "\n";
  CHECK(open(sixteen)->block_tokens() == 16);
  CHECK(open(doubtful + doubtful + sixteen)->block_tokens() == 16);
  CHECK(open(doubtful + doubtful + mooncakes)->block_tokens() == 512);
  CHECK(open(doubtful)->block_tokens() == 512);
  const auto requests = read(doubtful + sixteen + sixteen);
  REQUIRE(requests.size() == 3);
  CHECK(requests[0].arrival_s == 0.0005);
  CHECK(requests[1].arrival_s == 0.046926808);
  CHECK(requests[2].id == 2);

  CHECK(open(sixteen, {.block_tokens = 20})->block_tokens() == 20);
  CHECK(failure(sixteen, {.block_tokens = 10}) ==
        "trace:1: /hash_ids: got 2 ids for 40 tokens, expected 4, one for each block of 10");
  CHECK(failure(sixteen + mooncakes) ==
        "trace:2: /hash_ids: got 1 ids for 40 tokens, expected 2 or 3, one for each block of 16");
  CHECK(
      failure(sixteen + R"({"timestamp":50,"input_length":35,"output_length":3,"hash_ids":[1]})") ==
      "trace:2: /hash_ids: got 1 ids for 35 tokens, expected 2 or 3, one for each block of 16");
  CHECK(failure(R"({"timestamp":50,"input_length":1000,"output_length":3,"hash_ids":[1]})") ==
        "trace:1: /hash_ids: got 1 ids for 1000 tokens, expected 2 of 512 tokens, 62 of 16, or the "
        "number of tokens of a block");
}

TEST_CASE("requests: lines without ids are a trace without blocks") {
  const std::string line = R"({"timestamp": 0, "input_length": 40, "output_length": 3)";
  CHECK(open(line + "}")->block_tokens() == 0);
  CHECK(failure(line + "}\n" + line + R"(, "hash_ids": [1]})") ==
        "trace:2: /hash_ids: there, but not on the first line");
  CHECK(failure(line + R"(, "hash_ids": [1]})" + "\n" + line + "}") ==
        "trace:2: /hash_ids: missing, but there on the first line");
  CHECK(failure(line + "}", {.block_tokens = 16}) ==
        "trace: got tokens of a prefix block for a file without block ids, expected none");
}

TEST_CASE("requests: Azure's stamps count from the first, over midnight and to 100 ns") {
  const auto requests = read(azure);
  REQUIRE(requests.size() == 3);
  CHECK(requests[0] == ServingRequest{0, 0, 374, 44});
  // 50.995169 - 46.68059, and 5 h 44 min 13.3194101 s to midnight and 100 ns more.
  CHECK(requests[1] == ServingRequest{1, 4.314579, 396, 109});
  CHECK(requests[2] == ServingRequest{2, 20653.3194101, 879, 55});
  // The traces of 2024 have microseconds, whole seconds without a fraction, and a zone.
  const auto later = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-28 23:59:59.999999+00:00,1,2\n"
      "2024-02-29 00:00:01+00:00,1,2\n2024-03-01T01:00:01+01:00,1,2\n");
  CHECK(later[1].arrival_s == 1.000001);
  CHECK(later[2].arrival_s == 86401.000001);
  for (const char* const stamp :
       {"2023-11-16", "2023-11-16 18:15", "2023-11-31 18:15:46", "2023-13-01 18:15:46",
        "2023-11-16 24:15:46", "2023-11-16 18:60:46", "2023-11-16 18:15:60", "1969-11-16 18:15:46",
        "2023-11-16 18:15:46.", "2023-11-16 18:15:46.1234567890", "2023-11-16 18:15:46x", "",
        "2023-11-16 18:15:46+1", "2023-02-29 18:15:46", "+023-11-16 18:15:46",
        "2023-11-16 -1:15:46", "9999-11-16 18:15:46"}) {
    CAPTURE(stamp);
    CHECK(failure("TIMESTAMP,ContextTokens,GeneratedTokens\n" + std::string(stamp) + ",1,2\n") ==
          "trace:2: column 'TIMESTAMP': got '" + std::string(stamp) +
              "', expected a time such as 2023-11-16 18:15:46.6805900");
  }
  CHECK(failure("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n"
                "2023-11-16 18:15:45,1,2\n") ==
        "trace:3: column 'TIMESTAMP': got -1 s, but 0 s on line 2, expected requests in order of "
        "arrival");
}

TEST_CASE("requests: BurstGPT counts from its first request, failed ones can be left out") {
  const auto requests = read(burstgpt);
  REQUIRE(requests.size() == 2);
  CHECK(requests[0] == ServingRequest{0, 0, 906, 446});
  CHECK(requests[1] == ServingRequest{1, 51, 36, 29});
  // The older files have six columns.
  const std::string failed =
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,0,472,API log\n45,ChatGPT,1087,230,1317,API log\n";
  CHECK(failure(failed) ==
        "trace:2: column 'Response tokens': got 0, expected a whole number from 1 to 2147483648");
  const auto left = read(failed, {.drop_empty = true});
  REQUIRE(left.size() == 1);
  CHECK(left[0] == ServingRequest{1, 40, 1087, 230});
}

TEST_CASE("requests: AccelMark needs a column of arrivals and a number of output tokens") {
  const auto requests =
      read(accelmark, {.arrival_column = "arrival_s_qps5_run2", .output_tokens = 345});
  REQUIRE(requests.size() == 2);
  CHECK(requests[1] == ServingRequest{1, 0.626283872, 342, 345});
  CHECK(failure(accelmark, {.output_tokens = 345}) ==
        "trace:1: got no column 'arrival_s', expected an arrival column chosen from "
        "arrival_s_qps5_run1, arrival_s_qps5_run2");
  CHECK(
      failure(accelmark, {.arrival_column = "arrival_s_qps5_run1"}) ==
      "trace:1: got no column 'output_tokens', expected one, or a number of output tokens for all "
      "requests");
  CHECK(failure(accelmark, {.arrival_column = "arrival_s_qps5_run3", .output_tokens = 3}) ==
        "trace:1: unknown arrival column 'arrival_s_qps5_run3'; did you mean "
        "'arrival_s_qps5_run1' or 'arrival_s_qps5_run2'?");
  const auto lengths = read(accelmark, {.lengths_only = true});
  REQUIRE(lengths.size() == 2);
  CHECK(lengths[1] == ServingRequest{1, 0, 342, 0});
}

TEST_CASE("requests: kvcast's own files, and APEX+'s with other column names") {
  const auto csv = read("arrival_s,prompt_tokens,output_tokens\n0.25,3,4\n0.25,5,6\n");
  REQUIRE(csv.size() == 2);
  CHECK(csv[0] == ServingRequest{0, 0.25, 3, 4});
  CHECK(csv[1] == ServingRequest{1, 0.25, 5, 6});
  const auto apex = read("arrival_s,input_tokens,output_tokens\n0.618518284,304,822\n");
  CHECK(apex == std::vector<ServingRequest>{{0, 0.618518284, 304, 822}});
  // Any order of columns, and others beside them.
  const auto ids = read("note,output_tokens,id,prompt_tokens,arrival_s\nx,4,7,3,1\n,6,9,5,1e1\n");
  CHECK(ids == std::vector<ServingRequest>{{7, 1, 3, 4}, {9, 10, 5, 6}});
  const auto jsonl = read(
      R"({"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 4, "tokens": [5, 6, 7],)"
      R"( "block_tokens": 2, "blocks": [8], "other": {"blocks": [[1]], "id": "x"}})"
      "\n"
      R"({"id": 5, "arrival_s": 2.5, "prompt_tokens": 1, "output_tokens": 2.0, "blocks": []})");
  REQUIRE(jsonl.size() == 2);
  CHECK(jsonl[0] == ServingRequest{0, 1, 3, 4, {8}, {5, 6, 7}});
  CHECK(jsonl[1] == ServingRequest{5, 2.5, 1, 2});
}

TEST_CASE("requests: line ends, empty lines at the end and a byte-order mark do not matter") {
  const std::vector<ServingRequest> two{{0, 1, 3, 4}, {1, 2, 5, 6}};
  const std::string header = "arrival_s,prompt_tokens,output_tokens";
  CHECK(read(header + "\n1,3,4\n2,5,6") == two);
  CHECK(read(header + "\r\n1,3,4\r\n2,5,6\r\n") == two);
  CHECK(read("\xEF\xBB\xBF" + header + "\n1,3,4\n2,5,6\n\n \n\r\n") == two);
  CHECK(failure(header + "\n1,3,4\n\n2,5,6\n") ==
        "trace:3: got an empty line, expected a request, as on later lines");
  const std::string line = R"({"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 4})";
  CHECK(read("\xEF\xBB\xBF" + line + "\r\n\r\n") == std::vector<ServingRequest>{{0, 1, 3, 4}});
  CHECK(read("  " + line) == std::vector<ServingRequest>{{0, 1, 3, 4}});
}

TEST_CASE("requests: long files and long lines are read piece by piece") {
  // More than one piece of the reader's buffer, with line ends at all places in it.
  std::string text = "arrival_s,prompt_tokens,output_tokens,note\n";
  for (int i = 0; i < 60000; ++i) {
    text += std::to_string(i) + ",3," + std::to_string(1 + i % 1000) + ",x\n";
  }
  const auto requests = read(text);
  REQUIRE(requests.size() == 60000);
  bool right = true;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    right = right && requests[i] == ServingRequest{i, static_cast<double>(i), 3, 1 + i % 1000};
  }
  CHECK(right);
  std::string ids =
      R"({"timestamp": 0, "input_length": 1600000, "output_length": 1, "hash_ids": [0)";
  for (int i = 1; i < 100000; ++i) ids += "," + std::to_string(i);
  const auto one = read(ids + "]}\n");
  REQUIRE(one.size() == 1);
  CHECK(one[0].blocks.size() == 100000);
  CHECK(one[0].blocks.back() == 99999);
}

TEST_CASE("requests: first_requests stops before later lines are read") {
  const std::string text = "arrival_s,prompt_tokens,output_tokens\n1,3,4\n2,5,6\nbroken\n";
  CHECK(read(text, {.first_requests = 2}).size() == 2);
  CHECK(failure(text, {.first_requests = 3}) ==
        "trace:4: got 1 fields, expected 3, as in the header");
}

TEST_CASE("requests: vLLM's detailed result is a workload") {
  const std::string body =
      R"("input_lens": [5, 6, 7], "output_lens": [8, 0, 9], "errors": ["", "timeout", ""],)"
      R"( "itls": [[0.1], [], [0.2]])";
  // The second started first by 0.5 s, but failed.
  CHECK(read("{" + body + R"(, "start_times": [100.75, 100, 100.5]})") ==
        std::vector<ServingRequest>{{2, 0, 7, 9}, {0, 0.25, 5, 8}});
  // The same, over several lines.
  CHECK(read("{\n" + body + ",\n\"start_times\": [100.75, 100, 100.5]}\n").size() == 2);
  CHECK(read("{" + body + R"(, "request_rate": "inf", "max_concurrency": null})") ==
        std::vector<ServingRequest>{{0, 0, 5, 8}, {2, 0, 7, 9}});
  check_line(failure("{" + body + R"(, "request_rate": 4.0})"), {"start_times: missing"});
  check_line(failure("{" + body + R"(, "request_rate": "inf", "max_concurrency": 8})"),
             {"start_times: missing"});
  CHECK(read("{" + body + R"(, "request_rate": 4.0})", {.lengths_only = true}).size() == 2);
  CHECK(failure(R"({"mean_ttft_ms": 3})") ==
        "trace: got a result without input_lens, expected one saved with --save-detailed");
  check_line(failure("{" + body + R"(, "start_times": [1, 2]})"),
             {"start_times", "2 entries", "3, as in input_lens"});
  check_line(failure(R"({"input_lens": [5, 6], "output_lens": [8, 0], "start_times": [1, 2]})"),
             {"/output_lens/1", "got 0"});
  check_line(failure("{" + body + "}\n{" + body + "}\n"), {"trace:2", "a second result"});
}

TEST_CASE("requests: files without lengths are refused with the reason") {
  check_line(failure(R"({"prompt": "Tell me."})"), {"trace:1: /prompt", "not counted"});
  check_line(failure("[\n {\"conversations\": []}\n]"), {"ShareGPT", "no lengths"});
  check_line(failure(R"({"a": 1})"), {"trace:1: got {\"a\":1}, expected kvcast CSV"});
  check_line(failure("a,b\n1,2\n"), {"trace:1: got columns 'a,b', expected kvcast CSV"});
  check_line(failure(""), {"trace: got an empty file, expected kvcast CSV"});
  CHECK(failure("arrival_s,prompt_tokens,output_tokens\n\n") ==
        "trace: got no requests, expected at least one");
  check_line(message_of([] { open_requests(std::filesystem::path("no/such.csv")); }),
             {"no/such.csv", "cannot be opened"});
  check_line(message_of([] { open_requests(std::filesystem::temp_directory_path()); }),
             {"a folder"});
}

TEST_CASE("requests: an error in CSV names the line, the column and what would be right") {
  const std::string header = "arrival_s,prompt_tokens,output_tokens,id\n";
  const auto of_row = [&](const std::string& row) { return failure(header + "1,2,3,0\n" + row); };
  const std::string tokens = ", expected a whole number from 1 to 2147483648";
  for (const char* const wrong : {"", "-1", "1.5", "x", " 1", "1 ", "99999999999999999999"}) {
    CAPTURE(wrong);
    const std::string cell(wrong);
    CHECK(of_row("1," + cell + ",3,1") ==
          "trace:3: column 'prompt_tokens': got '" + cell + "'" + tokens);
    CHECK(of_row("1,3," + cell + ",1") ==
          "trace:3: column 'output_tokens': got '" + cell + "'" + tokens);
  }
  CHECK(of_row("1,0,3,1") == "trace:3: column 'prompt_tokens': got 0" + tokens);
  CHECK(of_row("1,3,2147483649,1") == "trace:3: column 'output_tokens': got 2147483649" + tokens);
  for (const char* const wrong : {"", "-1", "nan", "inf", "1s", "1e999"}) {
    CAPTURE(wrong);
    const std::string cell(wrong);
    CHECK(of_row(cell + ",3,3,1") ==
          "trace:3: column 'arrival_s': got '" + cell + "', expected a time in seconds, 0 or more");
  }
  CHECK(of_row("0.5,3,3,1") ==
        "trace:3: column 'arrival_s': got 0.5 s, but 1 s on line 2, expected requests in order of "
        "arrival");
  CHECK(of_row("1,3,3,0") ==
        "trace:3: id: got 0 after 0, expected ids that grow from line to line, at most 2^53");
  CHECK(of_row("1,3,3,x") == "trace:3: column 'id': got 'x', expected a whole number");
  CHECK(of_row("1,3,3") == "trace:3: got 3 fields, expected 4, as in the header");
  CHECK(of_row("1,3,3,\"1") ==
        "trace:3: column 4: got a quoted field without an end, expected a closing quote on this "
        "line");
  CHECK(
      of_row("1,3,\"3\"x,1") ==
      "trace:3: column 3: got 'x' after a closing quote, expected a comma or the end of the line");
  CHECK(failure("arrival_s,prompt_tokens,arrival_s\n") ==
        "trace:1: got column 'arrival_s' twice, expected each column once");
  CHECK(failure("prompt_tokens,output_tokens\n1,2\n") ==
        "trace:1: got no column 'arrival_s', expected one with the arrivals");
  check_line(failure(header + "1,2,3,0", {.output_tokens = 3}), {"output_tokens", "one of them"});
  check_line(failure(header + "1,2,3,0", {.block_tokens = 3}), {"CSV has no prefix blocks"});
  CHECK(of_row("1,3,3,1") == "(no Error was thrown)");
}

TEST_CASE("requests: an error in JSONL names the line, the key and what would be right") {
  const std::string good = R"({"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 4})";
  const auto of_line = [&](const std::string& line) { return failure(good + "\n" + line); };
  const auto of_prompt = [&](const std::string& value) {
    return of_line(R"({"arrival_s": 1, "prompt_tokens": )" + value + R"(, "output_tokens": 4})");
  };
  const std::string tokens = ", expected a whole number from 1 to 2147483648";
  CHECK(of_prompt("0") == "trace:2: /prompt_tokens: got 0" + tokens);
  CHECK(of_prompt("-1") == "trace:2: /prompt_tokens: got -1" + tokens);
  CHECK(of_prompt("1.5") == "trace:2: /prompt_tokens: got 1.5" + tokens);
  CHECK(of_prompt("1e12") == "trace:2: /prompt_tokens: got 1000000000000" + tokens);
  CHECK(of_prompt("null") == "trace:2: /prompt_tokens: got null, expected a number");
  CHECK(of_prompt("\"3\"") == "trace:2: /prompt_tokens: got \"3\", expected a number");
  CHECK(of_prompt("true") == "trace:2: /prompt_tokens: got a truth value, expected a number");
  CHECK(of_prompt("[3]") == "trace:2: /prompt_tokens: got a list, expected a number");
  CHECK(of_prompt("{}") == "trace:2: /prompt_tokens: got an object, expected a number");
  CHECK(of_prompt("3, \"prompt_tokens\": 3") ==
        "trace:2: /prompt_tokens: got the key twice, expected each key once");
  CHECK(of_line(R"({"arrival_s": 1, "prompt_tokens": 3})") ==
        "trace:2: /output_tokens: missing; this key is required");
  CHECK(of_line(R"({"arrival_s": -1, "prompt_tokens": 3, "output_tokens": 4})") ==
        "trace:2: /arrival_s: got -1, expected a time, 0 or more");
  CHECK(of_line(R"({"arrival_s": 0.5, "prompt_tokens": 3, "output_tokens": 4})") ==
        "trace:2: /arrival_s: got 0.5 s, but 1 s on line 1, expected requests in order of arrival");
  CHECK(of_line("[{}]") == "trace:2: got [{}], expected a request as a JSON object");
  CHECK(of_line("3") == "trace:2: got 3, expected a request as a JSON object");
  // The column in the line, from 1.
  check_line(of_line(R"({"arrival_s": ])"), {"trace:2:15: not valid JSON: "});
  check_line(of_line(good + " x"), {"trace:2:", "not valid JSON: "});
  check_line(failure(R"({"arrival_s": ])"), {"trace:1:15: not valid JSON: "});
  check_line(of_line(R"({"arrival_s": 1e999})"), {"trace:2:", "not valid JSON: "});
  const auto of_list = [&](const std::string& list) {
    return failure(R"({"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 4, )" + list + "}");
  };
  CHECK(of_list(R"("tokens": [1, 2])") ==
        "trace:1: /tokens: got 2 tokens, expected 3, as prompt_tokens says");
  CHECK(of_list(R"("tokens": [1, 2, -3])") ==
        "trace:1: /tokens: got -3, expected a list of whole numbers");
  CHECK(of_list(R"("tokens": [1, 2, 2147483648])") ==
        "trace:1: /tokens: got 2147483648, expected a list of whole numbers");
  CHECK(of_list(R"("tokens": 3)") == "trace:1: /tokens: got 3, expected a list of whole numbers");
  CHECK(of_list(R"("blocks": [1])") == "trace:1: /block_tokens: missing; this key is required");
  CHECK(of_list(R"("block_tokens": 1, "blocks": [1])") ==
        "trace:1: /blocks: got 1 ids for 3 tokens, expected 3, one for each block of 1");
  CHECK(of_list(R"("block_tokens": 2, "blocks": [[1]])") ==
        "trace:1: /blocks: got a list, expected a list of whole numbers");
  CHECK(of_line(R"({"arrival_s": 1, "tokens": [], "tokens": []})") ==
        "trace:2: /tokens: got the key twice, expected each key once");
  check_line(failure(good, {.arrival_column = "x"}), {"no columns"});
  check_line(failure(good, {.output_tokens = 5}), {"a file that has them"});
}

TEST_CASE("requests: what is saved reads back equal") {
  const std::vector<ServingRequest> plain{
      {0, 0, 3, 4}, {2, 1.0 / 3, 1, 1}, {3, 1e17, 1U << 31U, 9}};
  const std::vector<ServingRequest> rich{{0, 0.1, 5, 4, {7, 8}, {1, 2, 3, 4, 5}},
                                         {1, 0.1, 1, 4, {}, {}}};
  for (const char* const name : {"a.csv", "a.jsonl"}) {
    CAPTURE(name);
    const TemporaryFile file(name);
    RequestList list(plain);
    CHECK(save_requests(list, file.path) == 3);
    CHECK(all_of(*open_requests(file.path)) == plain);
  }
  const TemporaryFile file("b.jsonl");
  RequestList list(rich, 2);
  CHECK(save_requests(list, file.path) == 2);
  const auto source = open_requests(file.path);
  CHECK(source->block_tokens() == 2);
  CHECK(all_of(*source) == rich);

  const TemporaryFile csv("b.csv");
  RequestList blocks(rich, 2);
  check_line(message_of([&] { save_requests(blocks, csv.path); }), {"prefix blocks", ".jsonl"});
  CHECK_FALSE(std::filesystem::exists(csv.path));
  check_line(message_of([&] { save_requests(blocks, csv.path.parent_path() / "b.txt"); }),
             {"'.txt'", ".csv or .jsonl"});
}

TEST_CASE("requests: any damage to a file is an Error or leaves right requests") {
  const std::string jsonl =
      R"({"id": 3, "arrival_s": 1, "prompt_tokens": 5, "output_tokens": 4, "block_tokens": 2, )"
      R"("blocks": [8, 9], "tokens": [1, 2, 3, 4, 5]})"
      "\n"
      R"({"id": 4, "arrival_s": 1.5, "prompt_tokens": 2, "output_tokens": 4, "blocks": [8]})";
  const std::string vllm =
      R"({"input_lens": [5, 6], "output_lens": [8, 9], "errors": ["", ""], "start_times": [3, 1]})";
  const std::vector<std::string> files{mooncake,
                                       azure,
                                       burstgpt,
                                       accelmark,
                                       jsonl,
                                       vllm,
                                       "arrival_s,input_tokens,output_tokens,id\n1,2,3,0\n2,3,4,1"};
  const std::string bytes = "0123456789-+.,:eE\"\\[]{}\n\r \t\0x\xFF" + std::string(1, '\0');
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::size_t refused = 0;
  std::size_t right = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text = files[below(files.size())];
    for (std::size_t change = below(3) + 1; change > 0 && !text.empty(); --change) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0: text[at] = bytes[below(bytes.size())]; break;
        case 1: text.erase(at, below(6) + 1); break;
        case 2: text.insert(at, 1, bytes[below(bytes.size())]); break;
        default: text.insert(at, text.substr(below(text.size()), below(20))); break;
      }
    }
    RequestFileOptions options;
    if (text.starts_with("request_id")) {
      options.arrival_column = "arrival_s_qps5_run1";
      options.output_tokens = 3;
    }
    options.drop_empty = below(2) == 0;
    try {
      const auto source = open(text, options);
      double last_s = 0;
      while (const auto request = source->next()) {
        const bool good = std::isfinite(request->arrival_s) && request->arrival_s >= last_s &&
                          request->prompt_tokens - 1 < max_request_tokens &&
                          request->output_tokens - 1 < max_request_tokens;
        if (!good) FAIL_CHECK(text);
        last_s = request->arrival_s;
      }
      ++right;
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(right > 1000);
  CHECK(refused > 5000);
}

}  // namespace
}  // namespace kvcast::simulate
