#pragma once
// Replaces the installed NCCL by one between threads (fake_nccl.cpp) during its lifetime.
#include <cstdlib>

#include "src/core/shared_library.h"

namespace espalier::testing {

class FakeNccl {
 public:
  explicit FakeNccl(const char* file = ESPALIER_FAKE_NCCL)
      : library_({ESPALIER_FAKE_NCCL}, "the test", "build it") {
    setenv("ESPALIER_NCCL_LIBRARY", file, 1);
    library_.find("fake_nccl_connect", connect);
    library_.find("fake_nccl_hold_joins", hold_joins);
    library_.find("fake_nccl_fail", fail);
    library_.find("fake_nccl_aborts", aborts);
  }
  ~FakeNccl() {
    connect(false);
    hold_joins(false);
    fail(-1, 0);
    setenv("ESPALIER_NCCL_LIBRARY", "none", 1);
  }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  void (*connect)(bool) = nullptr;
  void (*hold_joins)(bool) = nullptr;
  void (*fail)(int rank, int status) = nullptr;
  int (*aborts)() = nullptr;

 private:
  SharedLibrary library_;
};

}  // namespace espalier::testing
