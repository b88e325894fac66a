// Checks that say if weights can go to other hosts by RDMA. Pure.
#ifndef TH_DOCTOR_RDMA_CHECKS_H_
#define TH_DOCTOR_RDMA_CHECKS_H_

#include <string>
#include <vector>

#include "th/doctor/facts.h"
#include "th/doctor/finding.h"

namespace th::doctor {

// The checks rdma-devices, and where there is a device that TensorHub can use: rdma-library,
// rdma-access, rdma-ports, rdma-gids and rdma-mtu (of RoCE), locked-memory, gpu-rdma (with GPUs),
// and with a route rdma-route.
std::vector<Finding> CheckRdma(const HostFacts& facts);

// The name of a device's fabric if TensorHub cannot use it ("AWS EFA"), else empty.
std::string UnsupportedFabric(const RdmaDevice& device);

// The most bytes that a packet over RoCE carries where the network device's MTU is `net_mtu`: 256
// to 4096.
uint32_t RoceMtu(uint32_t net_mtu);

}  // namespace th::doctor

#endif  // TH_DOCTOR_RDMA_CHECKS_H_
