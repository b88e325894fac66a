// A tensor as its owner registers it.
#ifndef TH_CLIENT_TENSOR_H_
#define TH_CLIENT_TENSOR_H_

#include "th/weights/tensor.h"

namespace th {

// A tensor: what it is (TensorSpec) and where its bytes lie in this process.
struct Tensor : TensorSpec {
  void* data = nullptr;  // may be null only when it has no bytes
};

}  // namespace th

#endif  // TH_CLIENT_TENSOR_H_
