// The fused optimizers. A block of kept elements is updated in one vector loop and, while its new
// values are in L1, rounded and written to the dense copy: every array crosses the memory bus once.
#include "src/kernels/cpu/positions.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// One AdamW step with its constants folded; see kernels.h for the formula.
struct AdamW {
  float *master, *moment1, *moment2;
  const float* gradient;
  float scale, beta1, beta2, epsilon;
  float keep;  ///< 1 - lr weight_decay
  float step;  ///< lr / bias1
  float root;  ///< 1 / sqrt(bias2)

  /// Updates element k and returns its new value.
  [[gnu::always_inline]] float update(int64_t k) const {
    const float g = gradient[k] * scale;
    const float m = beta1 * moment1[k] + (1.0F - beta1) * g;
    const float v = beta2 * moment2[k] + (1.0F - beta2) * (g * g);
    const float value = master[k] * keep - step * m / (__builtin_sqrtf(v) * root + epsilon);
    moment1[k] = m;
    moment2[k] = v;
    master[k] = value;
    return value;
  }
};

struct Sgd {
  float *master, *moment1;
  const float* gradient;
  float scale, lr, momentum, decay;

  [[gnu::always_inline]] float update(int64_t k) const {
    const float m = momentum * moment1[k] + gradient[k] * scale + decay * master[k];
    const float value = master[k] - lr * m;
    moment1[k] = m;
    master[k] = value;
    return value;
  }
};

template <class Step>
void update_only(const Step& rule, const KeptBlock& block) {
  const Step step = rule;  // a local copy: its pointers cannot change under the loop
#pragma omp simd
  for (int64_t k = block.first; k < block.first + block.count; ++k) {
    step.update(k);
  }
}

template <class Step, class T>
void update_and_write(const Step& rule, const KeptBlock& block, T* dense) {
  if (block.words != nullptr) {
    update_only(rule, block);
    scatter_words(block.run(), rule.master + block.first, dense + block.dense_first, false);
    return;
  }
  if (block.list != nullptr) {
    update_only(rule, block);
    const float* values = rule.master + block.first;
    for (int64_t k = 0; k < block.count; ++k) {
      store(dense + block.list[k], values[k]);
    }
    return;
  }
  const Step step = rule;
#pragma omp simd
  for (int64_t k = block.first; k < block.first + block.count; ++k) {
    store(dense + k, step.update(k));
  }
}

template <class Step>
void run(int threads, const Step& step, const Tensor& dense, const Positions& positions) {
  if (dense.data == nullptr || dense.data == step.master) {
    const int64_t kept = positions.count;
    for_kept_blocks(threads, Positions{.size = kept, .count = kept},
                    [&](const KeptBlock& block) { update_only(step, block); });
    return;
  }
  with_type(dense.dtype, [&](auto type) {
    auto* out = elements<decltype(type)>(dense);
    for_kept_blocks(threads, positions,
                    [&](const KeptBlock& block) { update_and_write(step, block, out); });
  });
}

}  // namespace

void adamw(Stream& stream, const AdamWArgs& args) {
  verify(args);
  const AdamW step{.master = elements<float>(args.value),
                   .moment1 = elements<float>(args.moment1),
                   .moment2 = elements<float>(args.moment2),
                   .gradient = elements<float>(args.gradient),
                   .scale = args.scale,
                   .beta1 = args.beta1,
                   .beta2 = args.beta2,
                   .epsilon = args.epsilon,
                   .keep = 1.0F - args.lr * args.weight_decay,
                   .step = args.lr / args.bias1,
                   .root = 1.0F / __builtin_sqrtf(args.bias2)};
  run(stream.threads(), step, args.dense, args.positions);
}

void sgd(Stream& stream, const SgdArgs& args) {
  verify(args);
  const Sgd step{.master = elements<float>(args.value),
                 .moment1 = elements<float>(args.moment1),
                 .gradient = elements<float>(args.gradient),
                 .scale = args.scale,
                 .lr = args.lr,
                 .momentum = args.momentum,
                 .decay = args.weight_decay};
  run(stream.threads(), step, args.dense, args.positions);
}

}  // namespace espalier::kernels::ESPALIER_ISA
