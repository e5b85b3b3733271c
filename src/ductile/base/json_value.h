#pragma once

#include <nlohmann/json.hpp>

// nlohmann::json, whose code is compiled once (json_value.cc) and not in each of the hundred
// sources that use it: one that includes this in place of <nlohmann/json.hpp> takes a seventh less
// time to compile.
extern template class nlohmann::basic_json<>;
