#pragma once

#include <cstdint>
#include <span>
#include <vector>

// A small dense linear programme, for policies and interpolation.
namespace ductile::sched {

enum class LinearStatus : uint8_t { optimal, infeasible, unbounded };

struct LinearResult {
  LinearStatus status = LinearStatus::infeasible;
  std::vector<double> x;  // one a column; a vertex, so at most as many above 0 as there are rows
  double objective = 0;
};

// Minimises cost.x subject to A x = b, x >= 0, by the two-phase simplex method on a dense tableau:
// O(rows * columns) per pivot, for up to some hundred rows. `matrix` is row-major, b.size() rows of
// cost.size() columns. Deterministic; ties go to the lowest column. Sizes that disagree throw
// invalid_argument.
LinearResult solve_linear(std::span<const double> matrix, std::span<const double> b,
                          std::span<const double> cost);

}  // namespace ductile::sched
