#include "src/kernels/cpu/index/words.h"

#include <cstring>

#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Calls body(dense position, packed position) for every kept element, ascending.
template <class Body>
[[gnu::always_inline]] inline void for_kept(const WordRun& run, const Body& body) {
  int64_t k = 0;
  for (int64_t first = 0; first < run.size; first += 64) {
    for (uint64_t word = run.words[first / 64]; word != 0; word &= word - 1) {
      body(first + __builtin_ctzll(word), k++);
    }
  }
}

}  // namespace

template <class T, class P>
void gather_words(const WordRun& run, const T* dense, P* packed, bool accumulate) {
  if (accumulate) {
    for_kept(run,
             [&](int64_t i, int64_t k) { store(packed + k, load(packed + k) + load(dense + i)); });
  } else {
    for_kept(run, [&](int64_t i, int64_t k) { store(packed + k, load(dense + i)); });
  }
}

template <class P, class T>
void scatter_words(const WordRun& run, const P* packed, T* dense, bool clear) {
  if (clear) {
    std::memset(static_cast<void*>(dense), 0, static_cast<size_t>(run.size) * sizeof(T));
  }
  for_kept(run, [&](int64_t i, int64_t k) { store(dense + i, load(packed + k)); });
}

template void gather_words(const WordRun&, const float*, float*, bool);
template void gather_words(const WordRun&, const float*, bf16*, bool);
template void gather_words(const WordRun&, const bf16*, float*, bool);
template void gather_words(const WordRun&, const bf16*, bf16*, bool);
template void gather_words(const WordRun&, const float*, fp16*, bool);
template void gather_words(const WordRun&, const fp16*, float*, bool);
template void gather_words(const WordRun&, const fp16*, fp16*, bool);
template void scatter_words(const WordRun&, const float*, float*, bool);
template void scatter_words(const WordRun&, const float*, bf16*, bool);
template void scatter_words(const WordRun&, const bf16*, float*, bool);
template void scatter_words(const WordRun&, const bf16*, bf16*, bool);
template void scatter_words(const WordRun&, const float*, fp16*, bool);
template void scatter_words(const WordRun&, const fp16*, float*, bool);
template void scatter_words(const WordRun&, const fp16*, fp16*, bool);

}  // namespace espalier::kernels::ESPALIER_ISA
