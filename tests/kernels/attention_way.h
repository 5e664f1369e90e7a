#pragma once
// Selects the implementation of attention on a device
// (src/kernels/cuda/attention/attention_library.h) during its lifetime.
#include <cstdlib>
#include <string>

namespace espalier::testing {

class AttentionWay {
 public:
  explicit AttentionWay(const std::string& way) { setenv(kName, way.c_str(), 1); }
  ~AttentionWay() { unsetenv(kName); }
  AttentionWay(const AttentionWay&) = delete;
  AttentionWay& operator=(const AttentionWay&) = delete;

 private:
  static constexpr const char* kName = "ESPALIER_ATTENTION";
};

}  // namespace espalier::testing
