#pragma once
// Select the implementation of attention or of convolutions on a device during their lifetime
// (src/kernels/cuda/attention/attention_library.h, src/kernels/cuda/dense/convolution_library.h).
#include <cstdlib>
#include <string>

namespace espalier::testing {

class CudnnWay {
 public:
  CudnnWay(const CudnnWay&) = delete;
  CudnnWay& operator=(const CudnnWay&) = delete;

 protected:
  CudnnWay(const char* variable, const std::string& way) : variable_(variable) {
    setenv(variable, way.c_str(), 1);
  }
  ~CudnnWay() { unsetenv(variable_); }

 private:
  const char* variable_;
};

struct AttentionWay : CudnnWay {
  explicit AttentionWay(const std::string& way) : CudnnWay("ESPALIER_ATTENTION", way) {}
};
struct ConvolutionWay : CudnnWay {
  explicit ConvolutionWay(const std::string& way) : CudnnWay("ESPALIER_CONVOLUTION", way) {}
};

}  // namespace espalier::testing
