#include "parallel/reduction/powersgd/job.h"

#include <algorithm>
#include <iterator>

#include "parallel/reduction/flat.h"
#include "src/core/rng.h"

namespace espalier::parallel {

bool LowRankJob::begin(const SliceJob& job) {
  require(job.phases != Phases::gather, "sums of gradients");
  const Range elements{.first = job.first, .count = flat_count(job.data)};
  low_rank_.release(elements, job.data);
  job_ = job;
  places_.clear();
  apart_.clear();
  rest_count_ = p_size_ = q_size_ = 0;
  for (const LowRankMatrix& matrix : low_rank_.within(elements)) {
    places_.push_back({.matrix = matrix, .p = p_size_, .q = q_size_});
    p_size_ += matrix.rank * matrix.rows;
    q_size_ += matrix.rank * matrix.cols;
  }
  if (places_.empty()) {
    return false;
  }
  edges_.assign(job.edges.begin(), job.edges.end());
  job_.edges = {};
  Arena& arena = low_rank_.stream().arena();
  reserve(arena, p_, "low-rank sums", DType::fp32, p_size_);
  reserve(arena, q_, "low-rank sums", DType::fp32, q_size_);
  reserve(arena, minus_q_, "low-rank share", DType::fp32, q_size_);
  return true;
}

Tensor LowRankJob::gradient_of(const LowRankMatrix& matrix) const {
  return job_.data.elements(matrix.first - job_.first, matrix.count());
}

Tensor LowRankJob::p_of(const Place& place) const {
  const auto& matrix = place.matrix;
  return p_.tensor()
      .elements(place.p, matrix.rank * matrix.rows)
      .reshaped(Shape{matrix.rank, matrix.rows});
}

Tensor LowRankJob::q_of(const Tensor& all, const Place& place) const {
  const auto& matrix = place.matrix;
  return all.elements(place.q, matrix.rank * matrix.cols).reshaped(Shape{matrix.rank, matrix.cols});
}

void LowRankJob::project() {
  for (const Place& place : places_) {
    low_rank_.project(place.matrix, gradient_of(place.matrix), p_of(place));
  }
}

void LowRankJob::project_back() {
  for (const Place& place : places_) {
    low_rank_.project_back(place.matrix, p_of(place), q_of(q_.tensor(), place));
  }
  low_rank_.negate(q(), minus_q_.tensor().elements(0, q_size_));
}

void LowRankJob::keep_rest() {
  for (const Place& place : places_) {
    low_rank_.keep_rest(place.matrix, p_of(place), q_of(minus_q_.tensor(), place));
  }
}

void LowRankJob::finish() {
  for (const Place& place : places_) {
    low_rank_.finish(place.matrix, p_of(place), q_of(q_.tensor(), place),
                     gradient_of(place.matrix));
  }
}

std::optional<SliceJob> LowRankJob::pack_rest() {
  find_rest();
  if (job_.wire != nullptr) {
    std::vector<WireSegment> segments = packed_segments();
    if (segments.empty()) {  // only padding
      rest_count_ = 0;
      apart_.clear();
    }
    rest_wire_.set_segments(std::move(segments));
  }
  if (rest_count_ == 0) {
    return std::nullopt;
  }
  reserve(low_rank_.stream().arena(), together_, "gradients beside matrices", job_.data.dtype,
          rest_count_);
  const Tensor together = together_.tensor().elements(0, rest_count_);
  copy_rest(job_.data, together, false);
  if (job_.wire != nullptr) {
    pack_wire();
  }
  std::ranges::transform(edges_, edges_.begin(), [this](int64_t edge) { return packed(edge); });
  return SliceJob{.data = together,
                  .phases = job_.phases,
                  .edges = edges_,
                  .number = job_.number,
                  .wire = job_.wire == nullptr ? nullptr : &rest_wire_};
}

/// Finds the ranges of the rest.
void LowRankJob::find_rest() {
  int64_t done = 0;
  const auto add = [&](int64_t end) {
    if (end > done) {
      apart_.push_back({.first = done, .count = end - done});
      rest_count_ += end - done;
    }
  };
  for (const Place& place : places_) {
    add(place.matrix.first - job_.first);
    done = place.matrix.end() - job_.first;
  }
  add(flat_count(job_.data));
}

void LowRankJob::pack_wire() {
  const Wire& wire = *job_.wire;
  rest_wire_.set_key(wire.key() == 0 ? 0 : mix(wire.key(), static_cast<uint64_t>(job_.first)));
  rest_wire_.set_feedback({});
  if (const Tensor& error = wire.feedback(); error) {
    reserve(low_rank_.stream().arena(), feedback_, "errors beside matrices", DType::fp32,
            rest_count_);
    const Tensor mine = feedback_.tensor().elements(0, rest_count_);
    copy_rest(error.elements(job_.first, flat_count(job_.data)), mine, false);
    rest_wire_.set_feedback(mine);
  }
}

/// Packed position of an element of the data. For an element inside a matrix: the position of the
/// first element after the matrix.
int64_t LowRankJob::packed(int64_t element) const {
  int64_t before = 0;
  for (const Range& range : apart_) {
    before += std::clamp<int64_t>(element - range.first, 0, range.count);
  }
  return before;
}

std::vector<WireSegment> LowRankJob::packed_segments() const {
  std::vector<WireSegment> result;
  const int64_t n = flat_count(job_.data);
  for (const WireSegment& segment : job_.wire->segments()) {
    const int64_t begin = std::clamp<int64_t>(segment.first - job_.first, 0, n);
    const int64_t end = std::clamp<int64_t>(segment.first + segment.count - job_.first, 0, n);
    const int64_t at = packed(begin);
    const int64_t count = packed(end) - at;
    require(count == end - begin, "segments beside matrices", segment.first, segment.count);
    if (count > 0) {
      result.push_back({.first = at, .count = count, .format = segment.format});
    }
  }
  return result;
}

void LowRankJob::copy_rest(const Tensor& flat, const Tensor& together, bool back) const {
  int64_t at = 0;
  for (const Range& range : apart_) {
    const Tensor here = flat.elements(range.first, range.count);
    const Tensor there = together.elements(at, range.count);
    back ? low_rank_.stream().copy(there, here) : low_rank_.stream().copy(here, there);
    at += range.count;
  }
}

void LowRankJob::unpack_rest() {
  if (apart_.empty()) {
    return;
  }
  copy_rest(job_.data, together_.tensor().elements(0, rest_count_), true);
  if (job_.wire != nullptr && job_.wire->feedback()) {
    copy_rest(job_.wire->feedback().elements(job_.first, flat_count(job_.data)),
              feedback_.tensor().elements(0, rest_count_), true);
  }
}

}  // namespace espalier::parallel
