#pragma once
// Keyed pseudo-random permutations without memory.
#include <cstdint>

namespace espalier::io {

/// Element `place` of the permutation of [0, size) that belongs to `key`; 0 <= place < size.
///
/// A balanced Feistel network of 8 rounds permutes [0, 4^h), the smallest such range that holds
/// `size` elements; its round function is Philox. Places outside [0, size) are permuted again
/// (cycle walking): on average fewer than 4 times. Sources: Luby and Rackoff, SIAM J. Comput. 17,
/// 1988; Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
int64_t permuted(uint64_t key, int64_t place, int64_t size);

}  // namespace espalier::io
