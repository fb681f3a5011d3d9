/// The flags of parallel prefill: model, devices, the links between them.
#pragma once

#include <optional>
#include <string>

#include "cli/frame/arguments.h"
#include "cli/frame/request_options.h"
#include "roofline/estimator.h"
#include "search/chain_links.h"
#include "search/partition_table.h"
#include "search/runahead.h"

namespace kvcast::cli {

struct LinkFlags {
  std::string name;       ///< --link; empty: the hardware's default
  std::string gb_per_s;   ///< empty: the bandwidth of that link
  std::string latency_s;  ///< empty: the latency of that link

  bool operator==(const LinkFlags&) const = default;
  void add_to(Command command);
};

struct ParallelOptions {
  RequestOptions request;  ///< the model, the device, kernels, dtype and mode
  LinkFlags link;
  std::string send_order = "fifo";
  std::string algorithm = "balance";

  /// `required`: whether the command needs a model and hardware.
  void add_to(Command command, bool required = true);
  void add_algorithm_to(Command command);
};

/// Throws Error naming the flag, or the hardware that lists no links.
search::HardwareLink parse_link(const LinkFlags& flags, const roofline::Hardware& hardware,
                                roofline::Mode mode);

/// Of a placement (kvr, tsp), if a flag is given. Throws Error as parse_link, and where no method
/// is one.
std::optional<search::HardwareLink> parse_placement_link(
    const LinkFlags& flags, const roofline::Configuration& configuration);

/// A number above zero, or at least zero with `zero`. Throws Error starting with the flag.
double parse_flag_number(const std::string& text, const char* flag, bool zero);
/// 1 or more devices.
std::size_t parse_devices(const std::string& text, const char* flag);

/// Throws Error naming the flag for every wrong value.
search::Runahead make_runahead(const ParallelOptions& o, const Catalog& catalog);
/// What a table is made for; stored in it.
search::TableSettings table_settings(const ParallelOptions& o, const Catalog& catalog,
                                     const search::Runahead& runahead);

}  // namespace kvcast::cli
