// Element e = index + offset is kept if its Philox word, as a number in [0, 1), is at least the
// probability. The CPU keeps the same elements.
#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/simt/philox.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Drop : OneToOne {
  uint64_t key;
  int64_t offset;
  float probability, scale;

  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const RawQuad& raw) const {
    Quad q = quad_of(x.type, raw);
    const Words words = words_of_quad(key, i + offset);
    for (int k = 0; k < 4; ++k) {
      const float drawn = static_cast<float>(static_cast<int32_t>(words.word[k] >> 8)) * 0x1.0p-24F;
      q.x[k] *= drawn >= probability ? scale : 0.0F;
    }
    store_quad<kWhole>(y, i, count, q);
  }
};

}  // namespace

void dropout(Stream& stream, const DropoutArgs& args) {
  const Drop drop{{elements(args.x), elements(args.y)},
                  args.key,
                  args.offset,
                  args.probability,
                  1.0F / (1.0F - args.probability)};
  for_each_quad("dropout", stream, drop, args.x.count());
}

}  // namespace espalier::kernels::ESPALIER_GPU
