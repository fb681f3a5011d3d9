#include "reports/sweep/sweep.h"

#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/io/files/sweep_file.h"
#include "reports/sweep/sweep_rows.h"

namespace kvcast::reports {
namespace {

using execute::Messenger;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How often rows are forced to the disk and reported.
constexpr milliseconds report_every{250};
constexpr milliseconds patience{20};
constexpr milliseconds rank_nap{1};
/// What rank 0 asks for, beside the first point of the range on its first question.
constexpr std::int64_t next_block = 0;
constexpr std::int64_t stop_now = -1;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A block as one text between ranks: 'b', rows, errors, lines; or 'e' and an error message.
std::string pack(const RowBlock& block) {
  std::string text(1 + 2 * sizeof(std::uint64_t), 'b');
  std::memcpy(text.data() + 1, &block.num_rows, sizeof block.num_rows);
  std::memcpy(text.data() + 1 + sizeof block.num_rows, &block.num_errors, sizeof block.num_errors);
  return text + block.text;
}

RowBlock unpack(const std::string& text, std::size_t rank) {
  if (text.empty() || text[0] != 'b') {
    throw Error(fmt::format("rank {}: {}", rank, text.empty() ? "" : text.substr(1)), Fault::Run);
  }
  RowBlock block;
  std::memcpy(&block.num_rows, text.data() + 1, sizeof block.num_rows);
  std::memcpy(&block.num_errors, text.data() + 1 + sizeof block.num_rows, sizeof block.num_errors);
  block.text = text.substr(1 + 2 * sizeof(std::uint64_t));
  return block;
}

void ask(Messenger& ranks, std::size_t rank, std::int64_t question) {
  send_bytes(ranks, rank, &question, sizeof question);
}

std::int64_t next_question(Messenger& ranks) {
  std::int64_t question = 0;
  receive_bytes(ranks, 0, &question, sizeof question);
  return question;
}

/// The other ranks' blocks, as rank 0 sees them: each rank has one question open at a time, and is
/// told to stop when this object goes, whatever happened.
class RemoteBlocks {
 public:
  RemoteBlocks(Messenger& ranks, std::uint64_t first_point, const BlockList& blocks)
      : ranks_(ranks), blocks_(blocks), open_(ranks.ranks(), false) {
    for (std::size_t r = 1; r < ranks.ranks(); ++r) {
      ask(ranks, r, static_cast<std::int64_t>(first_point));
      ask_for_block(r, r);
    }
  }
  ~RemoteBlocks() {
    for (std::size_t r = 1; r < ranks_.ranks(); ++r) {
      if (open_[r]) receive_text(ranks_, r);
      ask(ranks_, r, stop_now);
    }
  }
  RemoteBlocks(const RemoteBlocks&) = delete;
  RemoteBlocks& operator=(const RemoteBlocks&) = delete;

  /// Block `index`, which is rank `r`'s.
  std::optional<RowBlock> take(std::size_t r, std::uint64_t index) {
    if (!ranks_.has_message(r)) {
      std::this_thread::sleep_for(rank_nap);
      return std::nullopt;
    }
    const std::string text = receive_text(ranks_, r);
    open_[r] = false;
    ask_for_block(r, index + ranks_.ranks());
    return unpack(text, r);
  }

 private:
  void ask_for_block(std::size_t r, std::uint64_t index) {
    if (index >= blocks_.size()) return;
    ask(ranks_, r, next_block);
    open_[r] = true;
  }

  Messenger& ranks_;
  const BlockList& blocks_;
  std::vector<bool> open_;
};

/// What every rank but 0 does: evaluates its blocks and sends them when asked.
void serve_blocks(const SweepGrid& grid, const SweepOptions& o, Messenger& ranks) {
  const std::int64_t question = next_question(ranks);
  if (question == stop_now) return;
  const PointRange range{static_cast<std::uint64_t>(question), o.shard.of(grid.num_points()).last};
  const BlockList blocks(grid, range);
  BlockPool pool(grid, blocks, ranks.rank(), ranks.ranks(), o.num_threads);
  while (next_question(ranks) != stop_now) {
    std::string answer;
    try {
      std::optional<RowBlock> block;
      while (!block) block = pool.take(patience);
      answer = pack(*block);
      pool.recycle(std::move(block->text));
    } catch (const std::exception& e) {
      answer = std::string("e") + e.what();
    }
    send_text(ranks, 0, answer);
  }
}

SweepFile open_file(const SweepGrid& grid, const SweepOptions& o, PointRange range) {
  const SweepIdentity identity{sweep_header(), grid.fingerprint(), range.first,
                               range.last - range.first};
  if (o.csv.empty()) return SweepFile(o.descriptor, o.descriptor_name, identity);
  return SweepFile(o.csv, identity, o.restart);
}

/// Evaluates the last row found once more: a kvcast with other formulas must not go on with a file
/// that it would have written differently.
void check_last_row(const SweepGrid& grid, const SweepFile& file, std::uint64_t first_point) {
  if (file.rows_found() == 0) return;
  const std::uint64_t point = first_point + file.rows_found() - 1;
  ConfigurationRows rows(grid, point / grid.num_sizes());
  const std::uint64_t size = point % grid.num_sizes();
  RowScratch scratch;
  std::string row;
  rows.append(size, size + 1, scratch, row);
  if (row != file.last_row_found()) {
    throw Error(file.partial().string() +
                ": its last row is not what this kvcast would write; "
                "pass --restart to discard it");
  }
}

/// Appends the rows of all blocks in order.
class Writer {
 public:
  Writer(SweepFile& file, const SweepOptions& options, SweepResult& result)
      : file_(file), options_(options), result_(result) {}

  bool must_stop() const { return options_.stop != nullptr && options_.stop->load(); }
  void append(const RowBlock& block) {
    file_.append(block.text);
    result_.rows_written += block.num_rows;
    result_.num_errors += block.num_errors;
  }
  void report_now_and_then() {
    if (Clock::now() - last_report_ < report_every) return;
    file_.sync();
    report();
  }
  void report() {
    last_report_ = Clock::now();
    if (!options_.on_progress) return;
    options_.on_progress(
        {result_.rows_written, result_.num_points, result_.rows_resumed, seconds_since(start_)});
  }
  double elapsed_s() const { return seconds_since(start_); }

 private:
  SweepFile& file_;
  const SweepOptions& options_;
  SweepResult& result_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_report_ = start_;
};

/// Takes blocks in turn from this process and, under MPI, from the others until all are written
/// or it is time to stop.
void write_blocks(const SweepGrid& grid, const SweepOptions& o, Messenger* ranks, PointRange range,
                  Writer& writer) {
  const BlockList blocks(grid, range);
  const std::size_t num_ranks = ranks == nullptr ? 1 : ranks->ranks();
  std::optional<RemoteBlocks> remote;
  if (ranks != nullptr) remote.emplace(*ranks, range.first, blocks);
  BlockPool pool(grid, blocks, 0, num_ranks, o.num_threads);
  for (std::uint64_t index = 0; index < blocks.size() && !writer.must_stop();) {
    const std::size_t rank = index % num_ranks;
    std::optional<RowBlock> block = rank == 0 ? pool.take(patience) : remote->take(rank, index);
    if (block) {
      writer.append(*block);
      if (rank == 0) pool.recycle(std::move(block->text));
      ++index;
    }
    writer.report_now_and_then();
  }
}

/// Rank 0 of several that fails before it asked for blocks: the others wait for a question.
template <typename Function>
auto or_stop_others(Messenger* ranks, Function function) {
  try {
    return function();
  } catch (...) {
    for (std::size_t r = 1; ranks != nullptr && r < ranks->ranks(); ++r) ask(*ranks, r, stop_now);
    throw;
  }
}

}  // namespace

PointRange Shard::of(std::uint64_t num_points) const {
  // No overflow: at most 10^9 points and 10^9 shards.
  return {num_points * (number - 1) / count, num_points * number / count};
}

Shard parse_shard(std::string_view text, std::string_view place) {
  constexpr std::uint64_t max_shards = 1'000'000'000;
  Shard shard;
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, shard.number);
  const bool has_slash = error == std::errc() && slash != end && *slash == '/';
  const auto [rest, error_2] = std::from_chars(has_slash ? slash + 1 : end, end, shard.count);
  if (!has_slash || error_2 != std::errc() || rest != end || shard.number < 1 ||
      shard.number > shard.count || shard.count > max_shards) {
    throw Error(place, "'" + std::string(text) + "'", "I/N with 1 <= I <= N, such as 2/3");
  }
  return shard;
}

void check_any_possible(const SweepGrid& grid) {
  std::string first;
  for (std::uint64_t c = 0; c < grid.num_configurations(); ++c) {
    ConfigurationRows rows(grid, c);
    for (std::uint64_t size = 0; size < grid.num_sizes(); ++size) {
      const std::optional<std::string> problem = rows.problem(size);
      if (!problem) return;
      if (first.empty()) first = *problem;
      if (!rows.is_possible()) break;
    }
  }
  throw Error(first);
}

SweepResult run_sweep(const SweepGrid& grid, const SweepOptions& o, Messenger* ranks) {
  SweepResult result;
  if (ranks != nullptr && ranks->rank() > 0) {
    serve_blocks(grid, o, *ranks);
    return result;
  }
  PointRange range = o.shard.of(grid.num_points());
  SweepFile file = or_stop_others(ranks, [&] { return open_file(grid, o, range); });
  or_stop_others(ranks, [&] { check_last_row(grid, file, range.first); });
  result.num_points = range.last - range.first;
  result.rows_resumed = file.rows_found();
  result.rows_written = file.rows_found();
  result.num_errors = file.errors_found();
  range.first += file.rows_found();

  Writer writer(file, o, result);
  write_blocks(grid, o, ranks, range, writer);
  result.stopped = result.rows_written < result.num_points;
  if (result.stopped) {
    file.sync();
    result.partial = file.partial().string();
  } else {
    file.finish();
  }
  writer.report();
  result.elapsed_s = writer.elapsed_s();
  return result;
}

}  // namespace kvcast::reports
