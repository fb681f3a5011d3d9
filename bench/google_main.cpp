// The main of the Google Benchmark programs.
#include <benchmark/benchmark.h>

#include "bench/guarded.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  return kvcast::run_guarded(argv[0], [] { benchmark::RunSpecifiedBenchmarks(); });
}
