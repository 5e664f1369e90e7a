// Element e = index + offset is kept if word e % 4 of philox(key, 0, e / 4), as a number in [0, 1),
// is not below the probability.
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/simd/philox.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kStage = 1024;  ///< words drawn at once

template <class T>
void drop(const DropoutArgs& args, int64_t first, int64_t n) {
  const T* x = elements<T>(args.x);
  T* y = elements<T>(args.y);
  const float scale = 1.0F / (1.0F - args.probability);
  Words<kStage> words;
  for (const int64_t end = first + n; first < end; first += kStage) {
    const int64_t part = least(kStage, end - first);
    const uint32_t* word = words.draw(args.key, first + args.offset, part);
#pragma omp simd
    for (int64_t i = 0; i < part; ++i) {
      const float drawn = static_cast<float>(static_cast<int32_t>(word[i] >> 8)) * 0x1.0p-24F;
      store(y + first + i, load(x + first + i) * (drawn >= args.probability ? scale : 0.0F));
    }
  }
}

}  // namespace

void dropout(Stream& stream, const DropoutArgs& args) {
  with_type(args.x.dtype, [&](auto type) {
    for_ranges(stream.threads(), args.x.count(), kBlock,
               [&](int64_t first, int64_t n) { drop<decltype(type)>(args, first, n); });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
