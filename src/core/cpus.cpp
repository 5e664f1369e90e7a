#include "src/core/cpus.h"

#include <sched.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

namespace espalier {

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  // The system refuses sets that are smaller than its own.
  for (size_t most = 1024; most <= (size_t{1} << 20U); most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
        CPU_ALLOC(most), [](cpu_set_t* allocated) { CPU_FREE(allocated); });
    const size_t bytes = CPU_ALLOC_SIZE(most);
    if (set == nullptr || sched_getaffinity(0, bytes, set.get()) != 0) {
      continue;
    }
    for (size_t cpu = 0; cpu < most; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.get())) {
        cpus.push_back(static_cast<int>(cpu));
      }
    }
    return cpus;
  }
  cpus.resize(std::max(1U, std::thread::hardware_concurrency()));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

int usable_cpu_count() { return static_cast<int>(usable_cpus().size()); }

}  // namespace espalier
