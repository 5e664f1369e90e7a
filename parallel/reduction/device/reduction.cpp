#include "parallel/reduction/device/reduction.h"

#include "parallel/flat.h"
#include "parallel/reduction/sra.h"

namespace espalier::parallel {

DeviceReduction::Order order_of(std::string_view reduction) {
  return reduction == "nccl" ? DeviceReduction::Order::by_nccl : DeviceReduction::Order::by_rank;
}

void DeviceReduction::run(const SliceJob& job, std::string_view doing) {
  if (link_.size() == 1 || flat_count(job.data) == 0) {
    return;
  }
  const bool coded = job.wire != nullptr && !job.wire->plain(job.data.dtype);
  require(!coded || order_ == Order::by_rank || job.phases == Phases::gather,
          "NCCL's own sums know no codes", job.first);
  job_ = job;
  doing_ = doing;
  edges_ = edges_of(job, link_.size());
  link_.follow_compute();
  if (coded) {
    pieces_ =
        SlicePieces(job, edges_, sra_piece(edges_, job.data.dtype, job.phases, true, options_));
    if (job.phases != Phases::gather) {
      sum_coded();
    }
    if (job.phases != Phases::scatter) {
      gather_coded();
    }
    return;
  }
  if (job.phases != Phases::gather) {
    order_ == Order::by_nccl ? sum_by_nccl() : sum_by_rank();
  }
  if (job.phases == Phases::gather || (job.phases == Phases::both && order_ == Order::by_rank)) {
    gather();
  }
}

Tensor DeviceReduction::slice(int rank) const {
  return job_.data.elements(edges_[rank], edges_[rank + 1] - edges_[rank]);
}

/// Slices have any sizes, so NCCL's reduce-scatter (equal sizes only) does not apply.
void DeviceReduction::sum_by_nccl() {
  link_.group(doing_, [&] {
    if (job_.phases == Phases::both) {
      return link_.all_reduce(job_.data);
    }
    for (int r = 0; r < link_.size(); ++r) {
      if (slice(r).count() > 0) {
        link_.reduce(r, slice(r));
      }
    }
  });
}

void DeviceReduction::sum_by_rank() {
  const Tensor mine = slice(link_.rank());
  const size_t element = size_of(mine.dtype);
  const auto stride = static_cast<int64_t>(whole_lines(mine.bytes()) / element);
  Tensor versions;
  if (mine.count() > 0) {
    reserve(link_.stream().arena(), staging_, "slices of other ranks", DType::uint8,
            link_.size() * stride * static_cast<int64_t>(element));
    versions = staging_.tensor().as(mine.dtype, Shape{link_.size(), mine.count()});
    versions.stride = stride;
  }
  link_.group(doing_, [&] {
    for (int r = 0; r < link_.size(); ++r) {
      if (r != link_.rank()) {
        link_.send(r, flat_bytes(slice(r)));
        if (mine.count() > 0) {
          link_.receive(r, flat_bytes(versions.row_range(r, 1)));
        }
      }
    }
  });
  if (mine.count() > 0) {
    kernels_.ordered_sum(link_.stream(), {.x = versions, .y = mine, .mine = link_.rank()});
  }
}

void DeviceReduction::gather() {
  link_.group(doing_, [&] {
    for (int r = 0; r < link_.size(); ++r) {
      if (r != link_.rank()) {
        link_.send(r, flat_bytes(slice(link_.rank())));
        link_.receive(r, flat_bytes(slice(r)));
      }
    }
  });
}

std::vector<DeviceReduction::Piece> DeviceReduction::cut(int rank) const {
  std::vector<Piece> pieces;
  size_t at = 0;
  for (int64_t index = 0; index < pieces_.count(rank); ++index) {
    pieces.push_back({pieces_.at(rank, index), at});
    at += pieces.back().bytes;
  }
  return pieces;
}

size_t DeviceReduction::message_bytes(int rank) const {
  const std::vector<Piece> pieces = cut(rank);
  return pieces.empty() ? 0 : pieces.back().at + pieces.back().bytes;
}

/// Memory for messages of these sizes, each aligned to a cache line.
std::vector<std::span<std::byte>> DeviceReduction::staged(Buffer& buffer, std::string_view name,
                                                          const std::vector<size_t>& bytes) {
  size_t total = 0;
  for (const size_t some : bytes) {
    total += whole_lines(some);
  }
  std::vector<std::span<std::byte>> made(bytes.size());
  if (total == 0) {
    return made;
  }
  reserve(link_.stream().arena(), buffer, name, DType::uint8, static_cast<int64_t>(total));
  auto* at = static_cast<std::byte*>(buffer.tensor().data);
  for (size_t i = 0; i < bytes.size(); ++i) {
    made[i] = {at, bytes[i]};
    at += whole_lines(bytes[i]);
  }
  return made;
}

/// Message bytes of the other ranks' slices.
std::vector<size_t> DeviceReduction::bytes_of_slices() const {
  std::vector<size_t> bytes;
  for (int r = 0; r < link_.size(); ++r) {
    bytes.push_back(r == link_.rank() ? 0 : message_bytes(r));
  }
  return bytes;
}

/// Sums of this rank's slice, in fp32; rounded in place if no gather follows.
void DeviceReduction::sum_coded() {
  Wire& wire = *job_.wire;
  const int me = link_.rank();
  std::vector<size_t> incoming(static_cast<size_t>(link_.size()), message_bytes(me));
  incoming[me] = 0;
  const auto out = staged(messages_, "codes of slices", bytes_of_slices());
  const auto in = staged(staging_, "slices of other ranks", incoming);
  for (int r = 0; r < link_.size(); ++r) {
    for (const Piece& piece : r == me ? std::vector<Piece>() : cut(r)) {
      wire.encode(piece.elements, piece.number, out[r].subspan(piece.at, piece.bytes));
    }
  }
  link_.group(doing_, [&] {
    for (int r = 0; r < link_.size(); ++r) {
      link_.send(r, out[r]);  // no bytes to this rank
      link_.receive(r, in[r]);
    }
  });
  const Tensor mine = slice(me);
  if (mine.count() == 0) {
    return;
  }
  reserve(link_.stream().arena(), sums_, "sums of a slice", DType::fp32, mine.count());
  int64_t done = 0;
  for (const Piece& piece : cut(me)) {
    const Tensor sum = sums_.tensor().elements(done, piece.elements.count());
    for (int r = 0; r < link_.size(); ++r) {
      if (r == me) {
        r == 0 ? wire.copy(piece.elements, sum) : wire.add(piece.elements, sum);
      } else {
        const std::span<const std::byte> codes = in[r].subspan(piece.at, piece.bytes);
        r == 0 ? wire.decode(codes, piece.number, sum) : wire.add(codes, piece.number, sum);
      }
    }
    done += sum.count();
  }
  if (job_.phases == Phases::scatter) {
    wire.copy(sums_.tensor().elements(0, mine.count()), mine);
  }
}

/// Sends this rank's slice to all; every rank, this one included, stores the decoded values.
void DeviceReduction::gather_coded() {
  Wire& wire = *job_.wire;
  const int me = link_.rank();
  const auto out = staged(sent_, "codes of a slice", {message_bytes(me)});
  const auto in = staged(messages_, "codes of slices", bytes_of_slices());
  int64_t done = 0;
  for (const Piece& piece : cut(me)) {
    const Tensor sum = job_.phases == Phases::gather
                           ? piece.elements
                           : sums_.tensor().elements(done, piece.elements.count());
    wire.encode(sum, piece.number, out[0].subspan(piece.at, piece.bytes), piece.elements);
    done += sum.count();
  }
  link_.group(doing_, [&] {
    for (int r = 0; r < link_.size(); ++r) {
      if (r != me) {
        link_.send(r, out[0]);
        link_.receive(r, in[r]);
      }
    }
  });
  for (int r = 0; r < link_.size(); ++r) {
    for (const Piece& piece : r == me ? std::vector<Piece>() : cut(r)) {
      wire.decode(in[r].subspan(piece.at, piece.bytes), piece.number, piece.elements);
    }
  }
}

}  // namespace espalier::parallel
