#pragma once
// Dettmers' predictive model of communication, from times that were measured elsewhere: how much
// faster K GPUs pass their K batches through a network of convolutions (data parallel: gradients
// are summed) and fully connected layers (model parallel: activations are sent, one sub-batch after
// the other) than one GPU passes them one by one. All times in ms; pure arithmetic; Failure for
// times that no machine has (negative, NaN, a part longer than the whole).
//
//   one node    speedup = K T / ((T - T_fc) + n T_par + exposed),  exposed = sum of c max(0, s - h)
//   many nodes  speedup = K T / ((T - T_fc) + passes T_pass + exposed),
//               exposed = max(s, (nodes - 1)(s - h)), 0 on one node;  passes = batch / sub-batch
//
// s: a transfer to all others; h: the product that goes on meanwhile; c: how often. The first
// transfer of a step hides under nothing, so s is the least that many nodes pay. Source: Dettmers,
// "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016, appendix 5; its numbers:
// alexnet.h.
#include <cstdint>
#include <span>
#include <vector>

namespace espalier::cost {

/// A transfer and the work it may hide under.
struct Transfer {
  double sync_ms = 0;
  double under_ms = 0;  ///< 0: hides under nothing
  int count = 1;
};

/// What of the transfers no work hides, ms.
double exposed_ms(std::span<const Transfer> transfers);

/// GPUs of one machine.
struct NodeTimes {
  int gpus = 4;
  double total_ms = 0;         ///< T: forward, backward and update of a batch on one GPU
  double fc_ms = 0;            ///< T_fc: what of it the fully connected layers take
  double parallel_fc_ms = 0;   ///< T_par: those layers, cut over the GPUs, for one sub-batch
  int sub_batches = 4;         ///< n: a batch of each GPU
  std::vector<Transfer> conv;  ///< gradients of convolutions
  std::vector<Transfer> fc;    ///< activations and their gradients, of all sub-batches
};

/// GPUs of several machines; fully connected layers are whole on each GPU, but take every sub-batch
/// of the whole batch.
struct ClusterTimes {
  int nodes = 32;
  int gpus_per_node = 3;
  double total_ms = 0;      ///< T: forward, backward and update of a batch on one GPU
  double fc_ms = 0;         ///< T_fc: what of it the fully connected layers take
  double pass_ms = 0;       ///< T_pass: those layers for one sub-batch
  int64_t batch = 12288;    ///< of all GPUs together
  int64_t sub_batch = 128;  ///< passes are rounded up
  double sync_ms = 0;       ///< s: activations of a sub-batch to all nodes
  double under_ms = 0;      ///< h
};

struct Prediction {
  double step_ms = 0;     ///< a batch of each GPU
  double exposed_ms = 0;  ///< what of it is communication that no work hides
  double speedup = 0;     ///< over one GPU
};

Prediction predict(const NodeTimes& times);
Prediction predict(const ClusterTimes& times);

}  // namespace espalier::cost
