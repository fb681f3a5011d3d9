#include "simulate/serving/requests.h"

#include <string>
#include <string_view>
#include <utility>

#include "model/base/error.h"
#include "model/io/files/atomic_file.h"
#include "model/io/files/csv_writer.h"
#include "model/io/files/number_text.h"

namespace kvcast::simulate {
namespace {

constexpr std::size_t flush_bytes = std::size_t{1} << 18;

template <typename Number>
void append_list(std::string& text, std::string_view key, const std::vector<Number>& numbers) {
  text.append(", \"").append(key).append("\": [");
  const char* separator = "";
  for (const Number number : numbers) {
    text += separator;
    append_number(text, number);
    separator = ", ";
  }
  text += ']';
}

template <typename Number>
void append_entry(std::string& text, std::string_view key, Number number) {
  text.append(", \"").append(key).append("\": ");
  append_number(text, number);
}

void append_json_line(std::string& text, const ServingRequest& request,
                      std::uint64_t block_tokens) {
  text += "{\"id\": ";
  append_number(text, request.id);
  append_entry(text, "arrival_s", request.arrival_s);
  append_entry(text, "prompt_tokens", request.prompt_tokens);
  append_entry(text, "output_tokens", request.output_tokens);
  if (block_tokens > 0) {
    append_entry(text, "block_tokens", block_tokens);
    append_list(text, "blocks", request.blocks);
  }
  if (!request.tokens.empty()) append_list(text, "tokens", request.tokens);
  text += "}\n";
}

std::uint64_t save_csv(RequestSource& source, const std::filesystem::path& path) {
  CsvWriter csv(path, {"id", "arrival_s", "prompt_tokens", "output_tokens"});
  std::uint64_t count = 0;
  for (; const std::optional<ServingRequest> request = source.next(); ++count) {
    if (source.block_tokens() > 0 || !request->tokens.empty()) {
      throw Error(path.string(), "requests with prefix blocks or tokens",
                  "a name ending in .jsonl, since CSV cannot hold them");
    }
    csv.cell(request->id).cell(request->arrival_s);
    csv.cell(request->prompt_tokens).cell(request->output_tokens).end_row();
  }
  csv.commit();
  return count;
}

std::uint64_t save_jsonl(RequestSource& source, const std::filesystem::path& path) {
  AtomicFile file(path);
  std::string text;
  std::uint64_t count = 0;
  for (; const std::optional<ServingRequest> request = source.next(); ++count) {
    append_json_line(text, *request, source.block_tokens());
    if (text.size() < flush_bytes) continue;
    file.write(text);
    text.clear();
  }
  file.write(text);
  file.commit();
  return count;
}

}  // namespace

RequestSource::~RequestSource() = default;

RequestList::RequestList(std::vector<ServingRequest> requests, std::uint64_t block_tokens,
                         std::uint64_t num_failed)
    : requests_(std::move(requests)), block_tokens_(block_tokens), num_failed_(num_failed) {}

std::optional<ServingRequest> RequestList::next() {
  if (next_ == requests_.size()) return std::nullopt;
  return requests_[next_++];
}

std::uint64_t save_requests(RequestSource& source, const std::filesystem::path& path) {
  if (path.extension() == ".csv") return save_csv(source, path);
  if (path.extension() == ".jsonl") return save_jsonl(source, path);
  throw Error(path.string(), "'" + path.extension().string() + "'",
              "a name ending in .csv or .jsonl");
}

}  // namespace kvcast::simulate
