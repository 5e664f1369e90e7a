#include "parallel/reduction/low_rank.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>

#include "parallel/flat.h"
#include "src/core/rng.h"

namespace espalier::parallel {

namespace {

/// Factors travel beside the rest of their bucket, and so far from its number that no other bucket
/// under way has theirs.
int factors_number(int number) { return (number + kReductionNumbers / 2) % kReductionNumbers; }

}  // namespace

LowRankReduction::LowRankReduction(Communicator& comm, Arena& arena, LowRank& low_rank,
                                   std::unique_ptr<Reduction> rest)
    : comm_(comm),
      arena_(arena),
      low_rank_(low_rank),
      factors_(comm, arena),
      rest_(std::move(rest)),
      rest_wire_(low_rank.kernels(), low_rank.stream()) {}

void LowRankReduction::start(const SliceJob& job) {
  require(stage_ == Stage::none && !resting_, "one array at a time", job.data.count());
  require(job.phases != Phases::gather, "sums of gradients");
  const int64_t n = flat_count(job.data);
  if (comm_.size() == 1 || n == 0) {
    return;
  }
  const Range elements{.first = job.first, .count = n};
  low_rank_.release(elements, job.data);
  const auto matrices = low_rank_.within(elements);
  stage_ = Stage::summed;
  if (matrices.empty()) {
    apart_.clear();
    rest_->start(job);
    resting_ = true;
    return;
  }
  data_ = job.data;
  first_ = job.first;
  number_ = job.number;
  places_.clear();
  p_size_ = 0;
  q_size_ = 0;
  for (const LowRankMatrix& matrix : matrices) {
    places_.push_back({.matrix = matrix, .p = p_size_, .q = q_size_});
    p_size_ += matrix.rank * matrix.rows;
    q_size_ += matrix.rank * matrix.cols;
  }
  start_matrices();
  start_rest(job);
}

Tensor LowRankReduction::gradient_of(const LowRankMatrix& matrix) const {
  return flat_part(data_, matrix.first - first_, matrix.count());
}

Tensor LowRankReduction::p_of(const Place& place) const {
  const auto& matrix = place.matrix;
  return flat_part(p_.tensor(), place.p, matrix.rank * matrix.rows)
      .reshaped(Shape{matrix.rank, matrix.rows});
}

Tensor LowRankReduction::q_of(const Tensor& all, const Place& place) const {
  const auto& matrix = place.matrix;
  return flat_part(all, place.q, matrix.rank * matrix.cols)
      .reshaped(Shape{matrix.rank, matrix.cols});
}

void LowRankReduction::sum_factors(const Tensor& factors) {
  factors_.start({.data = factors, .number = factors_number(number_)});
}

void LowRankReduction::start_matrices() {
  reserve(arena_, p_, "low-rank sums", DType::fp32, p_size_);
  reserve(arena_, q_, "low-rank sums", DType::fp32, q_size_);
  reserve(arena_, minus_q_, "low-rank share", DType::fp32, q_size_);
  for (const Place& place : places_) {
    low_rank_.project(place.matrix, gradient_of(place.matrix), p_of(place));
  }
  stage_ = Stage::p;
  sum_factors(flat_part(p_.tensor(), 0, p_size_));
}

/// What lies between the matrices, if any of it is to travel.
void LowRankReduction::start_rest(const SliceJob& job) {
  pack(job);
  if (rest_count_ == 0) {
    return;
  }
  std::vector<int64_t> edges;
  std::ranges::transform(job.edges, std::back_inserter(edges),
                         [this](int64_t edge) { return packed(edge); });
  const Tensor together = flat_part(together_.tensor(), 0, rest_count_);
  copy_rest(data_, together, false);
  if (wire_ != nullptr) {
    rest_wire_.set_key(wire_->key() == 0 ? 0 : mix(wire_->key(), static_cast<uint64_t>(first_)));
    rest_wire_.set_feedback({});
    if (const Tensor& error = wire_->feedback(); error) {
      reserve(arena_, feedback_, "errors beside matrices", DType::fp32, rest_count_);
      const Tensor mine = flat_part(feedback_.tensor(), 0, rest_count_);
      copy_rest(flat_part(error, first_, flat_count(data_)), mine, false);
      rest_wire_.set_feedback(mine);
    }
  }
  rest_->start({.data = together,
                .phases = job.phases,
                .edges = edges,
                .number = job.number,
                .wire = wire_ == nullptr ? nullptr : &rest_wire_});
  resting_ = true;
}

/// Where the rest lies, here and together.
void LowRankReduction::pack(const SliceJob& job) {
  apart_.clear();
  rest_count_ = 0;
  int64_t done = 0;
  const auto add = [&](int64_t end) {
    if (end > done) {
      apart_.push_back({.first = done, .count = end - done});
      rest_count_ += end - done;
    }
  };
  for (const Place& place : places_) {
    add(place.matrix.first - first_);
    done = place.matrix.end() - first_;
  }
  add(flat_count(data_));
  wire_ = job.wire;
  if (wire_ != nullptr) {
    std::vector<WireSegment> segments = packed_segments(wire_->segments());
    if (segments.empty()) {  // padding
      rest_count_ = 0;
      apart_.clear();
    }
    rest_wire_.set_segments(std::move(segments));
  }
  if (rest_count_ > 0) {
    reserve(arena_, together_, "gradients beside matrices", data_.dtype, rest_count_);
  }
}

/// The place of an element of data_; of one inside a matrix that of the first behind it.
int64_t LowRankReduction::packed(int64_t element) const {
  int64_t before = 0;
  for (const Range& range : apart_) {
    before += std::clamp<int64_t>(element - range.first, 0, range.count);
  }
  return before;
}

std::vector<WireSegment> LowRankReduction::packed_segments(
    std::span<const WireSegment> segments) const {
  std::vector<WireSegment> result;
  const int64_t n = flat_count(data_);
  for (const WireSegment& segment : segments) {
    const int64_t begin = std::clamp<int64_t>(segment.first - first_, 0, n);
    const int64_t end = std::clamp<int64_t>(segment.first + segment.count - first_, 0, n);
    const int64_t at = packed(begin);
    const int64_t count = packed(end) - at;
    require(count == end - begin, "segments beside matrices", segment.first, segment.count);
    if (count > 0) {
      result.push_back({.first = at, .count = count, .format = segment.format});
    }
  }
  return result;
}

void LowRankReduction::copy_rest(const Tensor& flat, const Tensor& together, bool back) const {
  int64_t at = 0;
  for (const Range& range : apart_) {
    const auto here = flat_bytes(flat_part(flat, range.first, range.count));
    const auto there = flat_bytes(flat_part(together, at, range.count));
    const auto& [to, from] = back ? std::pair(here, there) : std::pair(there, here);
    std::memcpy(to.data(), from.data(), from.size());
    at += range.count;
  }
}

void LowRankReduction::finish_rest() {
  resting_ = false;
  if (apart_.empty()) {  // it was the whole job
    return;
  }
  copy_rest(data_, flat_part(together_.tensor(), 0, rest_count_), true);
  if (wire_ != nullptr && wire_->feedback()) {
    copy_rest(flat_part(wire_->feedback(), first_, flat_count(data_)),
              flat_part(feedback_.tensor(), 0, rest_count_), true);
  }
}

void LowRankReduction::next() {
  if (stage_ == Stage::q) {
    for (const Place& place : places_) {
      low_rank_.finish(place.matrix, p_of(place), q_of(q_.tensor(), place),
                       gradient_of(place.matrix));
    }
    stage_ = Stage::summed;
    return;
  }
  for (const Place& place : places_) {
    orthonormalise(p_of(place));
    low_rank_.project_back(place.matrix, p_of(place), q_of(q_.tensor(), place));
  }
  const Tensor q = flat_part(q_.tensor(), 0, q_size_);
  std::ranges::transform(q.span<float>(), minus_q_.tensor().get<float>(), std::negate<>());
  stage_ = Stage::q;
  sum_factors(q);
  for (const Place& place : places_) {  // while Q travels
    low_rank_.keep_rest(place.matrix, p_of(place), q_of(minus_q_.tensor(), place));
  }
}

Progress LowRankReduction::advance() {
  if (stage_ == Stage::none) {
    return Progress::done;
  }
  bool moved = false;
  if (resting_) {
    const Progress progress = rest_->advance();
    moved |= progress != Progress::stuck;
    if (progress == Progress::done) {
      finish_rest();
    }
  }
  if (stage_ != Stage::summed) {
    const Progress progress = factors_.advance();
    moved |= progress != Progress::stuck;
    if (progress == Progress::done) {
      next();
    }
  }
  if (stage_ == Stage::summed && !resting_) {
    stage_ = Stage::none;
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

std::vector<int> LowRankReduction::missing() const {
  std::vector<int> ranks;
  if (resting_) {
    ranks = rest_->missing();
  }
  if (stage_ == Stage::p || stage_ == Stage::q) {
    const std::vector<int> more = factors_.missing();
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  return distinct(std::move(ranks));
}

}  // namespace espalier::parallel
