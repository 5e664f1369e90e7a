#include "parallel/reduction/powersgd/reduction.h"

#include "parallel/reduction/flat.h"

namespace espalier::parallel {

namespace {

/// Factors are sent beside the rest of their bucket. Their number is so far from the bucket's that
/// no other bucket in flight has the same.
int factors_number(int number) { return (number + kReductionNumbers / 2) % kReductionNumbers; }

}  // namespace

LowRankReduction::LowRankReduction(Communicator& comm, Arena& arena, LowRank& low_rank,
                                   std::unique_ptr<Reduction> rest)
    : comm_(comm), job_(low_rank), factors_(comm, arena), rest_(std::move(rest)) {}

void LowRankReduction::start(const SliceJob& job) {
  require(stage_ == Stage::none && !resting_, "one array at a time", job.data.count());
  if (comm_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  if (!job_.begin(job)) {
    stage_ = Stage::summed;
    rest_->start(job);
    resting_ = true;
    return;
  }
  number_ = job.number;
  job_.project();
  stage_ = Stage::p;
  sum_factors(job_.p());
  if (const auto rest = job_.pack_rest()) {
    rest_->start(*rest);
    resting_ = true;
  }
}

void LowRankReduction::sum_factors(const Tensor& factors) {
  factors_.start({.data = factors, .number = factors_number(number_)});
}

void LowRankReduction::next() {
  if (stage_ == Stage::q) {
    job_.finish();
    stage_ = Stage::summed;
    return;
  }
  job_.project_back();
  stage_ = Stage::q;
  sum_factors(job_.q());
  job_.keep_rest();  // while Q is in flight
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
      resting_ = false;
      job_.unpack_rest();
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
