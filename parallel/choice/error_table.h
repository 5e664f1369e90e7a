#pragma once
// What each wire format would lose of each layer's gradient: fills a ChoiceTable by encoding and
// decoding a real gradient, block by block.
//
//   error[l][c] += sum over layer l of (x - d)², in double, d = decode(encode(x))       (squares)
//   error[l][c] += sum over its runs of 64 values of 64 · min(1, sum (x - d)² / sum x²)  (relative)
//   bytes[l][c] = those of a message of the layer alone
//
// Relative errors are what an optimizer feels that divides each gradient by its own running
// magnitude (AdamW): a layer or a row of small gradients counts as much as one of large ones. A run
// of which more is lost than there is, or of zeros that come back as something else, counts as
// lost.
//
// A block is whole buckets of the format, as many as there are in `block` values (at least
// one); where a layer is one bucket, the layer. So a layer's buckets begin where they would in a
// message of the layer, and scratch is bounded: a block of values, its message, and a copy when
// gradients have 16 bits. With `most_blocks` a long layer is judged by so many blocks, evenly spread
// over it, and what they lose times elements / elements seen. `add` allocates nothing (encoders of
// WireCode::table do). Errors of several gradients add up: less noise, and a budget in proportion
// does not care. NaN and Inf stay in the sums until `clear`.
//
// Cost: one encode, decode and pass over the values seen for each choice; no communication.
#include <cstdint>
#include <vector>

#include "parallel/choice/choice_table.h"
#include "parallel/reduction/partition.h"
#include "src/kernels/kernels.h"

namespace espalier::parallel {

enum class ErrorScale : uint8_t { squares, relative };

struct ErrorTableOptions {
  std::vector<Range> layers;                 ///< elements of the flat gradient
  std::vector<kernels::WireFormat> choices;  ///< at most 256
  std::vector<int> fixed;                    ///< as in ChoiceTable; their other choices stay 0
  DType gradient = DType::fp32;              ///< or bf16, fp16
  ErrorScale scale = ErrorScale::squares;
  int64_t block = 65'536;   ///< values that are encoded at once
  int64_t most_blocks = 0;  ///< of a layer, that are looked at; 0: all
};

class ErrorTable {
 public:
  /// Kernels and stream must outlive it.
  ErrorTable(const kernels::Kernels& kernels, Stream& stream, ErrorTableOptions options);

  /// `gradient`: the flat gradient, contiguous, of the type given before. `key`: of random
  /// rounding, as the exchange will use it; 0: to nearest.
  void add(const Tensor& gradient, uint64_t key = 0);
  void clear();
  /// For bit_choice.h.
  const ChoiceTable& table() const { return table_; }

 private:
  double error_of(const Tensor& gradient, const Range& layer, const kernels::EncodeArgs& how);
  double error_of_block(const Tensor& part, const kernels::EncodeArgs& how);

  const kernels::Kernels& kernels_;
  Stream& stream_;
  ErrorTableOptions options_;
  ChoiceTable table_;
  Buffer values_, decoded_, wire_;
};

}  // namespace espalier::parallel
