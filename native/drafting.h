// What the sources of the module `_drafting` have of each other.
#pragma once
#include <nanobind/nanobind.h>

namespace outrider {

void define_weighing(nanobind::module_& module);  // weighing.cpp

}  // namespace outrider
