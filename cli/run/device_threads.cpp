#include "cli/run/device_threads.h"

#include <exception>
#include <mutex>
#include <thread>

#include "model/execute/machine_probe.h"

namespace kvcast::cli {

DeviceThreads::DeviceThreads(const Checkpoint& checkpoint, const execute::SessionOptions& of_first,
                             int threads)
    : threads_(threads) {
  for (std::uint64_t d = 1; d < of_first.place->plan.devices(); ++d) {
    execute::SessionOptions options = of_first;
    options.place->device = d;
    others_.push_back(std::make_unique<execute::Session>(checkpoint, options));
  }
}

execute::RankRun DeviceThreads::run(const execute::Session& first, const execute::Request& request,
                                    execute::Mailboxes& mailboxes) const {
  std::exception_ptr error;
  std::mutex mutex;
  const auto guarded = [&](const auto& work) {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      mailboxes.fail();
    }
  };
  // The first one alone reports.
  execute::Request silent = request;
  silent.on_token = nullptr;
  silent.on_logits = nullptr;
  silent.on_pass = nullptr;
  silent.on_node = nullptr;
  std::vector<std::thread> threads;
  for (const auto& session : others_) {
    threads.emplace_back([&, other = session.get()] {
      guarded([&] {
        execute::use_threads(threads_);
        const auto messenger = mailboxes.messenger(other->options().place->device);
        run_rank(*other, silent, *messenger);
      });
    });
  }
  execute::RankRun done;
  guarded([&] {
    const auto messenger = mailboxes.messenger(0);
    done = run_rank(first, request, *messenger);
  });
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  return done;
}

}  // namespace kvcast::cli
