#include "model/bridge.h"

#include <mutex>
#include <set>
#include <thread>

#include <ATen/Parallel.h>

#include "tests/model/support.h"

namespace axial {
namespace {

// at::parallel_for is a plain loop where its caller is compiled without OpenMP.
TEST(Bridge, TheExecutorRunsOnAsManyThreadsAsItSays) {
#if defined(__clang__)
  GTEST_SKIP() << "clang's own OpenMP would be a second one beside libtorch's";
#endif
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const kernels::cpu::Executor pool = executor();
  EXPECT_EQ(pool.threads, 3);
  struct Seen {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::int64_t items = 0;
  } seen;
  pool.run(
      pool.context, 300,
      [](void* arg, std::int64_t begin, std::int64_t end) {
        auto& s = *static_cast<Seen*>(arg);
        const std::lock_guard<std::mutex> lock(s.mutex);
        s.threads.insert(std::this_thread::get_id());
        s.items += end - begin;
      },
      &seen);
  EXPECT_EQ(seen.threads.size(), 3u);
  EXPECT_EQ(seen.items, 300);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace axial
