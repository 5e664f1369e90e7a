// Defines a network, trains it, prunes it to 90 %, and continues training the kept weights. The
// task: classify points of the plane by the one of two spirals on which they lie.
#include <cmath>
#include <cstdio>
#include <utility>

#include "pruning/pruning.h"
#include "src/core/rng.h"
#include "src/model/network.h"
#include "src/model/networks/registry.h"
#include "src/optim/optimizer.h"

using namespace espalier;

constexpr int64_t kBatch = 256;

/// Two interleaved spirals; point i of step `step` is a pure function of (step, i).
void draw_batch(int64_t step, const Tensor& points, const Tensor& labels) {
  for (int64_t i = 0; i < kBatch; ++i) {
    const Philox bits = philox(7, static_cast<uint64_t>(step), static_cast<uint64_t>(i));
    const int32_t label = static_cast<int32_t>(bits[0] & 1U);
    const float t = 0.5F + 16.0F * uniform(bits[1]);
    const float angle = t + 3.14159265F * static_cast<float>(label);
    points.get<float>()[2 * i] = t * std::cos(angle) / 8;
    points.get<float>()[2 * i + 1] = t * std::sin(angle) / 8;
    labels.get<int32_t>()[i] = label;
  }
}

int main() {
  Arena arena;  // owns and counts every byte
  Stream stream(arena, 1);
  const kernels::Kernels& kernels = kernels::by_name("auto");

  const io::ModelConfig mlp{.kind = "mlp", .hidden = {256, 256}};
  model::Layers layers =
      model::make_layers(mlp, {.classes = 2, .features = 2, .rows = 1, .input_dtype = DType::fp32});
  sparse::Store store(stream, kernels, model::parameters_of(layers), {.encoding = {}});
  model::Network network(std::move(layers));
  network.bind(store, kernels);
  store.initialise(1);
  io::OptimizerConfig settings;
  settings.weight_decay = 0;
  optim::Optimizer optimizer(store, kernels, settings);

  const Buffer points = arena.allocate(Memory::activation, "points", DType::fp32, Shape{kBatch, 2});
  const Buffer labels = arena.allocate(Memory::activation, "labels", DType::int32, Shape{kBatch});
  const Buffer losses = arena.allocate(Memory::activation, "losses", DType::fp32, Shape{kBatch});
  model::Tape tape(arena, size_t{8} << 20U);

  for (int64_t step = 0; step < 3000; ++step) {
    if (step == 1000) {
      sparse::Parameter& weight = store.find("hidden.1.weight");
      const std::vector<float> values = store.values(weight);
      const std::vector<pruning::Candidate> candidates{
          {weight.spec.name, weight.spec.shape, &weight.index, values}};
      auto masks = store.masks();
      masks[2] = pruning::prune(candidates, {.method = "magnitude", .sparsity = 0.9}).masks[0];
      store.set_masks(masks);  // gradient, master and moments shrink to the kept elements
    }
    draw_batch(step, points.tensor(), labels.tensor());
    tape.clear();
    model::Pass pass{.stream = stream, .kernels = kernels, .tape = tape};
    pass.inputs = points.tensor();
    pass.losses = {.targets = labels.tensor(), .values = losses.tensor(), .scale = 1.0F / kBatch};
    pass.training = true;
    network.forward(pass);
    network.backward(pass);
    optimizer.step(stream, step, 3e-3);
    if ((step + 1) % 500 == 0) {
      double loss = 0;
      for (const float one : losses.tensor().span<float>()) {
        loss += one / kBatch;
      }
      std::printf("step %ld  loss %.5f  kept %ld of %ld  model state %zu bytes\n", long(step + 1),
                  loss, long(store.total_kept()), long(store.total_size()),
                  arena.model_state_bytes());
    }
  }
}
