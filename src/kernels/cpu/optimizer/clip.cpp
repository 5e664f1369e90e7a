// A few numbers: compiled once, for all tables.
#include "src/kernels/rules/clip.h"

#include <cmath>

#include "src/core/exact_sum.h"
#include "src/kernels/cpu/support.h"

namespace espalier::kernels::cpu {

void clip(Stream&, const ClipArgs& args) {
  const Clip found =
      clip_of(std::sqrt(ExactSum::value_of(args.counts.get<uint64_t>())), args.clip, args.scale);
  args.norm.get<float>()[0] = found.norm;
  args.factor.get<float>()[0] = found.factor;
}

}  // namespace espalier::kernels::cpu
