#pragma once
// Dettmers' predictive model of communication, from times measured elsewhere. It predicts the
// speedup of K GPUs that pass K batches through a network, over one GPU that passes them in
// sequence. Convolutions are data parallel (gradients are summed); fully connected layers are model
// parallel (activations are sent, one sub-batch after the other). All times in ms; pure arithmetic.
// Failure for invalid times (negative, NaN, a part longer than the whole).
//
//   one node    speedup = K T / ((T - T_fc) + n T_par + exposed),  exposed = sum of c max(0, s - h)
//   many nodes  speedup = K T / ((T - T_fc) + passes T_pass + exposed),
//               exposed = max(s, (nodes - 1)(s - h)), 0 on one node;  passes = batch / sub-batch
//
// s: a transfer to all others; h: the product that overlaps with it; c: number of transfers. The
// first transfer of a step overlaps with nothing, so many nodes pay at least s. Source: Dettmers,
// "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016, appendix 5; its numbers:
// alexnet.h.
#include <cstdint>
#include <span>
#include <vector>

namespace espalier::cost {

/// A transfer and the work that may overlap with it.
struct Transfer {
  double sync_ms = 0;
  double under_ms = 0;  ///< 0: overlaps with nothing
  int count = 1;
};

/// Time of the transfers that no work overlaps with, ms.
double exposed_ms(std::span<const Transfer> transfers);

/// GPUs of one machine.
struct NodeTimes {
  int gpus = 4;
  double total_ms = 0;         ///< T: forward, backward and update of a batch on one GPU
  double fc_ms = 0;            ///< T_fc: part of T in fully connected layers
  double parallel_fc_ms = 0;   ///< T_par: these layers, split over the GPUs, for one sub-batch
  int sub_batches = 4;         ///< n: sub-batches of a step; each is the batch of one GPU
  std::vector<Transfer> conv;  ///< gradients of convolutions
  std::vector<Transfer> fc;    ///< activations and their gradients, of all sub-batches
};

/// GPUs of several machines. Each GPU holds whole fully connected layers and computes them for
/// every sub-batch of the whole batch.
struct ClusterTimes {
  int nodes = 32;
  int gpus_per_node = 3;
  double total_ms = 0;      ///< T: forward, backward and update of a batch on one GPU
  double fc_ms = 0;         ///< T_fc: part of T in fully connected layers
  double pass_ms = 0;       ///< T_pass: these layers for one sub-batch
  int64_t batch = 12288;    ///< of all GPUs together
  int64_t sub_batch = 128;  ///< the number of passes is rounded up
  double sync_ms = 0;       ///< s: activations of a sub-batch to all nodes
  double under_ms = 0;      ///< h: work that overlaps with it
};

struct Prediction {
  double step_ms = 0;     ///< one batch per GPU
  double exposed_ms = 0;  ///< part of it that is communication without overlap
  double speedup = 0;     ///< over one GPU
};

Prediction predict(const NodeTimes& times);
Prediction predict(const ClusterTimes& times);

}  // namespace espalier::cost
