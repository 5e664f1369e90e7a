#pragma once
// What each wire format would lose of each layer's gradient: fills a ChoiceTable by encoding and
// decoding a real gradient, block by block.
//
//   error[l][c] += sum over layer l of (x - decode(encode(x)))², in double
//   bytes[l][c] = those of a message of the layer alone
//
// A block is whole buckets of the format, as many as there are in kErrorBlock values (at least
// one); where a layer is one bucket, the layer. So a layer's buckets begin where they would in a
// message of the layer, and scratch is bounded: a block of values, its message, and a copy when
// gradients are bf16. `add` allocates nothing (encoders of WireCode::table do). Errors of several
// gradients add up: less noise, and a budget in proportion does not care. NaN and Inf stay in the
// sums until `clear`.
//
// Cost: one encode, decode and pass over the values for each choice; no communication.
#include <cstdint>
#include <vector>

#include "parallel/choice/choice_table.h"
#include "parallel/partition.h"
#include "src/kernels/kernels.h"

namespace espalier::parallel {

inline constexpr int64_t kErrorBlock = 65'536;

struct ErrorTableOptions {
  std::vector<Range> layers;                 ///< elements of the flat gradient
  std::vector<kernels::WireFormat> choices;  ///< at most 256
  std::vector<int> fixed;                    ///< as in ChoiceTable; their other choices stay 0
  DType gradient = DType::fp32;              ///< or bf16
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
  double squared_error(const Tensor& part, const kernels::EncodeArgs& how);

  const kernels::Kernels& kernels_;
  Stream& stream_;
  ErrorTableOptions options_;
  ChoiceTable table_;
  Buffer values_, decoded_, wire_;
};

}  // namespace espalier::parallel
