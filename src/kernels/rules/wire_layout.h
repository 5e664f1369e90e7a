#pragma once
// Where the parts of a message lie: [what buckets carry][codes]. Of fp32, bf16 and fp16 nothing is
// carried; of topk all is (a short last bucket carries as many values as it has, `kept` at most).
#include "src/kernels/wire_format.h"

namespace espalier::kernels {

struct WireLayout {
  int64_t bucket = 0;   ///< values of a full one; n when a bucket is the whole message
  int64_t buckets = 0;  ///< of a message of no values: none
  int64_t carried = 0;  ///< bytes of each full bucket
  int64_t codes = 0;    ///< where the codes begin
  int64_t bytes = 0;    ///< of the message
};

WireLayout wire_layout(const WireFormat& format, int64_t n);

}  // namespace espalier::kernels
