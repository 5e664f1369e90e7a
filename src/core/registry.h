#pragma once
// Registries: the one list of the members of a kind (networks, optimizers, pruning methods, codecs,
// schedules, storages, index encodings). A member is an aggregate of functions and facts with
//
//   std::string_view name;   as configs and command lines write it
//   std::string_view help;   one line for --help and docs/config.md
//
// and is defined in its own file. The kind's `registry.cpp` lists the members (norms, weight
// predictions and schedules of the learning rate share one file a kind, which ends with the list).
// Code that selects by name calls `find`; code that prints choices calls `names`.
// Adding a member: its file, its line in `registry.cpp`, a row of a test.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/error.h"

namespace espalier {

template <class Entry>
using Registry = std::span<const Entry* const>;

template <class Entry, class... Members>
constexpr std::array<const Entry*, sizeof...(Members)> pointers_to(const Members&... members) {
  return {&members...};
}

/// The list of a kind's members, which other files define: declares `all`, an array of pointers to
/// them.
#define ESPALIER_REGISTRY(all, Entry, ...) \
  extern const Entry __VA_ARGS__;          \
  constexpr auto all = ::espalier::pointers_to<Entry>(__VA_ARGS__)

/// The member's names, in the order of the list.
template <class Entry>
std::vector<std::string> names(Registry<Entry> all) {
  std::vector<std::string> found;
  for (const Entry* entry : all) {
    found.emplace_back(entry->name);
  }
  return found;
}

/// Null if no member has that name.
template <class Entry>
const Entry* find_or_null(Registry<Entry> all, std::string_view name) {
  const auto found = std::ranges::find(all, name, [](const Entry* entry) { return entry->name; });
  return found == all.end() ? nullptr : *found;
}

/// Throws Failure that lists the names. `kind` appears in the message: "schedule", "codec", …
template <class Entry>
const Entry& find(Registry<Entry> all, std::string_view kind, std::string_view name) {
  const Entry* found = find_or_null(all, name);
  check(found != nullptr, "unknown {} \"{}\": use one of {}", kind, name,
        fmt::join(names(all), ", "));
  return *found;
}

}  // namespace espalier
