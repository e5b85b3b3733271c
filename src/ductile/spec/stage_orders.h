#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ductile::spec {

// A unit of work of one pipeline stage on one micro-batch.
enum class Task : uint8_t {
  forward,          // 'F'
  backward,         // 'B': the whole one (kFkB), or only the input part (zero-bubble)
  backward_weight,  // 'W': zero-bubble only
};

std::string to_letters(std::span<const Task> order);  // "F4BFBFB4": letter, count if > 1
// Throws invalid_argument that names the stage: for another letter, or more than `most` tasks.
std::vector<Task> order_from_letters(std::string_view letters, int stage, int64_t most);

}  // namespace ductile::spec
