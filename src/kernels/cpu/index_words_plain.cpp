#include <cstring>

#include "src/kernels/cpu/index_words.h"
#include "src/kernels/cpu/loops.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// body(dense position, packed position) for every kept element, ascending.
template <class Body>
[[gnu::always_inline]] inline void for_kept(const WordRun& run, const Body& body) {
  int64_t k = 0;
  for (int64_t first = 0; first < run.size; first += 64) {
    for (uint64_t word = run.words[first / 64]; word != 0; word &= word - 1) {
      body(first + __builtin_ctzll(word), k++);
    }
  }
}

template <class T>
void gather(const WordRun& run, const T* dense, float* packed, bool accumulate) {
  if (accumulate) {
    for_kept(run, [&](int64_t i, int64_t k) { packed[k] += load(dense + i); });
  } else {
    for_kept(run, [&](int64_t i, int64_t k) { packed[k] = load(dense + i); });
  }
}

template <class T>
void scatter(const WordRun& run, const float* packed, T* dense, bool clear) {
  if (clear) {
    std::memset(static_cast<void*>(dense), 0, static_cast<size_t>(run.size) * sizeof(T));
  }
  for_kept(run, [&](int64_t i, int64_t k) { store(dense + i, packed[k]); });
}

}  // namespace

void gather_words(const WordRun& run, const float* dense, float* packed, bool accumulate) {
  gather(run, dense, packed, accumulate);
}
void gather_words(const WordRun& run, const bf16* dense, float* packed, bool accumulate) {
  gather(run, dense, packed, accumulate);
}
void scatter_words(const WordRun& run, const float* packed, float* dense, bool clear) {
  scatter(run, packed, dense, clear);
}
void scatter_words(const WordRun& run, const float* packed, bf16* dense, bool clear) {
  scatter(run, packed, dense, clear);
}

}  // namespace espalier::kernels::ESPALIER_ISA
