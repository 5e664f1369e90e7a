#pragma once
// Runs kernels on the host: blocks one after the other, each thread of a block as a fiber. A thread
// runs until it waits for others (barrier, shuffle, vote). The caller chooses the order of threads,
// so that code correct in only one order fails in another.
//
// Reported as a Violation that names the kernel, block and thread:
//   - a thread that exits while others wait at __syncthreads, or before they do;
//   - a shuffle, vote or __syncwarp whose mask names lanes that exited or do not exist, that omits
//     the caller, or that reads from a lane outside the mask; lanes that meet with different masks;
//   - an mma or ldmatrix that not all 32 lanes join, and addresses not aligned to 16 bytes;
//   - a thread that exits before its asynchronous copies have arrived (async_copies.h);
//   - deadlocked threads.
// Dynamic shared memory is filled with NaN bits before every block. AddressSanitizer, or guard
// pages around the operands, find accesses out of bounds.
#include <cstdint>
#include <functional>
#include <string>

#include "src/core/error.h"

namespace espalier::simt {

/// A kernel broke a rule of CUDA.
class Violation : public Bug {
 public:
  using Bug::Bug;
};

/// Order in which waiting threads, and blocks, continue.
enum class Order : uint8_t { ascending, descending };

struct Extent {
  unsigned x = 1, y = 1, z = 1;
  int64_t count() const { return int64_t{x} * y * z; }
};

struct Grid {
  const char* name = "";
  Extent blocks, threads;
  size_t shared_bytes = 0;
};

/// Runs `body` once for each thread of the grid. Throws Violation.
void run_grid(const Grid& grid, Order order, const std::function<void()>& body);

/// Collective operations of a warp's lanes.
enum class WarpOp : uint8_t { sync, shuffle, up, down, exchange, ballot, match, together };

/// An operation of all 32 lanes: runs once, on the last lane to arrive, with the arguments of each.
/// Returns the broken rule; empty: none.
using Together = std::string (*)(void* const (&lanes)[32]);

// Called by kernels, on behalf of the running thread.
void barrier();
/// `value` of the lane selected by `op` and `argument`, within groups of `width` lanes; ballot and
/// match return a set of lanes.
uint64_t warp_operation(WarpOp op, unsigned mask, uint64_t value, unsigned argument, int width);
void together(Together work, void* mine);
std::byte* dynamic_shared_memory();
/// cp.async, cp.async.commit_group and cp.async.wait_group.
void copy_async(void* shared, const void* from, int bytes);
void commit_copies();
void wait_copies(int later);

}  // namespace espalier::simt
