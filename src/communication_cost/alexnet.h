#pragma once
// The numbers of Dettmers' appendix as inputs of communication_model.h: AlexNet on 4 GPUs of one
// machine (tables 3 and 4) and on 96 GPUs of 32 machines (tables 5 and 6), with gradients and
// activations of 32 or 8 bits, for two sets of convolution kernels. The paper's results are
// separate (`printed_…`), for comparison; no prediction reads them.
#include <cstdint>
#include <span>

#include "src/communication_cost/communication_model.h"

namespace espalier::cost {

enum class ConvKernels : uint8_t { nervana, convnet2 };
const char* name_of(ConvKernels kernels);

/// `bits`: of sent gradients and activations, 32 or 8.
NodeTimes alexnet_node(ConvKernels kernels, int bits);
/// `sub_batch`: one of alexnet_sub_batches().
ClusterTimes alexnet_cluster(ConvKernels kernels, int bits, int64_t sub_batch);
std::span<const int64_t> alexnet_sub_batches();

/// A number as printed, with its number of decimals.
struct Printed {
  double value = 0;
  int decimals = 0;
};
/// Speedup on one node (section 5.1.3).
Printed printed_speedup(ConvKernels kernels, int bits);
/// Speedup on 32 nodes (table 7).
Printed printed_speedup(ConvKernels kernels, int bits, int64_t sub_batch);
/// Exposed transfers on 32 nodes, ms (table 6, "full pass with overlap").
Printed printed_exposed(int bits, int64_t sub_batch);

}  // namespace espalier::cost
