#include "parallel/wire/wire.h"

#include <algorithm>

#include "parallel/flat.h"
#include "src/kernels/rules/wire/codecs.h"

namespace espalier::parallel {

using kernels::WireCode;
using kernels::WireFormat;

WireFormat plain_format(DType dtype) {
  require(is_number(dtype), "fp32, bf16 or fp16", name_of(dtype));
  return dtype == DType::fp32   ? WireFormat{}
         : dtype == DType::bf16 ? WireFormat{.code = WireCode::bf16, .bits = 16}
                                : WireFormat{.code = WireCode::fp16, .bits = 16};
}

Wire::Wire(const kernels::Kernels& kernels, Stream& stream, std::vector<WireSegment> segments)
    : kernels_(kernels), stream_(stream) {
  set_segments(std::move(segments));
}

void Wire::set_segments(std::vector<WireSegment> segments) {
  int64_t end = 0;
  changes_ = false;
  for (const WireSegment& segment : segments) {
    require(segment.first >= end && segment.count >= 0, "ascending segments", segment.first, end);
    require(
        !segment.target || (segment.sends_difference && segment.target.count() == segment.count),
        "a target for each element of a change", segment.first, segment.count);
    end = segment.first + segment.count;
    changes_ |= segment.sends_difference;
  }
  segments_ = std::move(segments);
}

bool Wire::plain(DType dtype) const {
  const WireFormat same = plain_format(dtype);
  return !feedback_ && !changes_ &&
         std::ranges::all_of(segments_, [&](const auto& s) { return s.format == same; });
}

template <class Body>
void Wire::for_parts(int64_t first, int64_t count, const Body& body) const {
  const int64_t end = first + count;
  auto segment = std::ranges::upper_bound(segments_, first, {},
                                          [](const WireSegment& s) { return s.first + s.count; });
  for (; segment != segments_.end() && segment->first < end; ++segment) {
    const int64_t begin = std::max(first, segment->first);
    const int64_t n = std::min(end, segment->first + segment->count) - begin;
    if (n > 0) {
      body(Part{.begin = begin - first,
                .count = n,
                .bytes = kernels::wire_bytes(segment->format, n),
                .segment = &*segment});
    }
  }
}

size_t Wire::bytes(int64_t first, int64_t count) const {
  size_t total = 0;
  for_parts(first, count, [&](const Part& part) { total += part.bytes; });
  return total;
}

Tensor Wire::scratch(Buffer& buffer, int64_t count) {
  parallel::reserve(stream_.arena(), buffer, "values of a message", DType::fp32, count);
  return flat_part(buffer.tensor(), 0, count);
}

void Wire::reserve(DType dtype, int64_t count) {
  if (converts(dtype)) {
    scratch(values_, count);
  }
  if (dtype != DType::fp32 || feedback_) {
    scratch(decoded_, count);
  }
}

void Wire::encode(const Tensor& x, int64_t first, std::span<std::byte> out, const Tensor& decoded) {
  const int64_t n = flat_count(x);
  if (n == 0) {
    return;
  }
  require(!changes_ || !feedback_, "changes keep no errors beside their targets", first);
  Tensor v = x;
  if (converts(x.dtype)) {
    v = scratch(values_, n);
    kernels_.cast(stream_, {.x = x, .y = v});
    subtract_from_targets(v, first);
  }
  Tensor error;
  if (feedback_) {
    error = flat_part(feedback_, first, n);
    kernels_.cast(stream_, {.x = error, .y = v, .accumulate = true});
  }
  size_t at = 0;
  for_parts(first, n, [&](const Part& part) {
    kernels_.encode(stream_, {.x = flat_part(v, part.begin, part.count),
                              .wire = out.subspan(at, part.bytes),
                              .format = part.segment->format,
                              .key = key_,
                              .first = first + part.begin});
    at += part.bytes;
  });
  require(at == out.size(), "a message of the size that was announced", at, out.size());
  if (feedback_) {
    const Tensor back = scratch(decoded_, n);
    decode_parts(out, first, back, false);
    // Non-finite errors become zero: this step fails because of them, but later steps must not.
    kernels_.difference(stream_, {.a = v, .b = back, .y = error, .finite = true});
    if (decoded) {
      kernels_.cast(stream_, {.x = back, .y = decoded});
    }
  } else if (decoded) {
    decode(out, first, decoded);
  }
}

/// x = target - x, for segments of changes.
void Wire::subtract_from_targets(const Tensor& x, int64_t first) const {
  if (!changes_) {
    return;
  }
  for_parts(first, x.count(), [&](const Part& part) {
    if (!part.segment->sends_difference) {
      return;
    }
    require(part.segment->target.data != nullptr, "the target of an encoded change",
            first + part.begin);
    const Tensor target =
        flat_part(part.segment->target, first + part.begin - part.segment->first, part.count);
    const Tensor value = flat_part(x, part.begin, part.count);
    kernels_.difference(stream_, {.a = target, .b = value, .y = value, .factor = factor_});
  });
}

void Wire::decode(std::span<const std::byte> in, int64_t first, const Tensor& y) {
  if (flat_count(y) == 0) {
    return;
  }
  if (y.dtype == DType::fp32) {
    return decode_parts(in, first, y, false);
  }
  const Tensor values = scratch(decoded_, y.count());
  if (changes_) {
    kernels_.cast(stream_, {.x = y, .y = values});
  }
  decode_parts(in, first, values, false);
  kernels_.cast(stream_, {.x = values, .y = y});
}

void Wire::add(std::span<const std::byte> in, int64_t first, const Tensor& y) {
  if (flat_count(y) > 0) {
    decode_parts(in, first, y, true);
  }
}

void Wire::copy(const Tensor& x, const Tensor& y) { kernels_.cast(stream_, {.x = x, .y = y}); }

void Wire::add(const Tensor& x, const Tensor& y) {
  kernels_.cast(stream_, {.x = x, .y = y, .accumulate = true});
}

void Wire::decode_parts(std::span<const std::byte> in, int64_t first, const Tensor& y, bool add) {
  size_t at = 0;
  int64_t done = 0;  // elements
  const auto skip_to = [&](int64_t end) {
    if (!add && end > done) {
      kernels_.fill(stream_, {.x = flat_part(y, done, end - done), .value = 0});
    }
  };
  for_parts(first, y.count(), [&](const Part& part) {
    skip_to(part.begin);
    kernels_.decode(stream_, {.wire = in.subspan(at, part.bytes),
                              .y = flat_part(y, part.begin, part.count),
                              .format = part.segment->format,
                              .accumulate = add || part.segment->sends_difference});
    at += part.bytes;
    done = part.begin + part.count;
  });
  skip_to(y.count());
  require(at == in.size(), "a message of the size that was announced", at, in.size());
}

}  // namespace espalier::parallel
