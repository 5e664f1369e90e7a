#pragma once
// Error of each wire format on each layer's gradient: a ChoiceTable made by encoding and decoding a
// real gradient, block by block.
//
//   error[l][c] = sum over layer l of (x - d)², in double, d = decode(encode(x))       (squares)
//   error[l][c] = sum over its runs of 64 values of 64 · min(1, sum (x - d)² / sum x²)  (relative)
//   bytes[l][c] = bytes of a message of the layer alone
//
// Relative errors suit an optimizer that divides each gradient by its own running magnitude
// (AdamW): a layer or row of small gradients counts as much as one of large ones. A run with an
// error above its own norm, or of zeros that decode to other values, counts as lost.
//
// A block is as many whole buckets of the format as fit in `block` values (at least one); if a
// layer is one bucket, the layer. So buckets start where they would in a message of the layer, and
// scratch is bounded: a block of values, its message, and a copy for 16-bit gradients.
// - With `most_blocks` a long layer is sampled: this many blocks, evenly spread, and their error
//   times elements / elements seen.
//
// Cost: one encode, decode and pass over the values seen for each choice; no communication.
#include <cstdint>
#include <vector>

#include "parallel/choice/choice_table.h"
#include "parallel/partition.h"
#include "src/kernels/kernels.h"

namespace espalier::parallel {

enum class ErrorScale : uint8_t { squares, relative };

struct ErrorTableOptions {
  std::vector<Range> layers;                 ///< elements of the flat gradient
  std::vector<kernels::WireFormat> choices;  ///< at most 256
  ErrorScale scale = ErrorScale::squares;
  int64_t block = 65'536;   ///< values encoded at once
  int64_t most_blocks = 0;  ///< sampled blocks of a layer; 0: all
};

/// `gradient`: flat, contiguous, fp32, bf16 or fp16, in memory that `kernels` read. `key`: of
/// stochastic rounding, as in the exchange; 0: round to nearest. On a dry arena: counts scratch,
/// and measures nothing.
ChoiceTable measure_errors(const kernels::Kernels& kernels, Stream& stream,
                           const ErrorTableOptions& options, const Tensor& gradient,
                           uint64_t key = 0);

}  // namespace espalier::parallel
