// TH_KERNEL marks functions that kernels consist of: device functions where nvcc compiles them,
// ordinary inline functions where the host's compiler does.
#ifndef TH_MEMORY_CUDA_KERNELS_EXECUTION_SPACE_H_
#define TH_MEMORY_CUDA_KERNELS_EXECUTION_SPACE_H_

#ifdef __CUDACC__
#define TH_KERNEL __device__ __forceinline__
#define TH_KERNEL_TABLE __constant__ const
#define TH_UNROLL _Pragma("unroll")
#else
#define TH_KERNEL inline
#define TH_KERNEL_TABLE inline constexpr
#define TH_UNROLL
#endif

#endif  // TH_MEMORY_CUDA_KERNELS_EXECUTION_SPACE_H_
