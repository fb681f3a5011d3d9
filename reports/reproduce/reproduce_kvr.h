/// The tables of KV-Runahead that reproduce_kvr.cpp puts together.
#pragma once

#include <vector>

#include "reports/reproduce/reproduce.h"

namespace kvcast::reports {

/// Tables 1 and 2, and the 10 GB/s columns of Table 3.
std::vector<PublishedTable> kvr_parallel_tables();
/// Captions, an interpolated partition, and the numbers of the text.
std::vector<PublishedTable> kvr_text_tables();
/// Worked examples, Table 4, equations and the cost of the paper's search.
std::vector<PublishedTable> kvr_exact_tables();

}  // namespace kvcast::reports
