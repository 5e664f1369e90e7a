#pragma once
// Registries: the one list of the members of a kind (networks, optimizers, pruning methods, codecs,
// schedules, storages, index encodings). A member is an aggregate of functions and facts with
//
//   std::string_view name;   as configs and command lines write it
//   std::string_view help;   one line for --help and docs/config.md
//
// Each member is listed once, in one of three forms:
//
//   ESPALIER_REGISTRY         members in files of their own; the kind's `registry.cpp` lists them
//   ESPALIER_CLASS_REGISTRY   the same, and code names members as constants of their class
//   pointers_into<kArray>     members are the elements of an array in one file
//
// Code that selects by name calls `find`; code that prints choices calls `names`.
// Adding a member: its file (or element), its name in the list, a row of a test.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "src/core/error.h"

namespace espalier {

template <class Entry>
using Registry = std::span<const Entry* const>;

template <class Entry, class... Members>
constexpr std::array<const Entry*, sizeof...(Members)> pointers_to(const Members&... members) {
  return {&members...};
}

/// Pointers to the elements of an array with static storage.
template <const auto& kMembers>
auto pointers_into() {
  using Entry = std::remove_cvref_t<decltype(kMembers[0])>;
  static constexpr auto kAll = [] {
    std::array<const Entry*, std::size(kMembers)> all{};
    std::ranges::transform(kMembers, all.begin(), [](const Entry& member) { return &member; });
    return all;
  }();
  return Registry<Entry>(kAll);
}

/// The list of a kind's members, which other files define: declares `all`, an array of pointers to
/// them.
#define ESPALIER_REGISTRY(all, Entry, ...) \
  extern const Entry __VA_ARGS__;          \
  constexpr auto all = ::espalier::pointers_to<Entry>(__VA_ARGS__)

/// The same within class Entry, whose static constants the members are: Entry::all.
#define ESPALIER_CLASS_REGISTRY(all, Entry, ...) \
  static const Entry __VA_ARGS__;                \
  static constexpr auto all = ::espalier::pointers_to<Entry>(__VA_ARGS__)

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
