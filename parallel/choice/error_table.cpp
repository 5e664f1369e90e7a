#include "parallel/choice/error_table.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "parallel/flat.h"
#include "src/core/error.h"
#include "src/kernels/wire_codec.h"

namespace espalier::parallel {

namespace {

using kernels::WireFormat;

/// Values encoded at once, for a layer of `count` values.
int64_t block_of(const WireFormat& format, int64_t count, int64_t wanted) {
  const bool plain = kernels::codec_of(format.code).form == kernels::WireForm::plain;
  const int64_t bucket = plain ? 1 : format.bucket;
  if (bucket == 0 || bucket >= count) {
    return count;
  }
  return std::min(count, std::max(bucket, wanted / bucket * bucket));
}

/// Upper bound of the relative error of a run (lost / all), as counted.
constexpr double kMaxLost = 1;
constexpr int64_t kRun = 64;

/// x and y of one block.
struct Values {
  const float* wanted;
  const float* got;
  int64_t count;
};

struct Sums {
  double lost = 0;  ///< of (wanted - got)²
  double all = 0;   ///< of wanted²
};

Sums sums_of(const Values& values) {
  // Eight independent sums of each: additions do not depend on each other.
  constexpr int64_t kLanes = 8;
  std::array<Sums, kLanes> lanes{};
  const auto add = [&values](Sums& lane, int64_t i) {
    const double x = values.wanted[i];
    const double lost = x - static_cast<double>(values.got[i]);
    lane.lost += lost * lost;
    lane.all += x * x;
  };
  int64_t i = 0;
  for (; i + kLanes <= values.count; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      add(lanes[static_cast<size_t>(k)], i + k);
    }
  }
  for (; i < values.count; ++i) {
    add(lanes[0], i);
  }
  Sums sum;
  for (const Sums& lane : lanes) {
    sum.lost += lane.lost;
    sum.all += lane.all;
  }
  return sum;
}

double relative_error(const Values& values) {
  double error = 0;
  for (int64_t first = 0; first < values.count; first += kRun) {
    const int64_t n = std::min(kRun, values.count - first);
    const Sums sums = sums_of({values.wanted + first, values.got + first, n});
    if (!std::isfinite(sums.lost)) {
      return sums.lost;
    }
    if (sums.lost > 0) {
      error += static_cast<double>(n) * std::min(kMaxLost, sums.lost / sums.all);
    }
  }
  return error;
}

/// Measures one gradient. Scratch: a block of values, its message, and a copy for 16 bits.
class Meter {
 public:
  Meter(const kernels::Kernels& kernels, Stream& stream, const ErrorTableOptions& options,
        const Tensor& gradient)
      : kernels_(kernels), stream_(stream), options_(options), gradient_(gradient) {
    int64_t values = 1;
    size_t wire = 1;
    for (const Range& layer : options.layers) {
      for (const WireFormat& format : options.choices) {
        const int64_t block = block_of(format, layer.count, options.block);
        values = std::max(values, block);
        wire = std::max(wire, kernels::wire_bytes(format, block));
      }
    }
    const auto scratch = [&](std::string_view name, DType type, int64_t count) {
      return stream.arena().allocate(Memory::scratch, name, type, Shape{count});
    };
    decoded_ = scratch("decoded gradient", DType::fp32, values);
    wire_ = scratch("encoded gradient", DType::uint8, static_cast<int64_t>(wire));
    if (gradient.dtype != DType::fp32) {
      values_ = scratch("gradient as fp32", DType::fp32, values);
    }
  }

  double error_of(const Range& layer, const kernels::EncodeArgs& how) {
    const int64_t block = block_of(how.format, layer.count, options_.block);
    const int64_t blocks = (layer.count + block - 1) / block;
    const int64_t seen = options_.most_blocks > 0 ? std::min(blocks, options_.most_blocks) : blocks;
    double error = 0;
    int64_t values = 0;
    for (int64_t b = 0; b < seen; ++b) {
      kernels::EncodeArgs encode = how;
      encode.first = layer.first + b * blocks / seen * block;
      const int64_t n = std::min(block, layer.end() - encode.first);
      error += error_of_block(flat_part(gradient_, encode.first, n), encode);
      values += n;
    }
    return seen == blocks ? error
                          : error * static_cast<double>(layer.count) / static_cast<double>(values);
  }

 private:
  double error_of_block(const Tensor& part, kernels::EncodeArgs encode) {
    const int64_t n = part.count();
    encode.x = part;
    if (part.dtype != DType::fp32) {
      encode.x = flat_part(values_.tensor(), 0, n);
      kernels_.cast(stream_, {.x = part, .y = encode.x});
    }
    encode.wire = flat_bytes(wire_.tensor()).first(kernels::wire_bytes(encode.format, n));
    kernels_.encode(stream_, encode);
    const Tensor y = flat_part(decoded_.tensor(), 0, n);
    kernels_.decode(stream_, {.wire = encode.wire, .y = y, .format = encode.format});
    const Values values{encode.x.get<float>(), y.get<float>(), n};
    return options_.scale == ErrorScale::squares ? sums_of(values).lost : relative_error(values);
  }

  const kernels::Kernels& kernels_;
  Stream& stream_;
  const ErrorTableOptions& options_;
  Tensor gradient_;
  Buffer values_, decoded_, wire_;
};

}  // namespace

ChoiceTable measure_errors(const kernels::Kernels& kernels, Stream& stream,
                           const ErrorTableOptions& options, const Tensor& gradient, uint64_t key) {
  require(is_number(gradient.dtype) && gradient.contiguous(), "a flat gradient of numbers",
          name_of(gradient.dtype));
  ChoiceTable table{.layers = std::ssize(options.layers),
                    .choices = static_cast<int>(options.choices.size())};
  Meter meter(kernels, stream, options, gradient);
  if (stream.arena().dry()) {
    return table;
  }
  for (const Range& layer : options.layers) {
    require(layer.first >= 0 && layer.count >= 0 && layer.end() <= flat_count(gradient),
            "layers within the gradient", layer.first, layer.end(), flat_count(gradient));
    for (const WireFormat& format : options.choices) {
      table.error.push_back(
          layer.count == 0 ? 0 : meter.error_of(layer, {.format = format, .key = key}));
      table.bytes.push_back(static_cast<int64_t>(kernels::wire_bytes(format, layer.count)));
    }
  }
  table.check();
  return table;
}

}  // namespace espalier::parallel
