#pragma once
// All arithmetic, as one table of operations per backend. Read this first.
//
// An operation takes (Stream&, const XArgs&): views and scalars, no parameters, masks or ranks; or
// Each<XArgs>, for several arrays in one call. operations.def lists the operations; their arguments
// and formulas are in operations/*.h, with their checks and costs in operations/*.cpp.
// Rows of `Kernels` may be null (unsupported); a test lists them. Backends: "cuda" (GPUs; calls
// return before they are done, and every pointer is the device's, or pinned memory's:
// core/device.h), "cpu-avx512bf16", "cpu-avx512", "cpu-avx2", "cpu-portable" (the same sources
// compiled for four instruction sets; dense GEMMs are oneDNN's in all) and "dry" (computes nothing,
// counts flops and bytes).
//
// Letters: R rows (tokens of a micro-batch), C columns (features), B sequences, T context, H heads,
// D = C/H head width, V vocabulary. "any" = fp32, bf16 or fp16; no call has
// operands of both the last two. Sums over rows are split in a way that depends on the shape alone,
// so results do not depend on the number of threads (GEMMs: oneDNN's own).
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/stream.h"
#include "src/core/tensor.h"
#include "src/kernels/operations/attention.h"
#include "src/kernels/operations/dense.h"
#include "src/kernels/operations/elementwise.h"
#include "src/kernels/operations/index.h"
#include "src/kernels/operations/low_rank.h"
#include "src/kernels/operations/norm.h"
#include "src/kernels/operations/optimizer.h"
#include "src/kernels/operations/sparse.h"
#include "src/kernels/operations/vocabulary.h"
#include "src/kernels/wire_format.h"

namespace espalier::kernels {

/// What an operation does for each of several arrays: as if one call came after the other, but none
/// may read or write what another one writes; sums that all add to are the exception.
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
  /// Where its memory is and who does its work, for rank `local_rank` of a machine; null: the
  /// host's memory, and calls that are done when they return. Throws Failure where there is no such
  /// device.
  std::unique_ptr<Device> (*open)(int local_rank) = nullptr;
  /// A table for plans of runs on this one, for dry arenas: it counts as "dry" does, needs no
  /// device, and requests the workspace that calls of this table would request. Null: "dry".
  const Kernels* plan = nullptr;
#define ESPALIER_OPERATION(row, Args, on_cpu) Op<Args> row = nullptr;
#include "src/kernels/operations.def"
};

/// All tables of this build that run on this machine: those of the CPU, fastest first; "cuda",
/// which takes device memory and a stream with a queue, so that nobody gets it unasked; "dry" last.
std::vector<const Kernels*> available();

/// "auto" = the first of `available()`; "cpu" = the fastest CPU table. Environment ESPALIER_KERNELS
/// overrides "auto" and "cpu". Throws Failure that lists the names.
const Kernels& by_name(std::string_view name);

/// Flops and bytes that the "dry" table has counted on this thread since the last reset.
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

/// Version of the library behind the GEMMs, for `espalier info`.
std::string gemm_library();

/// True where bf16 GEMMs run natively (AVX-512 BF16 or AMX).
bool has_native_bf16();

}  // namespace espalier::kernels
