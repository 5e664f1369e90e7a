#pragma once
// A machine as the planner sees it, and the time of an operation on it. Machine files are TOML
// (docs/planner.md): examples in machines.
//
//   devices    one per rank: peak rates by type, memory bandwidth, memory, and either measured
//              operations (calibration.h) or shares of the peaks that operations reach
//   levels     links, from the innermost: ranks within one unit, latency, bandwidth of a rank, or
//              of a unit within, if its ranks share it
//   disk       where checkpoints are: bytes/s of all ranks together
//
// The time of an operation follows from the efficiency of the nearest measured ones:
//
//   efficiency = (flops / peak + bytes / bandwidth) / seconds
//
// A local regression fits log efficiency against log extents, flops and bytes. An operation without
// measurements takes
//
//   overhead + max(flops / (peak share), bytes / (bandwidth share))
//
// Attention with score_passes > 0 takes also the time of these reads and writes of its scores: its
// products and its softmax follow one another.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "src/communication_cost/link.h"
#include "src/core/types.h"
#include "src/kernels/operation_times.h"

namespace espalier::planner {

/// A kind of link. `ranks`: within one unit of this level (a node, a cluster); those of the last
/// level bound a run's ranks.
struct Level {
  std::string name;
  int64_t ranks = 1;
  cost::Link link;
  /// The bandwidth is that of a unit of the level within, which its ranks share (links.h). Without
  /// effect on the innermost level.
  bool shared = false;
};

struct Machine {
  std::string name;
  std::string source;                  ///< of the numbers
  std::map<std::string, double> peak;  ///< flops/s of products by type: fp32, bf16, fp16
  double bandwidth = 0;                ///< bytes/s of a device's memory
  double memory = 0;                   ///< bytes of a device
  int64_t threads = 1;                 ///< of a rank
  double product_share = 0.5;          ///< of the peak, that products reach
  double attention_share = 0.25;       ///< likewise attention
  double sparse_share = 0.3;           ///< likewise products of single kept elements
  double memory_share = 0.7;           ///< of the bandwidth, that all unmeasured operations reach
  /// Reads and writes of the scores, heads · tokens² a sequence, by an unmeasured call of attention
  /// whose kernels are not fused; backward 1.5 times as many. 0: fused, scores stay on the chip.
  double score_passes = 0;
  double overhead_s = 0;  ///< of each unmeasured operation
  /// False: reductions begin after backward. Ranks move and sum messages themselves (CPUs), or the
  /// program reduces then.
  bool overlaps = true;
  std::vector<Level> levels;
  double host_memory = 0;  ///< bytes of a rank beside its device's memory; 0: not stated
  /// Bytes/s of one file that all ranks write, or read from the disk; 0: not stated.
  double disk_write = 0, disk_read = 0;
  /// Measured calls, with the seconds of one (`calls` = 1), by type of the run and name:
  /// "bf16 gemm".
  std::map<std::string, std::vector<kernels::OperationRow>> measured;

  double peak_of(DType dtype) const;
  /// Number of the level of the link between ranks `a` and `b`.
  size_t level_between(int64_t a, int64_t b) const;
};

/// The key of `measured` for operations in runs of `dtype`.
std::string measured_key(DType dtype, const std::string& operation);

/// Seconds of one call of `operation` in a run of `dtype`.
double seconds_of(const Machine& machine, const kernels::OperationRow& operation, DType dtype);

/// Throws Failure, which names the key, for a value that is missing, unknown or impossible.
Machine read_machine(const std::filesystem::path& path);
/// The file's text.
std::string text_of(const Machine& machine);

}  // namespace espalier::planner
