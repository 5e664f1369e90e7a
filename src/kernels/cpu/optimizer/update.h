#pragma once
// Shared code of the fused optimizers. One vector loop updates a block of kept elements. 8-bit
// moments are decoded before it and encoded after it, through buffers in L1. New values are written
// to the dense copy while they are in cache. Every array crosses the memory bus once, with one
// exception: a bitmap's blocks do not start at the blocks of scales, so the values are read again
// to write the copy.
#include <type_traits>

#include "src/kernels/cpu/index/positions.h"
#include "src/kernels/cpu/optimizer/dynamic_code.h"
#include "src/kernels/cpu/simd/philox.h"
#include "src/kernels/rules/master.h"

namespace espalier::kernels::ESPALIER_ISA {

/// A moment: fp32 values, or codes with a scale per block.
struct Moment {
  float* values;
  uint8_t* codes;
  float* scales;
};

inline Moment moment_of(const Tensor& moment, const Tensor& scales) {
  const bool coded = moment.dtype == DType::uint8;
  return {coded ? nullptr : elements<float>(moment), coded ? elements<uint8_t>(moment) : nullptr,
          elements<float>(scales)};
}

/// The moment from element `first` on: in place, or decoded into `buffer`.
template <DynamicMap kMap>
inline float* open(const Moment& moment, int64_t first, int64_t n, float* buffer) {
  if (moment.codes == nullptr) {
    return moment.values == nullptr ? nullptr : moment.values + first;
  }
  decode<kMap>(moment.codes + first, moment.scales[first / kQuantizeBlock], n, buffer);
  return buffer;
}

template <DynamicMap kMap>
inline void close(const Moment& moment, int64_t first, int64_t n, const float* buffer) {
  if (moment.codes != nullptr) {
    moment.scales[first / kQuantizeBlock] = encode<kMap>(buffer, n, moment.codes + first);
  }
}

/// The master copy of element k; see UpdateArgs.
[[gnu::always_inline]] inline float master(const float* value, const uint16_t* /*low*/, int64_t k) {
  return value[k];
}
template <class Half>
[[gnu::always_inline]] inline float master(const Half* value, const uint16_t* low, int64_t k) {
  return join(value[k], low[k]);
}
[[gnu::always_inline]] inline void set_master(float* value, uint16_t* /*low*/, int64_t k, float w) {
  value[k] = w;
}
template <class Half>
[[gnu::always_inline]] inline void set_master(Half* value, uint16_t* low, int64_t k, float w) {
  const SplitFloat<Half> halves = split<Half>(w);
  value[k].bits = halves.high.bits;  // GCC vectorizes no loop that copies a struct
  low[k] = halves.low;
}

/// The arrays of an update, with their element types.
template <class G, class V>
struct State {
  const G* gradient;
  V* value;
  uint16_t* low;
  Moment moment1, moment2;
  RandomRounding rounding;
  bool coded() const { return moment1.codes != nullptr || moment2.codes != nullptr; }
};

/// Updates elements [first, first + n) with moments m and v. Not inlined: it has two callers.
template <class Rule, class G, class V>
[[gnu::noinline]] void update(const Rule& rule, const State<G, V>& state, int64_t first, int64_t n,
                              float* const (&moments)[2]) {
  const Rule step = rule;  // local copies: the loop's stores cannot change them
  const G* gradient = state.gradient + first;
  V* value = state.value + first;
  uint16_t* low = state.low == nullptr ? nullptr : state.low + first;
  float* m = moments[0];
  float* v = moments[1];
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    set_master(value, low, k,
               step.template next<Math>(master(value, low, k), load(gradient + k), m + k, v + k));
  }
}

/// Like the loop above, with stochastic rounding of values.
template <class Rule, class G, class V>
[[gnu::noinline]] void update_at_random(const Rule& rule, const State<G, V>& state, int64_t first,
                                        int64_t n, float* const (&moments)[2]) {
  const Rule step = rule;
  Words<kQuantizeBlock> words;
  for (int64_t at = 0; at < n; at += kQuantizeBlock) {
    const int64_t part = least(kQuantizeBlock, n - at);
    const uint32_t* word = words.draw(state.rounding.key, state.rounding.first + first + at, part);
    const G* gradient = state.gradient + first + at;
    V* value = state.value + first + at;
    float* m = moments[0] + at;
    float* v = moments[1] == nullptr ? nullptr : moments[1] + at;
#pragma omp simd
    for (int64_t k = 0; k < part; ++k) {
      const float w = step.template next<Math>(load(value + k), load(gradient + k), m + k, v + k);
      value[k] = round_at_random<V>(w, word[k]);
    }
  }
}

/// Calls one of the two loops.
template <class Rule, class G, class V>
inline void update_part(const Rule& rule, const State<G, V>& state, int64_t first, int64_t n,
                        float* const (&moments)[2]) {
  if constexpr (sizeof(V) == 2) {
    if (state.low == nullptr) {
      return update_at_random(rule, state, first, n, moments);
    }
  }
  update(rule, state, first, n, moments);
}

/// Updates elements [first, first + n); `first` is a multiple of kQuantizeBlock if moments are
/// coded.
template <class Rule, class G, class V>
inline void update_range(const Rule& rule, const State<G, V>& state, int64_t first, int64_t n) {
  if (!state.coded()) {
    update_part(rule, state, first, n,
                {open<DynamicMap::with_sign>(state.moment1, first, n, nullptr),
                 open<DynamicMap::without_sign>(state.moment2, first, n, nullptr)});
    return;
  }
  alignas(64) float buffers[2][kQuantizeBlock];
  for (const int64_t end = first + n; first < end; first += kQuantizeBlock) {
    const int64_t part = least(kQuantizeBlock, end - first);
    float* const moments[2] = {
        open<DynamicMap::with_sign>(state.moment1, first, part, buffers[0]),
        open<DynamicMap::without_sign>(state.moment2, first, part, buffers[1])};
    update_part(rule, state, first, part, moments);
    close<DynamicMap::with_sign>(state.moment1, first, part, moments[0]);
    close<DynamicMap::without_sign>(state.moment2, first, part, moments[1]);
  }
}

/// dense[position k] = value[k] for the elements of a block; the master copy if all are kept, in
/// fp32.
template <class V, class T>
inline void write_dense(const KeptBlock& block, const V* value, const uint16_t* low, T* dense) {
  const V* packed = value + block.first;
  if (block.words != nullptr) {
    scatter_words(block.run(), packed, dense + block.dense_first, false);
  } else if (block.list != nullptr) {
    for (int64_t k = 0; k < block.count; ++k) {
      store(dense + block.list[k], load(packed + k));
    }
  } else if (sizeof(V) == 2 && sizeof(T) == 4 && low != nullptr) {
    T* out = dense + block.dense_first;
    const uint16_t* rest = low + block.first;
#pragma omp simd
    for (int64_t k = 0; k < block.count; ++k) {
      store(out + k, master(packed, rest, k));
    }
  } else {
    T* out = dense + block.dense_first;
#pragma omp simd
    for (int64_t k = 0; k < block.count; ++k) {
      store(out + k, load(packed + k));
    }
  }
}

/// Calls update_range with a rule and a state. It holds a function pointer, so that the loops over
/// blocks below are compiled once, not for each rule and type of gradient.
struct UpdateRange {
  const void* rule;
  const void* state;
  void (*update)(const void* rule, const void* state, int64_t first, int64_t n);

  void operator()(int64_t first, int64_t n) const { update(rule, state, first, n); }
};

template <class Rule, class G, class V>
UpdateRange range_of(const Rule& rule, const State<G, V>& state) {
  const auto update = [](const void* of_rule, const void* of_state, int64_t first, int64_t n) {
    update_range(*static_cast<const Rule*>(of_rule), *static_cast<const State<G, V>*>(of_state),
                 first, n);
  };
  return {.rule = &rule, .state = &state, .update = update};
}

inline void run_observed(int threads, const UpdateRange& update, int64_t count,
                         const UpdateObserver& observer) {
  for_ranges(threads, count, kObservedBlock, [&](int64_t first, int64_t n) {
    observer.before(observer.self, first, n);
    update(first, n);
    observer.after(observer.self, first, n);
  });
}

/// The part of the state that run() reads: the new values, and whether the moments are coded.
template <class V>
struct Updated {
  const V* value;
  const uint16_t* low;
  bool coded;
};

template <class V, class T>
void run(int threads, const UpdateRange& update, const Updated<V>& state,
         const Positions& positions, T* dense) {
  if (dense == nullptr || (positions.bitmap != nullptr && state.coded)) {
    for_ranges(threads, positions.count, kBlock, update);
    if (dense != nullptr) {
      for_kept_blocks(threads, positions, [&](const KeptBlock& block) {
        write_dense(block, state.value, state.low, dense);
      });
    }
    return;
  }
  for_kept_blocks(threads, positions, [&](const KeptBlock& block) {
    update(block.first, block.count);
    write_dense(block, state.value, state.low, dense);
  });
}

/// Applies `rule` to the arrays of `args`, of any types.
template <class Rule>
void step(Stream& stream, Rule rule, const UpdateArgs& args) {
  if (args.factor) {
    rule.scale = *elements<float>(args.factor);
    if (!__builtin_isfinite(rule.scale)) {
      return;
    }
  }
  const int64_t count = args.value.count();
  const Positions positions =
      args.dense ? args.positions : Positions{.size = count, .count = count};
  with_type(args.gradient.dtype, [&](auto gradient) {
    with_type_beside<decltype(gradient)>(args.value.dtype, [&](auto value) {
      const State<decltype(gradient), decltype(value)> state{
          elements<decltype(gradient)>(args.gradient),
          elements<decltype(value)>(args.value),
          elements<uint16_t>(args.low),
          moment_of(args.moment1, args.scale1),
          args.moment2 ? moment_of(args.moment2, args.scale2) : Moment{},
          args.rounding};
      const UpdateRange update = range_of(rule, state);
      if (args.observer != nullptr) {
        return run_observed(stream.threads(), update, count, *args.observer);
      }
      using Narrow = std::conditional_t<sizeof(value) == 2, decltype(value), decltype(gradient)>;
      with_type_beside<Narrow>(args.dense.dtype, [&](auto dense) {
        const Updated<decltype(value)> updated{state.value, state.low, state.coded()};
        run(stream.threads(), update, updated, positions, elements<decltype(dense)>(args.dense));
      });
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
