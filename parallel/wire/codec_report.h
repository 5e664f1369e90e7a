#pragma once
// Measures a codec on values x, which decode to y: bits on the wire, errors, speed.
//
//   bits a value     8 Σ wire_bytes / Σ values, exact
//   relative L2      sqrt(Σ (y - x)² / Σ x²)
//   mean relative    mean of |y - x| / |x| over x ≠ 0
//   largest          max |y - x| / max |x|
//   cosine           Σ x y / sqrt(Σ x² Σ y²)
//   bias             Σ (y - x) / Σ |x|
//
// Sums are in double, over values that are finite before and after. A value that is finite before
// and NaN or infinite after counts as `lost`. Ratios to zero are 0 without errors (all zeros decode
// to zeros), else infinite; ratios over no values are NaN. Each part (for example a parameter) is a
// separate message. Rounding is to nearest.
//
// Cost: one encode, decode and pass over the values, then passes for the given time.
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/partition.h"
#include "src/kernels/kernels.h"

namespace espalier::parallel {

/// Sums over values and their decoded counterparts; sums of parts add up.
struct CodecErrors {
  int64_t values = 0;    ///< all values
  int64_t bytes = 0;     ///< on the wire
  int64_t finite = 0;    ///< before
  int64_t lost = 0;      ///< finite before, not after
  int64_t nonzero = 0;   ///< of the compared values: finite before and after
  double error_sum = 0;  ///< Σ (y - x)
  double error_squares = 0;
  double relative_sum = 0;   ///< Σ |y - x| / |x| over x ≠ 0
  double magnitude_sum = 0;  ///< Σ |x|
  double squares = 0;        ///< Σ x²
  double back_squares = 0;   ///< Σ y²
  double products = 0;       ///< Σ x y
  double largest_error = 0;
  double largest = 0;  ///< max |x|

  int64_t compared() const { return finite - lost; }
  double bits() const;
  double relative_l2() const;
  double mean_relative() const;
  double relative_largest() const;
  double cosine() const;
  double bias() const;
  void add(const CodecErrors& other);
};

/// The caller sets `bytes`. compare(x, x) describes x: largest, squares, nonzero.
CodecErrors compare(std::span<const float> x, std::span<const float> y);

/// Bytes of fp32 a second, by the fastest of many passes over all parts, on the threads of the
/// stream. Each part is decoded right after its encoding, always to the same memory.
struct CodecSpeed {
  double encode = 0;
  double decode = 0;
};

struct CodecReport {
  std::vector<CodecErrors> parts;
  CodecErrors all;
  CodecSpeed speed;
};

class CodecMeter {
 public:
  /// `values`: fp32 [n], contiguous; `parts` lie within them. Kernels, stream and values must
  /// outlive it. Scratch: the largest part, and its message.
  CodecMeter(const kernels::Kernels& kernels, Stream& stream, const Tensor& values,
             std::vector<Range> parts);

  /// `seconds`: how long passes are repeated for the speed (at least one pass).
  CodecReport measure(const kernels::WireFormat& format, double seconds);
  /// Bytes a second of memcpy, part by part, measured in the same way.
  double copy_speed(double seconds);

 private:
  const kernels::Kernels& kernels_;
  Stream& stream_;
  Tensor values_;
  std::vector<Range> parts_;
  int64_t count_ = 0;  ///< values of all parts
  Buffer decoded_;
};

}  // namespace espalier::parallel
