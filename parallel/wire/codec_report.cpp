#include "parallel/wire/codec_report.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "parallel/flat.h"
#include "src/core/error.h"
#include "src/core/trace.h"

namespace espalier::parallel {

namespace {

/// Blocks of this many values are summed before they are added to the total: less rounding.
constexpr size_t kBlock = 4096;

CodecErrors compare_block(const float* x, const float* y, size_t n) {
  CodecErrors sums{.values = static_cast<int64_t>(n)};
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) {
      continue;
    }
    ++sums.finite;
    if (!std::isfinite(y[i])) {
      ++sums.lost;
      continue;
    }
    const double from = x[i];
    const double to = y[i];
    const double error = to - from;
    const double wrong = std::fabs(error);
    const double magnitude = std::fabs(from);
    sums.error_sum += error;
    sums.error_squares += error * error;
    sums.squares += from * from;
    sums.back_squares += to * to;
    sums.products += from * to;
    sums.magnitude_sum += magnitude;
    sums.largest_error = std::max(sums.largest_error, wrong);
    sums.largest = std::max(sums.largest, magnitude);
    if (magnitude > 0) {
      ++sums.nonzero;
      sums.relative_sum += wrong / magnitude;
    }
  }
  return sums;
}

/// Seconds of one pass.
struct PassTimes {
  double encode = 0;
  double decode = 0;
};

/// The least time of each over passes that are repeated for `seconds`.
template <class Pass>
PassTimes fastest(double seconds, const Pass& pass) {
  PassTimes best{.encode = std::numeric_limits<double>::infinity(),
                 .decode = std::numeric_limits<double>::infinity()};
  const double begin = now_seconds();
  do {
    const PassTimes times = pass();
    best.encode = std::min(best.encode, times.encode);
    best.decode = std::min(best.decode, times.decode);
  } while (now_seconds() - begin < seconds);
  return best;
}

template <class Body>
double seconds_of(const Body& body) {
  const double begin = now_seconds();
  body();
  return now_seconds() - begin;
}

/// NaN if no value was compared; 0 for zero over zero.
double share(const CodecErrors& sums, double part, double whole) {
  if (sums.compared() == 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return part == 0 ? 0 : part / whole;
}

}  // namespace

double CodecErrors::bits() const {
  return 8 * static_cast<double>(bytes) / static_cast<double>(values);
}
double CodecErrors::relative_l2() const { return std::sqrt(share(*this, error_squares, squares)); }
double CodecErrors::mean_relative() const {
  return share(*this, relative_sum, static_cast<double>(nonzero));
}
double CodecErrors::relative_largest() const { return share(*this, largest_error, largest); }
double CodecErrors::cosine() const {
  return share(*this, products, std::sqrt(squares) * std::sqrt(back_squares));
}
double CodecErrors::bias() const { return share(*this, error_sum, magnitude_sum); }

void CodecErrors::add(const CodecErrors& other) {
  values += other.values;
  bytes += other.bytes;
  finite += other.finite;
  lost += other.lost;
  nonzero += other.nonzero;
  error_sum += other.error_sum;
  error_squares += other.error_squares;
  relative_sum += other.relative_sum;
  magnitude_sum += other.magnitude_sum;
  squares += other.squares;
  back_squares += other.back_squares;
  products += other.products;
  largest_error = std::max(largest_error, other.largest_error);
  largest = std::max(largest, other.largest);
}

CodecErrors compare(std::span<const float> x, std::span<const float> y) {
  require(x.size() == y.size(), "as many values after as before", x.size(), y.size());
  CodecErrors sums;
  for (size_t at = 0; at < x.size(); at += kBlock) {
    sums.add(compare_block(x.data() + at, y.data() + at, std::min(kBlock, x.size() - at)));
  }
  return sums;
}

CodecMeter::CodecMeter(const kernels::Kernels& kernels, Stream& stream, const Tensor& values,
                       std::vector<Range> parts)
    : kernels_(kernels), stream_(stream), values_(values), parts_(std::move(parts)) {
  require(kernels.encode != nullptr && kernels.decode != nullptr, "kernels with wire formats",
          kernels.name);
  require(values.dtype == DType::fp32 && values.contiguous(), "values are flat and fp32",
          name_of(values.dtype));
  int64_t largest = 1;
  for (const Range& part : parts_) {
    require(part.first >= 0 && part.count >= 0 && part.end() <= flat_count(values),
            "parts lie within the values", part.first, part.count, flat_count(values));
    largest = std::max(largest, part.count);
    count_ += part.count;
  }
  decoded_ =
      stream.arena().allocate(Memory::scratch, "decoded values", DType::fp32, Shape{largest});
}

CodecReport CodecMeter::measure(const kernels::WireFormat& format, double seconds) {
  size_t most = 1;
  for (const Range& part : parts_) {
    most = std::max(most, kernels::wire_bytes(format, part.count));
  }
  const Buffer wire = stream_.arena().allocate(Memory::scratch, "encoded values", DType::uint8,
                                               Shape{static_cast<int64_t>(most)});
  const auto message = [&](const Range& part) {
    return flat_bytes(wire.tensor()).first(kernels::wire_bytes(format, part.count));
  };
  const auto encode = [&](const Range& part) {
    kernels_.encode(
        stream_,
        {.x = flat_part(values_, part.first, part.count), .wire = message(part), .format = format});
  };
  const auto decode = [&](const Range& part) {
    kernels_.decode(stream_, {.wire = message(part),
                              .y = flat_part(decoded_.tensor(), 0, part.count),
                              .format = format});
  };
  CodecReport report;
  for (const Range& part : parts_) {
    encode(part);
    decode(part);
    CodecErrors errors = compare(flat_part(values_, part.first, part.count).span<float>(),
                                 flat_part(decoded_.tensor(), 0, part.count).span<float>());
    errors.bytes = std::ssize(message(part));
    report.all.add(errors);
    report.parts.push_back(errors);
  }
  const PassTimes best = fastest(seconds, [&] {
    PassTimes pass;
    for (const Range& part : parts_) {
      pass.encode += seconds_of([&] { encode(part); });
      pass.decode += seconds_of([&] { decode(part); });
    }
    return pass;
  });
  const double bytes = static_cast<double>(count_) * sizeof(float);
  report.speed = {.encode = bytes / best.encode, .decode = bytes / best.decode};
  return report;
}

double CodecMeter::copy_speed(double seconds) {
  const PassTimes best = fastest(seconds, [&] {
    PassTimes pass;
    for (const Range& part : parts_) {
      const Tensor from = flat_part(values_, part.first, part.count);
      pass.encode +=
          seconds_of([&] { std::memcpy(decoded_.tensor().data, from.data, from.bytes()); });
    }
    return pass;
  });
  return static_cast<double>(count_) * sizeof(float) / best.encode;
}

}  // namespace espalier::parallel
