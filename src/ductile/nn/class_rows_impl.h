#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

// What losses and their figures take from rows of class scores [N, K] and the rows' labels [N], one
// loop each. libtorch has an operator for every step, and with ten classes calling it takes longer
// than its work. Results have libtorch's bits, for every number of threads.
namespace ductile::nn {

// Whether the functions below can do it: contiguous fp32 scores on the CPU, int64 labels, all of
// them classes.
bool plain_class_rows(const at::Tensor& rows_NK, const at::Tensor& labels_N);

// factor * rows[i, labels[i]], [N].
at::Tensor scores_of_labels(const at::Tensor& rows_NK, const at::Tensor& labels_N, float factor);

// rows[i, k] = (rows[i, k] + (k == labels[i] ? shift : 0)) * scale[i], in place; scale [N] is fp32.
void shift_labels_and_scale(const at::Tensor& rows_NK, const at::Tensor& labels_N, float shift,
                            const at::Tensor& scale_N);

// How many labels are what argmax says: the first of the largest scores, where NaN is the largest.
int64_t num_labels_first(const at::Tensor& rows_NK, const at::Tensor& labels_N);

}  // namespace ductile::nn
