#pragma once
// While one lives, the process gets no more than `bytes` of new memory: larger allocations fail
// (std::bad_alloc). Under the address sanitizer it does nothing, because there the address space is
// no measure; libFuzzer has its own limit.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "src/core/error.h"

namespace espalier {

class MemoryLimit {
 public:
#ifndef __SANITIZE_ADDRESS__
  static constexpr bool kWorks = true;
#else
  static constexpr bool kWorks = false;
#endif

  explicit MemoryLimit(size_t bytes) {
    if (!kWorks) {
      return;
    }
    ::malloc_trim(0);  // free memory would come on top of the limit
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const size_t now = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    require(::getrlimit(RLIMIT_AS, &before_) == 0 && now > 0, "the system measures memory");
    rlimit limited = before_;
    limited.rlim_cur = now + bytes;
    require(::setrlimit(RLIMIT_AS, &limited) == 0, "memory can be limited", now, bytes);
  }
  ~MemoryLimit() {
    if (kWorks) {
      ::setrlimit(RLIMIT_AS, &before_);
    }
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace espalier
