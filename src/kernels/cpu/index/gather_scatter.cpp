#include <cstring>

#include "src/kernels/cpu/index/positions.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// packed (+)= dense[list]; without a list, packed (+)= dense.
template <class T, class P>
void gather_block(const KeptBlock& block, const T* dense, P* packed, bool accumulate) {
  const int32_t* list = block.list;
  if (list == nullptr) {
#pragma omp simd
    for (int64_t k = 0; k < block.count; ++k) {
      const float before = accumulate ? load(packed + k) : 0.0F;
      store(packed + k, before + load(dense + block.dense_first + k));
    }
  } else if (accumulate) {
    for (int64_t k = 0; k < block.count; ++k) {
      store(packed + k, load(packed + k) + load(dense + (list[k] - block.base)));
    }
  } else {
    for (int64_t k = 0; k < block.count; ++k) {
      store(packed + k, load(dense + (list[k] - block.base)));
    }
  }
}

template <class T, class P>
void scatter_block(const KeptBlock& block, const P* packed, T* dense) {
  if (block.count == block.dense_count) {  // nothing is pruned here
#pragma omp simd
    for (int64_t k = 0; k < block.count; ++k) {
      store(dense + block.dense_first + k, load(packed + k));
    }
    return;
  }
  std::memset(static_cast<void*>(dense + block.dense_first), 0,
              static_cast<size_t>(block.dense_count) * sizeof(T));
  for (int64_t k = 0; k < block.count; ++k) {
    store(dense + (block.list[k] - block.base), load(packed + k));
  }
}

/// Calls body with a value of dense's element type and one of packed's.
template <class Body>
void with_types(const Tensor& dense, const Tensor& packed, const Body& body) {
  with_type(dense.dtype, [&](auto wide) {
    with_type_beside<decltype(wide)>(packed.dtype, [&](auto narrow) { body(wide, narrow); });
  });
}

}  // namespace

void gather(Stream& stream, const GatherArgs& args) {
  with_types(args.dense, args.packed, [&](auto wide, auto narrow) {
    const auto* dense = elements<decltype(wide)>(args.dense);
    for_kept_blocks(stream.threads(), args.positions, [&](const KeptBlock& block) {
      auto* packed = elements<decltype(narrow)>(args.packed) + block.first;
      if (block.words != nullptr) {
        gather_words(block.run(), dense + block.dense_first, packed, args.accumulate);
      } else {
        gather_block(block, dense, packed, args.accumulate);
      }
    });
  });
}

void scatter(Stream& stream, const ScatterArgs& args) {
  with_types(args.dense, args.packed, [&](auto wide, auto narrow) {
    auto* dense = elements<decltype(wide)>(args.dense);
    for_kept_blocks(stream.threads(), args.positions, [&](const KeptBlock& block) {
      const auto* packed = elements<decltype(narrow)>(args.packed) + block.first;
      if (block.words != nullptr) {
        scatter_words(block.run(), packed, dense + block.dense_first, true);
      } else {
        scatter_block(block, packed, dense);
      }
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
