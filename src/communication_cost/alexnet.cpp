#include "src/communication_cost/alexnet.h"

#include <algorithm>
#include <array>

#include "src/core/error.h"

namespace espalier::cost {
namespace {

/// Tables 3 and 4: a convolution on one GPU, ms.
struct Convolution {
  double update;  ///< its weight gradient
  double sync;    ///< its gradient to all other GPUs, in 32 bits
};
constexpr std::array<Convolution, 5> kConvolutions{
    {{3.5, 0.05}, {11, 0.45}, {5, 1}, {6.5, 1.3}, {5, 0.9}}};

// Numbers of 32-bit and of 8-bit transfers are pairs [bits == 8].

/// Tables 3 and 4: a fully connected layer, ms.
struct FullyConnected {
  double whole[3];  ///< forward, backward, update on one GPU
  double forward;   ///< split over 4 GPUs, one sub-batch
  double backward;
  double update;
  double sync[2];  ///< its activations to all other GPUs
};
constexpr std::array<FullyConnected, 3> kFullyConnected{
    {{{1.3, 1.3, 1.5}, 0.9, 0.9, 0.43, {1.1, 0.5}},
     {{0.45, 0.45, 0.5}, 0.3, 0.3, 0.13, {1.1, 0.5}},
     {{0.4, 0.4, 0.2}, 0.15, 0.15, 0.08, {0.4, 0.25}}}};

constexpr int kGpus = 4;
constexpr double kActivations[2] = {0.9, 0.4};  ///< of the last convolution, to all other GPUs

/// Table 6, and the printed results of tables 6 and 7.
struct SubBatch {
  int64_t size;
  double sync[2];
  Printed exposed[2];
  Printed speedup[2][2];  ///< [kernels][bits == 8]
};
constexpr std::array<SubBatch, 6> kSubBatches{
    {{128, {2.1, 0.35}, {{24.8, 1}, {0.35, 2}}, {{{13.4, 1}, {13.8, 1}}, {{20.7, 1}, {21.4, 1}}}},
     {256, {4.2, 0.55}, {{89.9, 1}, {0.55, 2}}, {{{20, 0}, {24.4, 1}}, {{29.7, 1}, {35.2, 1}}}},
     {512, {7.15, 1.13}, {{181, 0}, {1.13, 2}}, {{{23, 0}, {39.3, 1}}, {{33.5, 1}, {51.9, 1}}}},
     {1024, {17.4, 2.25}, {{499, 0}, {29.5, 1}}, {{{14.8, 1}, {48.6, 1}}, {{22.7, 1}, {61, 0}}}},
     {2048, {25.5, 3.26}, {{750, 0}, {60.8, 1}}, {{{11.3, 1}, {50.6, 1}}, {{17.7, 1}, {62.8, 1}}}},
     {12288, {250, 31}, {{7750, 0}, {921, 0}}, {{{1.3, 1}, {9.7, 1}}, {{2.15, 2}, {15.5, 1}}}}}};
constexpr std::array<int64_t, 6> kSizes{128, 256, 512, 1024, 2048, 12288};
constexpr double kFirstProduct = 1.3;  ///< ms: forward of the first fully connected layer

size_t index_of(int bits) {
  require(bits == 32 || bits == 8, "32 or 8 bits are sent", bits);
  return bits == 8 ? 1 : 0;
}

const SubBatch& row(int64_t sub_batch) {
  const auto found = std::ranges::find(kSubBatches, sub_batch, &SubBatch::size);
  check(found != kSubBatches.end(),
        "the paper has no sub-batch of {} samples; it has 128, 256, 512, 1024, 2048 and 12288",
        sub_batch);
  return *found;
}

/// ms for forward, backward and update of a batch on one GPU: NervanaGPU (table 4), and
/// Krizhevsky's kernels.
double total(ConvKernels kernels) { return kernels == ConvKernels::nervana ? 104.1 : 177; }

double fully_connected_total() {
  double sum = 0;
  for (const FullyConnected& layer : kFullyConnected) {
    sum += layer.whole[0] + layer.whole[1] + layer.whole[2];
  }
  return sum;
}

}  // namespace

const char* name_of(ConvKernels kernels) {
  return kernels == ConvKernels::nervana ? "NervanaGPU" : "convnet2";
}

NodeTimes alexnet_node(ConvKernels kernels, int bits) {
  const size_t width = index_of(bits);
  NodeTimes times{.gpus = kGpus,
                  .total_ms = total(kernels),
                  .fc_ms = fully_connected_total(),
                  .sub_batches = kGpus};
  // Backward runs from the last convolution to the first. The gradient of a layer is sent while the
  // layer before it computes; that of the first layer overlaps with nothing.
  for (size_t layer = 0; layer < kConvolutions.size(); ++layer) {
    times.conv.push_back({.sync_ms = kConvolutions[layer].sync,
                          .under_ms = layer == 0 ? 0 : kConvolutions[layer - 1].update});
  }
  const auto& [first, second, third] = kFullyConnected;
  const double activations = kActivations[width];
  times.parallel_fc_ms = 0;
  double updates = 0;
  for (const FullyConnected& layer : kFullyConnected) {
    times.parallel_fc_ms += layer.forward + layer.backward + layer.update;
    updates += layer.update;
  }
  times.fc = {{activations, first.forward},
              {first.sync[width], second.forward},
              {second.sync[width], third.forward},
              {third.sync[width], second.backward},
              {second.sync[width], first.backward},
              {first.sync[width], updates},
              // the first activations, and the last errors of each sub-batch
              {activations, 0, 1 + times.sub_batches}};
  return times;
}

ClusterTimes alexnet_cluster(ConvKernels kernels, int bits, int64_t sub_batch) {
  return {.nodes = 32,
          .gpus_per_node = 3,
          .total_ms = total(kernels),
          .fc_ms = fully_connected_total(),
          .pass_ms = fully_connected_total(),
          .batch = 12288,
          .sub_batch = sub_batch,
          .sync_ms = row(sub_batch).sync[index_of(bits)],
          .under_ms = kFirstProduct};
}

std::span<const int64_t> alexnet_sub_batches() { return kSizes; }

Printed printed_speedup(ConvKernels kernels, int bits) {
  constexpr Printed kSpeedups[2][2] = {{{3.53, 2}, {3.67, 2}}, {{3.71, 2}, {3.8, 1}}};
  return kSpeedups[static_cast<size_t>(kernels)][index_of(bits)];
}

Printed printed_speedup(ConvKernels kernels, int bits, int64_t sub_batch) {
  return row(sub_batch).speedup[static_cast<size_t>(kernels)][index_of(bits)];
}

Printed printed_exposed(int bits, int64_t sub_batch) {
  return row(sub_batch).exposed[index_of(bits)];
}

}  // namespace espalier::cost
