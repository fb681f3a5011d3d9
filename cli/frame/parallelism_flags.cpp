#include "cli/frame/parallelism_flags.h"

namespace kvcast::cli {

void ParallelismFlags::add_to(Command c) {
  c.add("--tp", tp);
  c.add("--pp", pp);
  c.add("--ep", ep);
  c.add("--dp", dp);
}

Parallelism ParallelismFlags::parallelism() const {
  return parse_parallelism({{"tp", tp}, {"pp", pp}, {"ep", ep}, {"dp", dp}});
}

}  // namespace kvcast::cli
