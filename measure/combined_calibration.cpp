#include "measure/combined_calibration.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "roofline/hardware_fields.h"
#include "roofline/hardware_writer.h"

namespace kvcast::measure {
namespace {

/// A number of a device. `peak`: the number that it is a share of; null: it is no share.
struct Entry {
  std::string name;
  const char* unit = "";  ///< of rate()
  double* number = nullptr;
  std::string* reference = nullptr;  ///< null: that of the number before it
  roofline::Sourced* peak = nullptr;

  double rate() const { return *number * (peak == nullptr ? 1 : peak->value); }
};

const char* unit_of(const roofline::Field& field) {
  switch (field.unit) {
    case roofline::Unit::FlopsPerSecond: return "FLOP/s";
    case roofline::Unit::BytesPerSecond: return "bytes/s";
    case roofline::Unit::Bytes: return "bytes";
    case roofline::Unit::Seconds: return "s";
    case roofline::Unit::Share: break;
  }
  switch (field.peak) {
    case roofline::Peak::Matrix: return "FLOP/s";
    case roofline::Peak::Memory: return "bytes/s";
    case roofline::Peak::None: break;
  }
  return "";
}

/// All numbers that calibrations measure, peaks before their shares.
std::vector<Entry> entries_of(roofline::Hardware& hw) {
  std::vector<Entry> list;
  const auto add = [&](const std::string& what, const char* unit, roofline::Sourced& number,
                       roofline::Sourced* peak = nullptr) {
    list.push_back({what, unit, &number.value, &number.reference, peak});
    for (roofline::FactorAt& point : number.by_length) {
      const std::string at = fmt::format("{} at {}", what, point.length);
      list.push_back({at, unit, &point.value, nullptr, peak});
    }
  };
  for (const roofline::Field& field : roofline::hardware_fields()) {
    if (field.unit == roofline::Unit::Bytes) continue;  // check_same_machine
    roofline::for_each_number(
        field, hw, [&](const std::string& suffix, DType dtype, roofline::Sourced& number) {
          roofline::Sourced* peak = nullptr;
          if (field.peak == roofline::Peak::Memory) peak = &hw.memory_bandwidth;
          if (field.peak == roofline::Peak::Matrix) {
            peak = &hw.peak_flops_per_second.at(hw.supported(dtype));
          }
          add(field.path() + suffix, unit_of(field), number, peak);
        });
  }
  for (auto& [link, numbers] : hw.links) {
    add(fmt::format("links.{}.bandwidth", link), "bytes/s", numbers.bandwidth);
    add(fmt::format("links.{}.latency", link), "s", numbers.latency);
  }
  return list;
}

/// 1 in files without a version. read_hardware has checked it.
std::uint64_t version_of(const std::filesystem::path& file) {
  const nlohmann::json how = calibration_of(file);
  const auto version = how.find("version");
  return version != how.end() && version->is_number_unsigned() ? version->get<std::uint64_t>() : 1;
}

void check_same_machine(const std::filesystem::path& file, const roofline::Hardware& other,
                        const std::filesystem::path& first_file, const roofline::Hardware& first) {
  const auto differs = [&](const std::string& what, const std::string& found,
                           const std::string& expected) {
    throw Error(
        file.string(), fmt::format("{} {}", what, found),
        fmt::format("{}, as in {}: calibrations of one machine", expected, first_file.string()));
  };
  if (other.description != first.description) {
    differs("the description", "'" + other.description + "'", "'" + first.description + "'");
  }
  for (const roofline::Field& field : roofline::hardware_fields()) {
    if (field.unit != roofline::Unit::Bytes) continue;
    const double found = field.find(other, DType::FP32)->value;
    const double expected = field.find(first, DType::FP32)->value;
    if (found == expected) continue;
    differs(field.path(), fmt::format("of {} bytes", found), fmt::format("{}", expected));
  }
}

}  // namespace

nlohmann::json calibration_of(const std::filesystem::path& file) {
  const auto document = nlohmann::json::parse(roofline::hardware_document(file));
  const auto found = document.find("calibration");
  return found != document.end() && found->is_object() ? *found : nlohmann::json::object();
}

CombinedCalibration combine_calibrations(const std::vector<std::filesystem::path>& files) {
  if (files.size() < 2) {
    throw Error("--combine", fmt::format("{} file", files.size()), "two hardware files or more");
  }
  std::vector<roofline::Hardware> devices;
  std::set<std::filesystem::path> seen;
  for (const std::filesystem::path& file : files) {
    devices.push_back(roofline::read_hardware(file));
    check_same_machine(file, devices.back(), files.front(), devices.front());
    const std::uint64_t version = version_of(file);
    if (const std::uint64_t first = version_of(files.front()); version != first) {
      throw Error(file.string(), fmt::format("a calibration of version {}", version),
                  fmt::format("version {}, as {}", first, files.front().string()));
    }
    if (!seen.insert(std::filesystem::weakly_canonical(file)).second) {
      throw Error("--combine", file.string() + " twice", "each calibration once");
    }
  }
  CombinedCalibration c;
  c.hardware = devices.front();
  const std::vector<Entry> combined = entries_of(c.hardware);
  for (const Entry& e : combined) c.numbers.push_back({e.name, e.unit, {}});
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const std::vector<Entry> entries = entries_of(devices[d]);
    for (std::size_t i = 0; i < std::max(entries.size(), combined.size()); ++i) {
      const std::string found = i < entries.size() ? entries[i].name : "nothing";
      const std::string expected = i < combined.size() ? combined[i].name : "nothing more";
      if (found != expected) throw Error(files[d].string(), found, expected + ", as in the first");
      c.numbers[i].rounds.push_back(entries[i].rate());
    }
  }
  for (std::size_t i = 0; i < combined.size(); ++i) {
    const double median = c.numbers[i].median();
    const Entry& e = combined[i];
    // The peak is combined already. It is no lower: no calibration has a peak below its rates.
    *e.number = e.peak == nullptr ? median : median / e.peak->value;
    if (e.reference == nullptr) continue;
    *e.reference =
        fmt::format("median of {} calibrations, the first: {}", files.size(), *e.reference);
  }
  return c;
}

std::string to_json(const CombinedCalibration& c, const std::string& name,
                    const std::vector<std::filesystem::path>& files) {
  roofline::Hardware hardware = c.hardware;
  hardware.name = name;
  nlohmann::ordered_json j = roofline::hardware_entries(hardware);
  nlohmann::ordered_json& calibration = j["calibration"];
  calibration = nlohmann::ordered_json::object();
  for (const std::filesystem::path& file : files) {
    const nlohmann::json how = calibration_of(file);
    if (&file == &files.front()) {
      for (const char* key : {"version", "date", "processor", "threads", "ranks"}) {
        if (how.contains(key)) calibration[key] = how[key];
      }
    }
    calibration["combined"].push_back(
        {{"file", file.filename().string()}, {"date", how.value("date", "")}});
  }
  for (const Measurement& n : c.numbers) {
    calibration["numbers"].push_back(
        {{"name", n.name}, {"median", n.median()}, {"low", n.low()}, {"high", n.high()}});
  }
  return json_text(j, 2) + "\n";
}

}  // namespace kvcast::measure
