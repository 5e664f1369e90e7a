// Element e = index + offset is kept when word e % 4 of philox(key, 0, e / 4), as a number in [0, 1), is
// not below the probability (src/core/rng.h; written again here so that 16 counters advance at once).
#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kCounters = 16;
constexpr int64_t kWords = 4 * kCounters;

/// The words of counters [first, first + kCounters).
void draw(uint64_t key, uint64_t first, uint32_t* __restrict words) {
#pragma omp simd
  for (uint64_t lane = 0; lane < kCounters; ++lane) {
    const uint64_t counter = first + lane;
    auto c0 = static_cast<uint32_t>(counter);
    auto c1 = static_cast<uint32_t>(counter >> 32);
    uint32_t c2 = 0;
    uint32_t c3 = 0;
    auto k0 = static_cast<uint32_t>(key);
    auto k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53U} * c0;
      const uint64_t p1 = uint64_t{0xCD9E8D57U} * c2;
      const uint32_t next0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      const uint32_t next2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(p1);
      c3 = static_cast<uint32_t>(p0);
      c0 = next0;
      c2 = next2;
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    words[4 * lane] = c0;
    words[4 * lane + 1] = c1;
    words[4 * lane + 2] = c2;
    words[4 * lane + 3] = c3;
  }
}

template <class T>
void drop(const DropoutArgs& args, int64_t first, int64_t n) {
  const T* x = elements<T>(args.x);
  T* y = elements<T>(args.y);
  const float scale = 1.0F / (1.0F - args.probability);
  alignas(64) uint32_t words[kWords];
  // Groups of kWords random words start at multiples of kWords, the range anywhere.
  int64_t group = (first + args.offset) / kWords * kWords;
  for (; group < first + n + args.offset; group += kWords) {
    draw(args.key, static_cast<uint64_t>(group / 4), words);
    const int64_t begin = most(first, group - args.offset);
    const int64_t end = least(first + n, group - args.offset + kWords);
    const uint32_t* word = words + (begin + args.offset - group);
#pragma omp simd
    for (int64_t i = 0; i < end - begin; ++i) {
      const float drawn = static_cast<float>(static_cast<int32_t>(word[i] >> 8)) * 0x1.0p-24F;
      store(y + begin + i, load(x + begin + i) * (drawn >= args.probability ? scale : 0.0F));
    }
  }
}

}  // namespace

void dropout(Stream& stream, const DropoutArgs& args) {
  verify(args);
  with_type(args.x.dtype, [&](auto type) {
    for_ranges(stream.threads(), args.x.count(), kBlock, [&](int64_t first, int64_t n) {
      drop<decltype(type)>(args, first, n);
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
