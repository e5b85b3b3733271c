#include "ductile/sched/linear_program.h"

#include <cmath>

#include "ductile/base/error.h"

namespace ductile::sched {
namespace {

constexpr double kEpsilon = 1e-9;
constexpr int kGreedyPivots = 5000;  // then Bland's rule, which cannot cycle

// Rows of [A | artificial | b]; the last row is the cost of what is being minimised.
class Tableau {
 public:
  Tableau(std::span<const double> matrix, std::span<const double> b, int columns)
      : rows_(static_cast<int>(b.size())), real_(columns), width_(columns + rows_ + 1) {
    cells_.assign(static_cast<size_t>(rows_ + 1) * width_, 0);
    for (int r = 0; r < rows_; ++r) {
      const double sign = b[r] < 0 ? -1 : 1;
      for (int c = 0; c < columns; ++c)
        at(r, c) = sign * matrix[static_cast<size_t>(r) * columns + c];
      at(r, columns + r) = 1;
      at(r, width_ - 1) = sign * b[r];
      basis_.push_back(columns + r);
    }
  }

  // Phase 1: drives the artificial variables out. False where the programme is infeasible.
  bool make_feasible() {
    for (int r = 0; r < rows_; ++r)
      for (int c = 0; c < width_; ++c)
        if (c < real_ || c == width_ - 1) at(rows_, c) -= at(r, c);
    run(real_);
    double scale = 1;
    for (int r = 0; r < rows_; ++r) scale = std::max(scale, std::abs(at(r, width_ - 1)));
    if (-at(rows_, width_ - 1) > 1e-7 * scale) return false;
    for (int r = 0; r < rows_; ++r) {
      if (basis_[r] < real_) continue;
      // An artificial variable at 0: any real column may take its row; none: the row is redundant.
      for (int c = 0; c < real_; ++c) {
        if (std::abs(at(r, c)) < 1e-7) continue;
        pivot(r, c);
        break;
      }
    }
    return true;
  }

  bool minimise(std::span<const double> cost) {
    for (int c = 0; c < width_; ++c) at(rows_, c) = c < real_ ? cost[c] : 0;
    for (int r = 0; r < rows_; ++r) {
      if (basis_[r] >= real_) continue;
      const double factor = cost[basis_[r]];
      for (int c = 0; c < width_; ++c) at(rows_, c) -= factor * at(r, c);
    }
    return run(real_);
  }

  std::vector<double> solution() const {
    std::vector<double> x(real_, 0);
    for (int r = 0; r < rows_; ++r)
      if (basis_[r] < real_) x[basis_[r]] = std::max(at(r, width_ - 1), 0.0);
    return x;
  }

 private:
  double& at(int r, int c) { return cells_[static_cast<size_t>(r) * width_ + c]; }
  double at(int r, int c) const { return cells_[static_cast<size_t>(r) * width_ + c]; }

  void pivot(int row, int column) {
    const double inverse = 1 / at(row, column);
    for (int c = 0; c < width_; ++c) at(row, c) *= inverse;
    at(row, column) = 1;
    for (int r = 0; r <= rows_; ++r) {
      const double factor = at(r, column);
      if (r == row || factor == 0) continue;
      for (int c = 0; c < width_; ++c) at(r, c) -= factor * at(row, c);
      at(r, column) = 0;
    }
    basis_[row] = column;
  }

  // False: unbounded.
  bool run(int columns) {
    for (int pivots = 0;; ++pivots) {
      const bool bland = pivots > kGreedyPivots;
      int enter = -1;
      double lowest = -kEpsilon;
      for (int c = 0; c < columns; ++c) {
        if (at(rows_, c) >= lowest) continue;
        enter = c;
        if (bland) break;
        lowest = at(rows_, c);
      }
      if (enter < 0) return true;
      int leave = -1;
      double least = 0;
      for (int r = 0; r < rows_; ++r) {
        if (at(r, enter) <= kEpsilon) continue;
        const double ratio = at(r, width_ - 1) / at(r, enter);
        if (leave < 0 || ratio < least - 1e-12 ||
            (ratio < least + 1e-12 && basis_[r] < basis_[leave])) {
          leave = r;
          least = ratio;
        }
      }
      if (leave < 0) return false;
      pivot(leave, enter);
    }
  }

  int rows_, real_, width_;
  std::vector<double> cells_;
  std::vector<int> basis_;
};

}  // namespace

LinearResult solve_linear(std::span<const double> matrix, std::span<const double> b,
                          std::span<const double> cost) {
  if (matrix.size() != b.size() * cost.size())
    fail(ErrorCode::invalid_argument, "a matrix of {} values for {} rows and {} columns",
         matrix.size(), b.size(), cost.size());
  LinearResult result;
  Tableau tableau(matrix, b, static_cast<int>(cost.size()));
  if (!tableau.make_feasible()) return result;
  if (!tableau.minimise(cost)) {
    result.status = LinearStatus::unbounded;
    return result;
  }
  result.status = LinearStatus::optimal;
  result.x = tableau.solution();
  for (size_t c = 0; c < cost.size(); ++c) result.objective += cost[c] * result.x[c];
  return result;
}

}  // namespace ductile::sched
