#pragma once
// The checkpoint that a run continues from with --resume auto. Reading it takes the disk's time, so
// the ranks divide the work: each verifies the checksums of a part of the file.
#include <filesystem>

#include "io/checkpoint/checkpoint.h"
#include "parallel/transport/communicator.h"

namespace espalier::train {

/// Collective. As io::newest_intact_checkpoint; only rank 0 returns the result, others an empty
/// one. Ranks that see the same file (by its fingerprint) read a part of it each, others nothing.
/// Throws on all ranks the Failure of any.
io::NewestIntact newest_intact_checkpoint(const std::filesystem::path& folder,
                                          parallel::Communicator& comm);

}  // namespace espalier::train
