#pragma once

// The few declarations of the CUDA runtime that nccl_communicator.cc uses, for machines without it;
// see nccl.h beside.
extern "C" {

typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600
} cudaError_t;
typedef struct CUstream_st* cudaStream_t;

cudaError_t cudaSetDevice(int device);
cudaError_t cudaStreamQuery(cudaStream_t stream);
const char* cudaGetErrorString(cudaError_t error);
}
