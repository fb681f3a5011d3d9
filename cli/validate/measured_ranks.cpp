#include "cli/validate/measured_ranks.h"

#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "measure/combined_calibration.h"
#include "measure/measurements.h"
#include "model/base/error.h"
#include "model/base/shell_command.h"
#include "model/execute/mpi_messenger.h"
#include "search/placed_estimator.h"

namespace kvcast::cli {
namespace {

using measure::MeasurePoint;

/// Ranks that wait for each other stop earlier (run --wait-limit).
constexpr double limit_s = 3600;

std::string calibrated_by(std::uint64_t ranks) {
  return fmt::format("HW.json, written by mpirun -n {} kvcast calibrate --output HW.json", ranks);
}

std::string mpirun(std::uint64_t ranks) {
  std::string line = "exec mpirun -quiet";
  if (::geteuid() == 0) line += " --allow-run-as-root";
  if (ranks > std::thread::hardware_concurrency()) line += " --oversubscribe";
  return line + fmt::format(" -n {}", ranks);
}

/// The program's error line without its name, or else the last line of the output.
std::string complaint(const measure::MeasurePoint& p, const ShellRun& run) {
  constexpr std::string_view name = "kvcast: ";
  std::string last = run.failure();
  std::istringstream lines(run.errors);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return line.substr(name.size());
    if (line.find_first_not_of(" -\t") != std::string::npos) last = line;
  }
  return fmt::format("mpirun for {}: {}", p.method, last);
}

}  // namespace

CalibratedWith calibrated_with(const Catalog& catalog, const std::string& file) {
  const nlohmann::json calibration =
      measure::calibration_of(catalog.find("hardware", "hardware", file));
  const auto whole = [&](const char* key) -> std::optional<std::uint64_t> {
    const auto found = calibration.find(key);
    if (found == calibration.end()) return {};
    constexpr std::uint64_t most = 1024;
    const bool is_count = found->is_number_unsigned() && *found > 0 && *found <= most;
    if (!is_count) {
      throw Error(fmt::format("{}: /calibration/{}", file, key), found->dump(),
                  fmt::format("a number from 1 to {}", most));
    }
    return *found;
  };
  return {whole("ranks"), whole("threads")};
}

RankHardware read_rank_hardware(const Catalog& catalog, const std::string& file) {
  RankHardware r{.file = file, .hardware = roofline::load_hardware(catalog, file)};
  if (r.hardware.links.empty()) {
    throw Error("--rank-hardware " + file, "no link between ranks", calibrated_by(r.ranks));
  }
  const CalibratedWith with = calibrated_with(catalog, file);
  r.ranks = with.ranks.value_or(r.ranks);
  r.threads = static_cast<int>(with.threads.value_or(1));
  return r;
}

void check_rank_points(const std::vector<MeasurePoint>& points, const RankHardware* file) {
  const MeasurePoint* wanted = nullptr;
  for (const MeasurePoint& p : points) {
    const std::uint64_t ranks = num_ranks(p);
    if (ranks == 1) continue;
    wanted = &p;
    if (file == nullptr) {
      throw Error(
          fmt::format("--method: {} needs --rank-hardware {}", p.method, calibrated_by(ranks)));
    }
    if (ranks != file->ranks) {
      throw Error("--rank-hardware",
                  fmt::format("a calibration of {} ranks, and {}", file->ranks, p.method),
                  calibrated_by(ranks));
    }
  }
  if (wanted == nullptr) return;
  std::string missing;
  if (!execute::MpiMessenger::is_built_in()) {
    missing = "this kvcast was built without MPI";
  } else if (!run_shell("command -v mpirun", "mpirun", {.limit_s = 10}).failure().empty()) {
    missing = "there is no mpirun on the PATH";
  }
  if (missing.empty()) return;
  throw Error(fmt::format("{} runs on ranks, and {}; expected Open MPI, or no --rank-hardware",
                          wanted->method, missing),
              Fault::Run);
}

std::function<measure::RunSeconds(const MeasurePoint&)> rank_runner(
    const RankHardware& file, const measure::MeasureOptions& options, const Globals& globals) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string data = globals.catalog().root().string();
  return [=, &options](const MeasurePoint& p) -> measure::RunSeconds {
    std::string line = mpirun(num_ranks(p));
    for (const std::string& word : {program, std::string("--data"), data}) {
      line += " " + shell_quoted(word);
    }
    line += " run --quiet --json --model " + shell_quoted(p.model);
    if (!measure::has_weights(p.model)) line += fmt::format(" --random-weights {}", options.seed);
    line += fmt::format(
        " --method {} --attention {} --weights fp32 --arithmetic {} --cache-dtype {} --batch {} "
        "--prompt-len {} --output-len {} --threads {} --rounds 1",
        shell_quoted(p.method), measure::attention_name(p.attention), execute::name(p.arithmetic),
        name(p.cache), p.size.batch, p.size.prompt_len, p.size.output_len, file.threads);
    if (search::searches_partition(parse_methods(p.method))) {
      line += " --hardware " + shell_quoted(file.file);
    }
    const ShellRun run = run_shell(line + " </dev/null", "mpirun",
                                   {.limit_s = limit_s, .keep_errors = true, .stop = options.stop});
    if (run.stopped) options.check_stop();
    if (run.late) {
      throw Error(fmt::format("mpirun for {}: no end within {:g} s", p.method, limit_s),
                  Fault::Run);
    }
    if (!run.failure().empty()) throw Error(complaint(p, run), Fault::Run);
    const auto said = nlohmann::json::parse(run.output, nullptr, false);
    if (!said.is_object() || !said.contains("ttft_s") || !said.contains("tpot_s")) {
      throw Error(
          fmt::format("mpirun for {}: got no times, expected those of kvcast run --json", p.method),
          Fault::Run);
    }
    return {said["ttft_s"], said["tpot_s"]};
  };
}

}  // namespace kvcast::cli
