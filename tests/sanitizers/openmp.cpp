// ThreadSanitizer and GCC's OpenMP, whose threads meet at futexes that the sanitizer does not see: what stood before
// a parallel region would race with its body, and that with what follows. Here it is told where a region begins and
// ends. In place of a suppression, which would hide the bodies' own races. Linked into what the preset tsan builds.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

namespace {

struct Region {
  void (*body)(void*);
  void* data;
  char begin = 0, end = 0;  // their addresses are what is synchronised on
};

__attribute__((no_sanitize("thread"))) void run(void* argument) {
  auto* region = static_cast<Region*>(argument);
  __tsan_acquire(&region->begin);
  region->body(region->data);
  __tsan_release(&region->end);
}

}  // namespace

extern "C" __attribute__((no_sanitize("thread"))) void GOMP_parallel(void (*body)(void*), void* data,
                                                                     unsigned threads, unsigned flags) {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static const auto parallel = reinterpret_cast<Parallel>(::dlsym(RTLD_NEXT, "GOMP_parallel"));
  Region region{body, data};
  __tsan_release(&region.begin);
  parallel(run, &region, threads, flags);
  __tsan_acquire(&region.end);
}
