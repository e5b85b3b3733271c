#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>

#include "ductile/nn/class_rows_impl.h"

namespace ductile::nn {
namespace {

constexpr int64_t kSerialScores = 32768;  // below which a team costs more than it gives

bool is_plain(const at::Tensor& t, at::ScalarType type) {
  return t.device().is_cpu() && t.layout() == at::kStrided && t.scalar_type() == type &&
         t.is_contiguous();
}

bool is_first_largest(const float* row, int64_t size, int64_t label) {
  const float score = row[label];
  if (std::isnan(score))
    return std::none_of(row, row + label, [](float x) { return std::isnan(x); });
  bool first = true;  // no branch: loops over many classes become vectors
  for (int64_t k = 0; k < label; ++k) first &= row[k] < score;
  for (int64_t k = label + 1; k < size; ++k) first &= row[k] <= score;
  return first;
}

}  // namespace

bool plain_class_rows(const at::Tensor& rows_NK, const at::Tensor& labels_N) {
  if (!is_plain(rows_NK, at::kFloat) || !is_plain(labels_N, at::kLong) || rows_NK.dim() != 2 ||
      labels_N.dim() != 1 || labels_N.size(0) != rows_NK.size(0))
    return false;
  const int64_t* const labels = labels_N.data_ptr<int64_t>();
  const int64_t classes = rows_NK.size(1);
  return std::all_of(labels, labels + labels_N.size(0),
                     [classes](int64_t label) { return label >= 0 && label < classes; });
}

at::Tensor scores_of_labels(const at::Tensor& rows_NK, const at::Tensor& labels_N, float factor) {
  const int64_t rows = rows_NK.size(0), classes = rows_NK.size(1);
  at::Tensor out = at::empty({rows}, rows_NK.options());
  const float* const from = rows_NK.data_ptr<float>();
  const int64_t* const labels = labels_N.data_ptr<int64_t>();
  float* const to = out.data_ptr<float>();
  for (int64_t i = 0; i < rows; ++i) to[i] = from[i * classes + labels[i]] * factor;
  return out;
}

void shift_labels_and_scale(const at::Tensor& rows_NK, const at::Tensor& labels_N, float shift,
                            const at::Tensor& scale_N) {
  const int64_t rows = rows_NK.size(0), classes = rows_NK.size(1), step = scale_N.stride(0);
  float* const data = rows_NK.data_ptr<float>();
  const int64_t* const labels = labels_N.data_ptr<int64_t>();
  const float* const scales = scale_N.data_ptr<float>();
#pragma omp parallel for schedule(static) if (rows * classes > kSerialScores)
  for (int64_t i = 0; i < rows; ++i) {
    float* const row = data + i * classes;
    const float scale = scales[i * step];
    row[labels[i]] += shift;
    for (int64_t k = 0; k < classes; ++k) row[k] *= scale;
  }
}

int64_t num_labels_first(const at::Tensor& rows_NK, const at::Tensor& labels_N) {
  const int64_t rows = rows_NK.size(0), classes = rows_NK.size(1);
  const float* const data = rows_NK.data_ptr<float>();
  const int64_t* const labels = labels_N.data_ptr<int64_t>();
  int64_t count = 0;
#pragma omp parallel for schedule(static) reduction(+ : count) if (rows * classes > kSerialScores)
  for (int64_t i = 0; i < rows; ++i)
    count += is_first_largest(data + i * classes, classes, labels[i]) ? 1 : 0;
  return count;
}

}  // namespace ductile::nn
