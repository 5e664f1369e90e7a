#include <cstring>

#include "src/kernels/cpu/positions.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// packed (+)= dense[list], or dense itself without a list.
template <class T>
void gather_block(const KeptBlock& block, const T* dense, float* packed, bool accumulate) {
  const int32_t* list = block.list;
  if (list == nullptr) {
#pragma omp simd
    for (int64_t k = 0; k < block.count; ++k) {
      packed[k] = (accumulate ? packed[k] : 0.0F) + load(dense + block.dense_first + k);
    }
  } else if (accumulate) {
    for (int64_t k = 0; k < block.count; ++k) {
      packed[k] += load(dense + list[k]);
    }
  } else {
    for (int64_t k = 0; k < block.count; ++k) {
      packed[k] = load(dense + list[k]);
    }
  }
}

template <class T>
void scatter_block(const KeptBlock& block, const float* packed, T* dense) {
  if (block.count == block.dense_count) {  // nothing pruned here
#pragma omp simd
    for (int64_t k = 0; k < block.count; ++k) {
      store(dense + block.dense_first + k, packed[k]);
    }
    return;
  }
  std::memset(static_cast<void*>(dense + block.dense_first), 0,
              static_cast<size_t>(block.dense_count) * sizeof(T));
  for (int64_t k = 0; k < block.count; ++k) {
    store(dense + block.list[k], packed[k]);
  }
}

}  // namespace

void gather(Stream& stream, const GatherArgs& args) {
  verify(args);
  with_type(args.dense.dtype, [&](auto type) {
    const auto* dense = elements<decltype(type)>(args.dense);
    for_kept_blocks(stream.threads(), args.positions, [&](const KeptBlock& block) {
      float* packed = elements<float>(args.packed) + block.first;
      if (block.words != nullptr) {
        gather_words(block.run(), dense + block.dense_first, packed, args.accumulate);
      } else {
        gather_block(block, dense, packed, args.accumulate);
      }
    });
  });
}

void scatter(Stream& stream, const ScatterArgs& args) {
  verify(args);
  with_type(args.dense.dtype, [&](auto type) {
    auto* dense = elements<decltype(type)>(args.dense);
    for_kept_blocks(stream.threads(), args.positions, [&](const KeptBlock& block) {
      const float* packed = elements<float>(args.packed) + block.first;
      if (block.words != nullptr) {
        scatter_words(block.run(), packed, dense + block.dense_first, true);
      } else {
        scatter_block(block, packed, dense);
      }
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
