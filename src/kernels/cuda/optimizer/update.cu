// The kernel of the fused optimizers. A warp updates 256 kept elements, the block of one 8-bit
// scale: it reads all their arrays, updates them in registers, and writes them and their dense
// copy.
//
// Every array crosses memory once, with one exception: the values of a bitmap are read again when
// they are written to the copy (cuda/index/positions.h), since groups of a bitmap do not begin
// where blocks do.
#include "src/kernels/cuda/index/positions.h"
#include "src/kernels/cuda/optimizer/state.h"
#include "src/kernels/cuda/simt/math.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/rules/update.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kStateWarps = 8;

/// The arrays of an update.
struct State {
  Elements gradient;
  Master master;
  Moment moment[2];
  Elements dense;       ///< null: no copy
  const int32_t* list;  ///< null: all elements are kept
  int64_t first;        ///< the list's number of element 0
  int64_t n;
  const float* factor;  ///< null: use the rule's own
  bool whole;           ///< all quads are aligned
  bool joined;          ///< `dense` receives both halves of the master copy, joined
  RandomRounding rounding;
};

template <bool kWhole>
__device__ __forceinline__ void store_dense(const State& state, int64_t i, int64_t count,
                                            const Quad& value) {
  if (state.dense.data == nullptr) {
    return;
  }
  if (state.list == nullptr) {
    store_quad<kWhole>(state.dense, i, count, value);
    return;
  }
  const Places places = load_places<kWhole>(state.list, i, count);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (kWhole || k < count) {
      store(state.dense, places.at[k] - state.first, value.x[k]);
    }
  }
}

/// Updates the lane's two quads, at `first` and at first + 128; `left` elements are left from
/// `first`.
template <bool kWhole, bool kAtRandom, class Rule>
__device__ __forceinline__ void update_quads(const Rule& rule, const State& state,
                                             const CodeTables& tables, int64_t first,
                                             int64_t left) {
  RawQuad raw_gradient[2];
  RawMaster raw_w[2];
  RawQuad raw_m[2];
  RawQuad raw_v[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t i = first + 128 * j;
    raw_gradient[j] = load_raw<kWhole>(state.gradient, i, left - 128 * j);
    raw_w[j] = load_raw<kWhole>(state.master, i, left - 128 * j);
    raw_m[j] = load_raw<kWhole>(state.moment[0], i, left - 128 * j);
    raw_v[j] = load_raw<kWhole>(state.moment[1], i, left - 128 * j);
  }
  Quad w[2];
  Quad m[2];
  Quad v[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const Quad gradient = quad_of(state.gradient.type, raw_gradient[j]);
    w[j] = quad_of(state.master, raw_w[j]);
    m[j] = quad_of(state.moment[0], raw_m[j], tables.first);
    v[j] = quad_of(state.moment[1], raw_v[j], tables.second);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      w[j].x[k] = rule.template next<Math>(w[j].x[k], gradient.x[k], &m[j].x[k], &v[j].x[k]);
      if (!kWhole && 128 * j + k >= left) {  // stays zero, whatever the rule returns for padding
        m[j].x[k] = 0;
        v[j].x[k] = 0;
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t i = first + 128 * j;
    const int64_t count = left - 128 * j;
    if constexpr (kAtRandom) {
      w[j] = store_at_random<kWhole>(state.master.value, i, count, w[j], state.rounding);
    } else {
      w[j] = store_master<kWhole>(state.master, i, count, w[j], state.joined);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    store_dense<kWhole>(state, first + 128 * j, left - 128 * j, w[j]);
  }
  store_moment<kWhole>(state.moment[0], first, left, m, tables.first);
  store_moment<kWhole>(state.moment[1], first, left, v, tables.second);
}

/// Blocks that a warp updates in sequence if moments are codes: they share the cost of the tables.
constexpr int kBlocksOfCodes = 4;

__device__ __host__ __forceinline__ int blocks_each(const State& state) {
  return state.moment[0].codes != nullptr || state.moment[1].codes != nullptr ? kBlocksOfCodes : 1;
}

/// The part of thread block `number` in one step of `rule` (rules/update.h).
template <bool kAtRandom, class Rule>
__device__ __forceinline__ void update_part(Rule rule, const State& state, unsigned number) {
  __shared__ CodeTables tables;
  if (state.factor != nullptr) {
    rule.scale = *state.factor;
    if (!(fabsf(rule.scale) <= FLT_MAX)) {
      return;
    }
  }
  const int each = blocks_each(state);
  if (each == kBlocksOfCodes) {
    tables.first.fill();
    tables.second.fill();
    __syncthreads();
  }
  const unsigned lane = threadIdx.x % 32;
  int64_t block = int64_t{number} * each * kStateWarps + threadIdx.x / 32;
  for (int i = 0; i < each && block * kQuantizeBlock < state.n; ++i, block += kStateWarps) {
    const int64_t first = block * kQuantizeBlock + 4 * lane;
    if (state.whole && (block + 1) * kQuantizeBlock <= state.n) {
      update_quads<true, kAtRandom>(rule, state, tables, first, kQuantizeBlock);
    } else {
      update_quads<false, kAtRandom>(rule, state, tables, first, state.n - first);
    }
  }
}

/// kAtRandom: values are 16-bit, without low halves.
template <class Rule, bool kAtRandom>
__global__ void __launch_bounds__(32 * kStateWarps) update_state(Rule rule, State state) {
  update_part<kAtRandom>(rule, state, blockIdx.x);
}

/// Several states in one launch, each with its own thread blocks. Most parameters of a model are
/// vectors, whose updates are shorter than a launch. Large states are launched alone: this kernel
/// needs more registers.
template <class Rule>
struct States {
  static constexpr int kMax = 20;  ///< limit: 4 KiB of parameters, which any driver supports
  Rule rule[kMax];
  State state[kMax];
  unsigned end[kMax];  ///< number of the thread block after its last
};
constexpr int64_t kFewElements = 1 << 18;

template <class Rule>
__global__ void __launch_bounds__(32 * kStateWarps) update_states(States<Rule> states) {
  int which = 0;
  unsigned begin = 0;
  while (blockIdx.x >= states.end[which]) {
    begin = states.end[which++];
  }
  update_part<false>(states.rule[which], states.state[which], blockIdx.x - begin);
}

bool copies_by_bitmap(const UpdateArgs& args) {
  return args.dense && args.positions.bitmap != nullptr;
}

/// The arrays of `args`, of any type.
State state_of(const UpdateArgs& args) {
  const Positions& positions = args.positions;
  State state{.gradient = elements(args.gradient),
              .master = {elements(args.value), static_cast<uint16_t*>(args.low.data)},
              .moment = {moment_of(args.moment1, args.scale1),
                         args.moment2 ? moment_of(args.moment2, args.scale2) : Moment{}},
              .dense = copies_by_bitmap(args) ? Elements{} : elements(args.dense),
              .list = positions.list,
              .first = positions.first,
              .n = args.value.count(),
              .factor = static_cast<const float*>(args.factor.data),
              .joined = args.low && args.dense.dtype == DType::fp32 && positions.all(),
              .rounding = args.rounding};
  const bool dense =
      positions.list != nullptr ? has_whole_quads(positions.list) : has_whole_quads(state.dense);
  state.whole = has_whole_quads(state.gradient) && has_whole_quads(state.master) &&
                has_whole_quads(state.moment[0]) && has_whole_quads(state.moment[1]) && dense;
  return state;
}

/// Launches steps of one kind of rule; small states share a launch.
template <class Rule>
class Updates {
 public:
  Updates(const char* name, Stream& stream) : name_(name), stream_(stream) {}

  void add(const Rule& rule, const State& state, bool at_random) {
    const unsigned blocks = blocks_for(state.n, blocks_each(state) * kStateWarps * kQuantizeBlock);
    if (at_random || state.n >= kFewElements) {
      void (*const kernel)(Rule, State) =
          at_random ? update_state<Rule, true> : update_state<Rule, false>;
      launch(kernel, shape(blocks), stream_, rule, state);
      return;
    }
    together_.rule[count_] = rule;
    together_.state[count_] = state;
    together_.end[count_] = blocks_ += blocks;
    if (++count_ == States<Rule>::kMax) {
      finish();
    }
  }
  void finish() {
    launch(update_states<Rule>, shape(blocks_), stream_, together_);
    count_ = 0;
    blocks_ = 0;
  }

 private:
  Launch shape(unsigned blocks) const {
    return {.name = name_, .grid = blocks, .block = 32 * kStateWarps};
  }

  const char* name_;
  Stream& stream_;
  States<Rule> together_;
  int count_ = 0;
  unsigned blocks_ = 0;
};

/// Launches a step for each of `all`.
template <class Rule>
void step_each(const char* name, Stream& stream, const Each<UpdateArgs>& all) {
  Updates<Rule> updates(name, stream);
  for (const UpdateArgs& args : all) {
    require(args.rule == all.front().rule, "updates of one call have one rule");
    const bool at_random = args.value.dtype != DType::fp32 && !args.low;
    updates.add(Rule::of(args), state_of(args), at_random);
  }
  updates.finish();
  for (const UpdateArgs& args : all) {  // after a skipped step the copy stays the same
    if (copies_by_bitmap(args)) {
      write_kept(stream, args.value, args.dense, args.positions);
    }
  }
}

}  // namespace

void update(Stream& stream, const Each<UpdateArgs>& all) {
  if (!all.empty()) {
    rules::with_rule(all.front().rule, [&](auto rule) {
      step_each<decltype(rule)>(decltype(rule)::kName, stream, all);
    });
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
