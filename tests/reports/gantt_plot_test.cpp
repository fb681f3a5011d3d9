#include "reports/plot/gantt_plot.h"

#include <string>

#include <doctest/doctest.h>

#include "simulate/topologies.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::reports {
namespace {

using simulate::Compute;
using simulate::Receive;
using simulate::Send;

/// Device 0 works for 1 s and sends for 2 s; device 1 waits 3 s and works twice.
struct Played {
  simulate::Simulation simulation{
      simulate::make_platform({simulate::TopologyKind::Ring}, 2, 100, 0),
      {{{Compute{1, 0}, Send{1, 200}}, {Receive{0}, Compute{0.5, 0}, Compute{0.5, 1}}},
       {"before", "after"}}};
  simulate::RunResult result;
  Played() {
    simulate::RunOptions options;
    options.record = true;
    result = simulation.run(options);
  }
};

TEST_CASE("reports: a Gantt chart has a span for everything that takes time") {
  const Played played;
  const Plot plot = gantt_plot(played.simulation, played.result, "two devices");
  CHECK(plot_csv(plot) ==
        "series,time_s,row,end_time_s,name\n"
        "before,0,1.16,1,device0\n"
        "before,3,0.16,3.5,device1\n"
        "after,3.5,0.16,4,device1\n"
        "waiting,0,0.16,3,device1\n"
        "messages sent,1,0.76,3,device0\n");
  const std::string script = plot_script(plot, "run.svg");
  CHECK(script.find("set ytics ('device1' 0, 'device0' 1)") != std::string::npos);
  CHECK(
      script.find("using ($2/0.001):3:($2/0.001):($4/0.001):($3-0.25):($3+0.25) with boxxyerror") !=
      std::string::npos);
}

TEST_CASE("reports: gnuplot draws the Gantt chart") {
  const Played played;
  const TestFolder folder;
  write_plot(gantt_plot(played.simulation, played.result, "two devices"), folder / "run.svg");
  CHECK(folder.num_files() == 3);
}

TEST_CASE("reports: spans that a picture cannot hold apart are joined") {
  // 10,000 messages of 1 B, each 0.01 s, fifo: without a gap.
  simulate::Programs programs;
  programs.ranks.resize(2);
  for (int i = 0; i < 10000; ++i) {
    programs.ranks[0].push_back(Send{1, 1});
    programs.ranks[1].push_back(Receive{0});
  }
  const simulate::Simulation simulation(
      simulate::make_platform({simulate::TopologyKind::Ring}, 2, 100, 0), programs);
  simulate::RunOptions options;
  options.record = true;
  const Plot plot = gantt_plot(simulation, simulation.run(options), "many");
  REQUIRE(plot.series.size() == 2);
  CHECK(plot.series[0].points.size() == 1);
  CHECK(plot.series[1].points.size() == 1);
  CHECK(plot.series[1].points[0].x_end == near(100));
}

TEST_CASE("reports: a run that takes no time has no Gantt chart") {
  const simulate::Simulation simulation(
      simulate::make_platform({simulate::TopologyKind::Ring}, 2, 100, 0), {{{}, {}}, {}});
  const Plot plot = gantt_plot(simulation, simulation.run(), "nothing");
  CHECK(message_of([&] { plot_script(plot, "run.svg"); }) ==
        "plot 'nothing': got no point to show, expected one");
}

}  // namespace
}  // namespace kvcast::reports
