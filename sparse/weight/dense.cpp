// Storages with products of a dense matrix and gathered gradients. "dense" keeps a resident copy;
// "expanded" rebuilds it for one product, which costs one pass over N K elements, a product 2 R
// flops for each of them.
#include <algorithm>
#include <numeric>

#include "sparse/weight/weight.h"

namespace espalier::sparse {
namespace {

using Matrix = Tensor (*)(const WeightContext& context);

Tensor resident(const WeightContext& context) { return context.parameter.dense; }
Tensor rebuilt(const WeightContext& context) { return context.store.expand(context.parameter); }

template <Matrix kMatrix>
void apply(Stream& stream, const WeightContext& context, const Weight::Apply& args) {
  context.kernels.gemm(stream, {.a = args.x,
                                .b = kMatrix(context),
                                .c = args.y,
                                .addend = args.addend,
                                .bias = args.bias,
                                .transpose_b = true,
                                .activation = args.activation,
                                .activated = args.activated});
}

template <Matrix kMatrix>
void apply_transposed(Stream& stream, const WeightContext& context,
                      const Weight::ApplyTransposed& args) {
  context.kernels.gemm(stream, {.a = args.dy,
                                .b = kMatrix(context),
                                .c = args.dx,
                                .accumulate = args.accumulate,
                                .activation = args.activation,
                                .preactivation = args.preactivation});
}

/// Of a panel of dW: small enough for the gather to find it in cache; on a device large enough for
/// the product to occupy it.
int64_t panel_bytes(const Arena& arena) { return int64_t{arena.on_device() ? 64 : 2} << 20U; }

/// Rows of a panel. Bitmaps are cut at multiples of 512 elements.
int64_t panel_rows(int64_t bytes, int64_t rows, int64_t cols) {
  const int64_t step = 512 / std::gcd<int64_t, int64_t>(512, cols);
  return std::min(rows, std::max(step, bytes / 4 / cols / step * step));
}

/// The positions of dense elements [first, first + size), and the kept ones before them.
struct Run {
  kernels::Positions positions;
  int64_t before = 0;
};

Run run_of(const Index& index, const kernels::Positions& all, int64_t first, int64_t size) {
  Run run{.positions = {.size = size, .first = all.first + first}};
  run.before = index.kept_before(first);
  run.positions.count = index.kept_before(first + size) - run.before;
  if (all.bitmap != nullptr) {
    run.positions.bitmap = all.bitmap + first / 64;
    run.positions.prefix_counts = all.prefix_counts + first / 512;
  } else {
    run.positions.list = all.list + run.before;
  }
  return run;
}

/// On a dry arena, where positions cannot be read: as if they were spread evenly.
Run share_of(const kernels::Positions& all, int64_t size) {
  Run run{.positions = all};
  run.positions.size = size;
  run.positions.count = all.size == 0 ? 0 : all.count * size / all.size;
  return run;
}

void gathered_gradient(Stream& stream, const WeightContext& context,
                       const Weight::AccumulateGradient& args) {
  Store& store = context.store;
  const Shape& shape = context.parameter.spec.shape;
  const int64_t step = panel_rows(panel_bytes(store.arena()), shape.rows(), shape.cols());
  const kernels::Positions positions = store.positions(context.parameter);
  const Tensor packed = store.part(store.gradient(), context.parameter);
  // Sums are rounded once, here or where they are gathered: as narrow as they will be in the end.
  const DType sums = args.accumulate ? DType::fp32 : packed.dtype;
  for (int64_t row = 0; row < shape.rows(); row += step) {
    const int64_t rows = std::min(step, shape.rows() - row);
    const Tensor panel = store.panels().take(sums, Shape{rows, shape.cols()});
    context.kernels.gemm(stream, {.a = args.dy.column_range(row, rows),
                                  .b = args.x,
                                  .c = panel,
                                  .transpose_a = true,
                                  .row_sums = args.bias_gradient.elements(row, rows),
                                  .accumulate_sums = args.accumulate});
    const Run run = store.arena().dry() ? share_of(positions, rows * shape.cols())
                                        : run_of(context.parameter.index, positions,
                                                 row * shape.cols(), rows * shape.cols());
    store.panels().gather([&](Stream& with) {
      context.kernels.gather(with, {.dense = panel,
                                    .packed = packed.elements(run.before, run.positions.count),
                                    .positions = run.positions,
                                    .accumulate = args.accumulate});
    });
  }
}

void accumulate_gradient(Stream& stream, const WeightContext& context,
                         const Weight::AccumulateGradient& args) {
  if (!context.parameter.full()) {
    gathered_gradient(stream, context, args);
    return;
  }
  context.kernels.gemm(stream, {.a = args.dy,
                                .b = args.x,
                                .c = context.store.full_gradient(context.parameter),
                                .transpose_a = true,
                                .accumulate = args.accumulate,
                                .row_sums = args.bias_gradient,
                                .accumulate_sums = args.accumulate});
}

template <Matrix kMatrix>
constexpr Products kProducts{apply<kMatrix>, apply_transposed<kMatrix>, accumulate_gradient};

}  // namespace

constinit const Storage Storage::dense{
    .name = "dense",
    .help = "kept values and a resident dense copy with zeros (SAMO)",
    .dense_products = true,
    .dense_copy = true,
    .products = &kProducts<resident>};

constinit const Storage Storage::expanded{
    .name = "expanded",
    .help = "kept values; the dense matrix is rebuilt in scratch before each product",
    .dense_products = true,
    .products = &kProducts<rebuilt>};

}  // namespace espalier::sparse
