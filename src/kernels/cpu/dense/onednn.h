#pragma once
// oneDNN 2 and 3, which describe an operation differently: generation 2 in two steps, an operation
// description and its primitive description, generation 3 in one. Everything else that this project
// uses is the same in both.
#include <oneapi/dnnl/dnnl.hpp>

namespace espalier::kernels::cpu::onednn {

inline const dnnl::engine& engine() {
  static const dnnl::engine the_engine(dnnl::engine::kind::cpu, 0);
  return the_engine;
}

/// Memory of this shape; `set_data_handle` gives it an address.
inline dnnl::memory view(const dnnl::memory::desc& shape) { return {shape, engine(), nullptr}; }

/// The caller owns the scratchpad. With `adds`, results are added to the destination.
inline dnnl::primitive_attr attributes(bool adds = false) {
  dnnl::primitive_attr made;
  made.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (adds) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    made.set_post_ops(sum);
  }
  return made;
}

/// The description of a `Primitive` (matmul, convolution_forward …) from its arguments, which both
/// generations take in the same order.
template <class Primitive, class... Arguments>
auto describe(const dnnl::primitive_attr& attributes, const Arguments&... arguments) {
  using Description = typename Primitive::primitive_desc;
#if DNNL_VERSION_MAJOR >= 3
  return Description(engine(), arguments..., attributes);
#else
  return Description(typename Primitive::desc(arguments...), attributes, engine());
#endif
}

/// The same for a backward primitive; `forward` describes the operation whose gradient it computes.
template <class Primitive, class Forward, class... Arguments>
auto describe_backward(const Forward& forward, const dnnl::primitive_attr& attributes,
                       const Arguments&... arguments) {
  using Description = typename Primitive::primitive_desc;
#if DNNL_VERSION_MAJOR >= 3
  return Description(engine(), arguments..., forward, attributes);
#else
  return Description(typename Primitive::desc(arguments...), attributes, engine(), forward);
#endif
}

/// Whether oneDNN uses this instruction set and all that it contains. False on other processors
/// than x86.
inline bool uses(dnnl_cpu_isa_t wanted) {
  return (dnnl_get_effective_cpu_isa() & wanted) == wanted;
}

}  // namespace espalier::kernels::cpu::onednn
