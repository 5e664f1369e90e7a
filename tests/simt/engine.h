#pragma once
// Runs kernels on the host, one block after the other, each thread of a block as a fiber. Threads
// run until they wait for others (barrier, shuffle, vote); the order in which they take turns is
// chosen, so that what works by luck in one order fails in another.
//
// Reported as a Violation that names the kernel, block and thread:
//   - a thread that leaves while others wait at __syncthreads, or before they do;
//   - a shuffle, vote or __syncwarp whose mask names lanes that left or never were, that leaves out
//     the caller, or that reads from a lane it does not name; lanes that meet with different masks;
//   - a mma or ldmatrix that not all 32 lanes join, and addresses that must be at 16 bytes and are not;
//   - a thread that leaves before its asynchronous copies have arrived (async_copies.h);
//   - threads that wait for ever.
// Dynamic shared memory is filled with NaN bits before every block. Accesses out of bounds are
// found by AddressSanitizer, or by guard pages around the operands.
#include <cstdint>
#include <functional>
#include <string>

#include "src/core/error.h"

namespace espalier::simt {

/// A kernel broke a rule of the device's language.
class Violation : public Bug {
 public:
  using Bug::Bug;
};

/// Which waiting thread, and which block, comes next.
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

/// What lanes of a warp do together.
enum class WarpOp : uint8_t { sync, shuffle, up, down, exchange, ballot, match, together };

/// What the 32 lanes of a warp do as one: run once, by the last to come, on what each has brought.
/// Returns which rule was broken; empty: none.
using Together = std::string (*)(void* const (&lanes)[32]);

// What kernels call; of the thread that runs.
void barrier();
/// `value` of the lane that `op` and `argument` say, among groups of `width` lanes; of ballot and
/// match a set of lanes.
uint64_t warp_operation(WarpOp op, unsigned mask, uint64_t value, unsigned argument, int width);
void together(Together work, void* mine);
std::byte* dynamic_shared_memory();
/// cp.async, cp.async.commit_group and cp.async.wait_group.
void copy_async(void* shared, const void* from, int bytes);
void commit_copies();
void wait_copies(int later);

}  // namespace espalier::simt
