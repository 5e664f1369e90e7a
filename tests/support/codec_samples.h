#pragma once
// Value codecs for tests of sums and of runs. A new codec needs a row here; tests/parallel/
// reduction_mpi_test.cpp fails without it.
#include <string>
#include <vector>

#include "parallel/wire/codec.h"

namespace espalier::testing {

struct CodecSample {
  std::string text;
  double loss = 0;  ///< largest error of one encoding of values up to 1
};

/// The first sample of each codec is a usual one.
inline const std::vector<CodecSample>& codec_samples() {
  static const std::vector<CodecSample> samples{{"fp32", 0},
                                                {"bf16", 0x1p-9},
                                                {"fp16", 0x1p-12},
                                                {"fp8-e5m2", 0x1p-3},
                                                {"fp8-e4m3", 0x1p-4},
                                                {"dynamic8", 0.01},
                                                {"dynamic8-bnb", 0.01},
                                                {"static8", 0.06},
                                                {"mantissa8", 0.06},
                                                {"linear8", 0.5 / 127},
                                                {"maxmin:4", 1.0 / 15},
                                                {"maxmin:1", 1},
                                                {"maxmin:2", 1.0 / 3},
                                                {"maxmin:3:100", 1.0 / 7},
                                                {"maxmin:8:37", 1.0 / 255},
                                                {"table:4", 1},
                                                {"table:1", 1},
                                                {"sign:64", 1},
                                                {"eden:4:512", 0.5},
                                                {"topk:0.1:256", 1},
                                                {"topk:1:500", 0x1p-9}};
  return samples;
}

/// One sample of each codec that changes values.
inline std::vector<std::string> lossy_codecs() {
  std::vector<std::string> texts;
  std::string last;
  for (const CodecSample& sample : codec_samples()) {
    const std::string name = parallel::parse_codec(sample.text).name;
    if (sample.loss > 0 && name != last) {
      texts.push_back(sample.text);
    }
    last = name;
  }
  return texts;
}

}  // namespace espalier::testing
