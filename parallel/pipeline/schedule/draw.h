#pragma once
// Pictures of a timeline: one row a rank, time to the right.
//
//   text   a letter for each kind and the micro-batch where it fits: F forward, B backward,
//          I input part, W weight part, · idle
//   SVG    boxes coloured by kind, numbered by micro-batch; light and dark shades for chunks
#include <string>

#include "parallel/pipeline/schedule/simulate.h"

namespace espalier::parallel {

/// At most `columns` characters wide.
std::string draw_text(const Timeline& timeline, int columns = 120);
std::string draw_svg(const Timeline& timeline, const std::string& title);

}  // namespace espalier::parallel
