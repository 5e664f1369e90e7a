#include "src/kernels/cpu/dense/convolution_library.h"

#include <omp.h>

#include <unordered_map>

#include "src/core/rng.h"
#include "src/kernels/cpu/dense/onednn.h"
#include "src/kernels/cpu/dense/product.h"
#include "src/kernels/cpu/support.h"

namespace espalier::kernels::cpu {
namespace {

using dnnl::memory;

enum class Direction : uint8_t { forward, input, weight };

/// Everything that a primitive is specialised for.
struct Key {
  Direction direction = Direction::forward;
  Window window;
  int64_t images = 0, in = 0, out = 0;
  bool bias = false;
  DType type = DType::fp32;
  int threads = 1;

  auto numbers() const {
    return std::array<int64_t, 12>{static_cast<int64_t>(direction),
                                   window.height,
                                   window.width,
                                   window.extent,
                                   window.stride,
                                   window.padding,
                                   images,
                                   in,
                                   out,
                                   bias ? 1 : 0,
                                   static_cast<int64_t>(type),
                                   threads};
  }
  bool operator==(const Key& other) const { return numbers() == other.numbers(); }
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    for (const int64_t number : key.numbers()) {
      hash = mix(hash, static_cast<uint64_t>(number));
    }
    return hash;
  }
};

/// A convolution, and the conversion of its weight: from [out, extent² in] to the layout of the
/// library, or, of a gradient, back (`convert`, or `add` to what is there).
struct Primitive {
  dnnl::primitive primitive;
  dnnl::reorder convert, add;
  memory x, y, bias, weight, plain_weight, scratch;
  size_t weight_bytes = 0, scratch_bytes = 0;
};

dnnl::reorder reorder(const memory& from, const memory& to, bool add) {
  dnnl::primitive_attr attributes;
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  return dnnl::reorder(dnnl::reorder::primitive_desc(onednn::engine(), from.get_desc(),
                                                     onednn::engine(), to.get_desc(), attributes));
}

/// Sets the parts of `made` that have the layouts that `found`, a description by the library, has
/// chosen.
template <class Description>
void take(Primitive& made, const Description& found, const memory::desc& weight,
          const memory::desc& plain) {
  made.weight = onednn::view(weight);
  made.plain_weight = onednn::view(plain);
  made.scratch = onednn::view(found.scratchpad_desc());
  made.weight_bytes = weight.get_size();
  made.scratch_bytes = found.scratchpad_desc().get_size();
}

Primitive create(const Key& key) {
  using tag = memory::format_tag;
  const Window& w = key.window;
  const auto type = key.type == DType::fp32 ? memory::data_type::f32 : memory::data_type::bf16;
  const memory::desc x({key.images, key.in, w.height, w.width}, type, tag::nhwc);
  const memory::desc y({key.images, key.out, w.out_height(), w.out_width()}, type, tag::nhwc);
  const memory::dims weight_shape{key.out, key.in, w.extent, w.extent};
  const auto weight_type = key.direction == Direction::weight ? memory::data_type::f32 : type;
  const memory::desc any(weight_shape, weight_type, tag::any);
  const memory::desc of_forward(weight_shape, type, tag::any);
  const memory::desc plain(weight_shape, weight_type, tag::ohwi);
  const memory::desc bias =
      key.bias ? memory::desc({key.out}, memory::data_type::f32, tag::a) : memory::desc();
  const memory::dims strides{w.stride, w.stride};
  const memory::dims padding{w.padding, w.padding};
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  const auto attributes = onednn::attributes();
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  using Forward = dnnl::convolution_forward;
  const auto hint = key.bias ? onednn::describe<Forward>(attributes, kKind, kDirect, x, of_forward,
                                                         bias, y, strides, padding, padding)
                             : onednn::describe<Forward>(attributes, kKind, kDirect, x, of_forward,
                                                         y, strides, padding, padding);
  Primitive made{
      .x = onednn::view(x), .y = onednn::view(y), .bias = key.bias ? onednn::view(bias) : memory()};
  if (key.direction == Direction::forward) {
    made.primitive = Forward(hint);
    take(made, hint, hint.weights_desc(), plain);
  } else if (key.direction == Direction::input) {
    const auto found = onednn::describe_backward<dnnl::convolution_backward_data>(
        hint, attributes, kDirect, x, any, y, strides, padding, padding);
    made.primitive = dnnl::convolution_backward_data(found);
    take(made, found, found.weights_desc(), plain);
  } else {
    const auto found = onednn::describe_backward<dnnl::convolution_backward_weights>(
        hint, attributes, kDirect, x, any, y, strides, padding, padding);
    made.primitive = dnnl::convolution_backward_weights(found);
    take(made, found, found.diff_weights_desc(), plain);
  }
  const bool back = key.direction == Direction::weight;
  made.convert = back ? reorder(made.weight, made.plain_weight, false)
                      : reorder(made.plain_weight, made.weight, false);
  if (back) {
    made.add = reorder(made.weight, made.plain_weight, true);
  }
  return made;
}

/// The primitive for `key`, created at its first use on this thread.
Primitive& primitive_for(const Key& key) {
  thread_local std::unordered_map<Key, Primitive, KeyHash> primitives;
  auto found = primitives.find(key);
  if (found == primitives.end()) {
    found = primitives.emplace(key, create(key)).first;
  }
  return found->second;
}

/// A call: x stands for dx, y for dy, weight for dweight where the direction computes them.
struct Call {
  Direction direction;
  Window window;
  Tensor x, weight, bias, y;
};

/// Images that are widened together: 2 MiB of numbers.
int64_t images_together(const Call& call, int64_t images, bool widens) {
  if (!widens) {
    return images;
  }
  const int64_t numbers =
      call.window.pixels() * call.x.cols() + call.window.out_pixels() * call.y.cols();
  return std::max<int64_t>(1, std::min(images, (int64_t{1} << 19U) / numbers));
}

dnnl::stream& queue() {
  thread_local dnnl::stream the_queue(onednn::engine());
  return the_queue;
}

/// Runs a primitive on images whose memory is `x` and `y`; the weight is in `made.weight`.
void execute(const Call& call, Primitive& made, void* x, void* y) {
  made.x.set_data_handle(x);
  made.y.set_data_handle(y);
  std::unordered_map<int, memory> arguments{{DNNL_ARG_SCRATCHPAD, made.scratch}};
  switch (call.direction) {
    case Direction::forward:
      arguments.insert(
          {{DNNL_ARG_SRC, made.x}, {DNNL_ARG_WEIGHTS, made.weight}, {DNNL_ARG_DST, made.y}});
      if (call.bias) {
        made.bias.set_data_handle(call.bias.data);
        arguments.insert({DNNL_ARG_BIAS, made.bias});
      }
      break;
    case Direction::input:
      arguments.insert({{DNNL_ARG_DIFF_SRC, made.x},
                        {DNNL_ARG_WEIGHTS, made.weight},
                        {DNNL_ARG_DIFF_DST, made.y}});
      break;
    case Direction::weight:
      arguments.insert({{DNNL_ARG_SRC, made.x},
                        {DNNL_ARG_DIFF_WEIGHTS, made.weight},
                        {DNNL_ARG_DIFF_DST, made.y}});
  }
  made.primitive.execute(queue(), arguments);
  queue().wait();
}

void run(Stream& stream, const Call& call, const WideningLoops& loops) {
  const bool widens = !multiplies(call.x.dtype);
  const int64_t images = call.x.rows() / call.window.pixels();
  if (images == 0 || call.weight.count() == 0) {
    return;
  }
  const int64_t together = images_together(call, images, widens);
  const auto primitive = [&](int64_t count) -> Primitive& {
    return primitive_for({.direction = call.direction,
                          .window = call.window,
                          .images = count,
                          .in = call.x.cols(),
                          .out = call.y.cols(),
                          .bias = static_cast<bool>(call.bias),
                          .type = widens ? DType::fp32 : call.x.dtype,
                          .threads = stream.threads()});
  };
  if (omp_get_max_threads() != stream.threads()) {  // oneDNN asks OpenMP
    omp_set_num_threads(stream.threads());
  }
  Primitive* const whole = &primitive(together);
  Primitive* const rest = images % together == 0 ? whole : &primitive(images % together);
  const bool computes_weight = call.direction == Direction::weight;
  const bool widens_weight = widens && !computes_weight;

  Carver sizes;
  const auto carve = [&](Carver& carver) {
    struct {
      std::byte *weight, *scratch;
      float *wide_weight, *wide_x, *wide_y;
    } parts{};
    parts.weight = carver.take<std::byte>(
        static_cast<int64_t>(std::max(whole->weight_bytes, rest->weight_bytes)));
    parts.scratch = carver.take<std::byte>(
        static_cast<int64_t>(std::max(whole->scratch_bytes, rest->scratch_bytes)));
    parts.wide_weight = carver.take<float>(widens_weight ? call.weight.count() : 0);
    parts.wide_x = carver.take<float>(widens ? together * call.window.pixels() * call.x.cols() : 0);
    parts.wide_y =
        carver.take<float>(widens ? together * call.window.out_pixels() * call.y.cols() : 0);
    return parts;
  };
  carve(sizes);
  Carver carver{.memory = workspace(stream, sizes.used)};
  const auto parts = carve(carver);
  if (is_dry(stream)) {
    return;
  }
  Tensor weight = call.weight;
  if (widens_weight) {
    weight = Tensor(parts.wide_weight, DType::fp32, {call.weight.rows(), call.weight.cols()});
    loops.widen(stream.threads(), call.weight, weight);
  }
  const Primitive* converted = nullptr;  // whose layout parts.weight has
  for (int64_t first = 0; first < images; first += together) {
    const int64_t count = std::min(together, images - first);
    Primitive& made = count == together ? *whole : *rest;
    made.weight.set_data_handle(parts.weight);
    made.scratch.set_data_handle(parts.scratch);
    made.plain_weight.set_data_handle(weight.data);
    Tensor x = call.x.row_range(first * call.window.pixels(), count * call.window.pixels());
    Tensor y = call.y.row_range(first * call.window.out_pixels(), count * call.window.out_pixels());
    const Tensor half_x = x;
    const Tensor half_y = y;
    if (widens) {
      x = Tensor(parts.wide_x, DType::fp32, {x.rows(), x.cols()});
      y = Tensor(parts.wide_y, DType::fp32, {y.rows(), y.cols()});
      if (call.direction != Direction::input) {
        loops.widen(stream.threads(), half_x, x);
      }
      if (call.direction != Direction::forward) {
        loops.widen(stream.threads(), half_y, y);
      }
    }
    if (!computes_weight && converted != &made) {
      made.convert.execute(queue(), made.plain_weight, made.weight);
      converted = &made;
    }
    execute(call, made, x.data, y.data);
    if (computes_weight) {
      (first == 0 ? made.convert : made.add).execute(queue(), made.weight, made.plain_weight);
      queue().wait();
    } else if (widens) {
      const bool forward = call.direction == Direction::forward;
      loops.narrow(stream.threads(), forward ? y : x, forward ? half_y : half_x, false);
    }
  }
}

}  // namespace

void convolve(Stream& stream, const ConvolutionArgs& args, const WideningLoops& loops) {
  run(stream,
      {.direction = Direction::forward,
       .window = args.window,
       .x = args.x,
       .weight = args.weight,
       .bias = args.bias,
       .y = args.y},
      loops);
}

void convolve_input(Stream& stream, const ConvolutionInputArgs& args, const WideningLoops& loops) {
  run(stream,
      {.direction = Direction::input,
       .window = args.window,
       .x = args.dx,
       .weight = args.weight,
       .bias = {},
       .y = args.dy},
      loops);
}

void convolve_weight(Stream& stream, const ConvolutionWeightArgs& args,
                     const WideningLoops& loops) {
  run(stream,
      {.direction = Direction::weight,
       .window = args.window,
       .x = args.x,
       .weight = args.dweight,
       .bias = {},
       .y = args.dy},
      loops);
}

}  // namespace espalier::kernels::cpu
