// Facts that the kernel shows in files.
#ifndef TH_DOCTOR_FILE_FACTS_H_
#define TH_DOCTOR_FILE_FACTS_H_

#include "th/doctor/facts.h"
#include "th/doctor/host_files.h"

namespace th::doctor {

// RDMA devices, limits of this process, TCP's settings, network devices and so on. What needs a
// system call or a library is not in it. Never fails: what is not there is absent. Reads files, so
// it may block where /proc or /sys does. Thread-safe.
HostFacts ReadFileFacts(const HostFiles& files);

}  // namespace th::doctor

#endif  // TH_DOCTOR_FILE_FACTS_H_
