#pragma once
// All arithmetic, as one table of operations per backend. Read this first.
//
// An operation takes (Stream&, const XArgs&): views and scalars, no parameters, masks or ranks. An
// operation on several arrays in one call takes Each<XArgs>. operations.def lists the operations.
// operations/*.h define their arguments and formulas, verify/*.cpp their checks and costs. Some
// rows are null where a table has a device (operations.def); a test lists them. Backends:
//   - "cuda": GPUs; calls are asynchronous, and every pointer is to device or pinned memory
//     (core/device.h)
//   - "cpu-amx", "cpu-avx512bf16", "cpu-avx512", "cpu-avx2", "cpu-portable": the same sources
//     compiled for five instruction sets; dense GEMMs use oneDNN in all
//   - "dry": computes nothing, counts flops and bytes
//
// Letters: R rows (tokens of a micro-batch), C columns (features), B sequences, T context, H heads,
// D = C/H head width, V vocabulary. "any" = fp32, bf16 or fp16; bf16 and fp16 never mix in one
// call. The split of sums over rows depends on the shape alone, so results do not depend on the
// number of threads (GEMMs: oneDNN's own rule).
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/stream.h"
#include "src/core/tensor.h"
#include "src/kernels/operations/attention.h"
#include "src/kernels/operations/batch_norm.h"
#include "src/kernels/operations/convolution.h"
#include "src/kernels/operations/dense.h"
#include "src/kernels/operations/elementwise.h"
#include "src/kernels/operations/generation.h"
#include "src/kernels/operations/index.h"
#include "src/kernels/operations/local_norm.h"
#include "src/kernels/operations/norm.h"
#include "src/kernels/operations/optimizer.h"
#include "src/kernels/operations/rotary.h"
#include "src/kernels/operations/sparse.h"
#include "src/kernels/operations/vocabulary.h"
#include "src/kernels/operations/window.h"
#include "src/kernels/wire_format.h"

namespace espalier::kernels {

/// One operation on several arrays, equal to one call after another. No call may read or write an
/// array that another one writes, except sums that all calls add to.
template <class Args>
class Each : public std::span<const Args> {
 public:
  Each(const Args& one) : std::span<const Args>(&one, 1) {}
  Each(const std::vector<Args>& all) : std::span<const Args>(all) {}
  Each(std::span<const Args> all) : std::span<const Args>(all) {}
};
template <class Args>
using Op = void (*)(Stream&, const Args&);

struct Kernels {
  std::string_view name;
  /// Opens the device of rank `local_rank` of a machine: its memory and queues. Throws Failure if
  /// there is no such device. Null: the table uses host memory, and calls are synchronous.
  std::unique_ptr<Device> (*open)(int local_rank) = nullptr;
  /// Table for plans of runs on this one, on dry arenas. It counts like "dry", needs no device, and
  /// requests the same workspace as this table. Null: use "dry".
  const Kernels* plan = nullptr;
#define ESPALIER_OPERATION(row, Args, on_cpu) Op<Args> row = nullptr;
#include "src/kernels/operations.def"
};

/// All tables of this build that run on this machine: CPU tables, fastest first; then "cuda"; "dry"
/// last. "cuda" needs device memory and a stream with a queue, so it is never the default.
std::vector<const Kernels*> available();

/// "auto" = the first of `available()`; "cpu" = the fastest CPU table. Environment ESPALIER_KERNELS
/// overrides "auto" and "cpu". Throws Failure that lists the names.
const Kernels& by_name(std::string_view name);

/// Flops and bytes counted by the "dry" table on this thread since the last reset.
struct DryCount {
  double flops = 0;
  double bytes = 0;
  [[gnu::always_inline]] DryCount& operator+=(const DryCount& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};
DryCount& dry_count();

/// Version of the library that computes GEMMs, for `espalier info`.
std::string gemm_library();

/// Whether the CPU multiplies dense bf16 matrices as such; others are widened to fp32 first.
bool has_native_bf16();

}  // namespace espalier::kernels
