#include "io/safetensors/numbers.h"

#include <bit>
#include <cstring>

#include "src/core/error.h"

namespace espalier::io {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

/// Calls `body` with a number of the file's type: double, float, fp16 or bf16.
template <class Body>
void with_file_number(SafetensorsType type, const Body& body) {
  if (type == SafetensorsType::f64) {
    body(double{});
  } else if (type == SafetensorsType::f32) {
    body(float{});
  } else if (type == SafetensorsType::f16) {
    body(fp16{});
  } else {
    require(type == SafetensorsType::bf16, "the type is convertible", name_of(type));
    body(bf16{});
  }
}

template <class From, class To>
[[gnu::always_inline]] inline To converted_number(From x) {
  if constexpr (std::is_same_v<From, double>) {
    return from_float<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, double>) {
    return static_cast<double>(to_float(x));
  } else {
    return from_float<To>(to_float(x));
  }
}

/// Bytes may lie at any address.
template <class From, class To>
[[gnu::always_inline]] inline void convert_loop(const std::byte* from, std::byte* to,
                                                size_t count) {
  for (size_t i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from + i * sizeof(From), sizeof(From));
    const To y = converted_number<From, To>(x);
    std::memcpy(to + i * sizeof(To), &y, sizeof(To));
  }
}

template <class From, class To>
void convert_baseline(const std::byte* from, std::byte* to, size_t count) {
  convert_loop<From, To>(from, to, count);
}

#ifdef __x86_64__
/// The same bits, with vectors of twice the width.
template <class From, class To>
[[gnu::target("avx2")]] void convert_avx2(const std::byte* from, std::byte* to, size_t count) {
  convert_loop<From, To>(from, to, count);
}
#endif

template <class From, class To>
void convert_numbers(const std::byte* from, std::byte* to, size_t count) {
#ifdef __x86_64__
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2) {
    convert_avx2<From, To>(from, to, count);
    return;
  }
#endif
  convert_baseline<From, To>(from, to, count);
}

}  // namespace

std::optional<DType> same_bits(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::f32:
      return DType::fp32;
    case SafetensorsType::f16:
      return DType::fp16;
    case SafetensorsType::bf16:
      return DType::bf16;
    default:
      return {};
  }
}

SafetensorsType type_with_bits(DType dtype) {
  require(is_number(dtype), "files hold fp32, bf16 and fp16", name_of(dtype));
  return dtype == DType::bf16   ? SafetensorsType::bf16
         : dtype == DType::fp16 ? SafetensorsType::f16
                                : SafetensorsType::f32;
}

void decode_numbers(SafetensorsType type, std::span<const std::byte> bytes, const Tensor& out) {
  const auto count = static_cast<size_t>(out.count());
  with_file_number(type, [&](auto from) {
    require(bytes.size() == count * sizeof(from), "bytes of all elements", bytes.size(), count);
    with_number(out.dtype, [&](auto to) {
      convert_numbers<decltype(from), decltype(to)>(
          bytes.data(), reinterpret_cast<std::byte*>(out.get<decltype(to)>()), count);
    });
  });
}

void encode_numbers(const Tensor& in, SafetensorsType type, std::span<std::byte> bytes) {
  const auto count = static_cast<size_t>(in.count());
  with_file_number(type, [&](auto to) {
    require(bytes.size() == count * sizeof(to), "bytes of all elements", bytes.size(), count);
    with_number(in.dtype, [&](auto from) {
      convert_numbers<decltype(from), decltype(to)>(
          reinterpret_cast<const std::byte*>(in.get<decltype(from)>()), bytes.data(), count);
    });
  });
}

}  // namespace espalier::io
