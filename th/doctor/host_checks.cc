#include "th/doctor/host_checks.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "th/command_line/quantity.h"

namespace th::doctor {
namespace {

// Errors of cuInit (CUresult) that have a cure of their own.
constexpr int kCudaNoDevice = 100, kCudaNotReady = 802, kCudaDriverMismatch = 803;
// Values of kernel.yama.ptrace_scope: everyone of the same user, parents, administrators, nobody.
constexpr int kYamaParents = 1, kYamaNobody = 3;
// NCCL and the data loaders of frameworks take some hundred megabytes a rank.
constexpr uint64_t kLeastSharedMemoryBytes = 1 << 30;
// A transfer has a few connections and a server one for each worker.
constexpr uint64_t kLeastOpenFiles = 1024, kGoodOpenFiles = 8192;

std::string CudaVersion(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

// "8 x NVIDIA H100 80GB HBM3".
std::string NamesOf(const std::vector<Gpu>& gpus) {
  std::map<std::string, int> counts;
  for (const Gpu& gpu : gpus) ++counts[gpu.name.empty() ? "unnamed GPU" : gpu.name];
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& each) {
    absl::StrAppend(out, each.second, " x ", each.first);
  });
}

Finding GpusNotInitialised(const GpuFacts& gpu) {
  Finding finding = {.check = "gpus", .verdict = Verdict::kProblem};
  finding.found = absl::StrCat("CUDA cannot be initialised (error ", gpu.init_error, ")");
  finding.means = "weights in GPU memory cannot be published or received";
  switch (gpu.init_error) {
    case kCudaNoDevice:
      finding.verdict = Verdict::kNote;
      finding.found = "CUDA's driver library shows no GPU";
      finding.means = "weights are kept in host memory alone";
      finding.advice =
          "nothing, if that is meant; else look at CUDA_VISIBLE_DEVICES, and at what the container "
          "is given (--gpus)";
      break;
    case kCudaNotReady:
      finding.advice =
          "start NVIDIA's fabric manager on the host (systemctl start "
          "nvidia-fabricmanager), then try again";
      break;
    case kCudaDriverMismatch:
      finding.advice =
          "libcuda and the kernel's driver are of different versions: take the libcuda of the "
          "driver that is loaded, or reboot after an update";
      break;
    default:
      finding.advice = "run nvidia-smi, which says more, and look at dmesg";
  }
  return finding;
}

Finding GpusWithoutLibrary(const GpuFacts& gpu) {
  Finding finding = {.check = "gpus"};
  if (gpu.device_files > 0) {
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrCat(gpu.device_files, " GPUs, but ", gpu.library.error);
    finding.means = "weights in GPU memory cannot be published or received";
    finding.advice =
        "install the driver's libcuda (Debian: libcuda1); in a container let NVIDIA's runtime "
        "bring "
        "it (NVIDIA_DRIVER_CAPABILITIES=compute,utility)";
  } else if (!gpu.kernel_driver.empty()) {
    finding.verdict = Verdict::kNote;
    finding.found =
        absl::StrCat("the kernel has NVIDIA's driver ", gpu.kernel_driver, ", but no GPU is shown");
    finding.means = "weights are kept in host memory alone";
    finding.advice = "nothing, if that is meant; else give the container GPUs (--gpus all)";
  } else {
    finding.found = "none";
    finding.means = "weights are kept in host memory alone";
  }
  return finding;
}

}  // namespace

Finding CheckGpus(const GpuFacts& gpu) {
  if (!gpu.library.opened) return GpusWithoutLibrary(gpu);
  if (gpu.init_error != 0) return GpusNotInitialised(gpu);
  Finding finding = {.check = "gpus"};
  finding.found =
      absl::StrCat(NamesOf(gpu.gpus), "; the driver has CUDA ", CudaVersion(gpu.driver_version));
  if (gpu.driver_version < kLeastCudaVersion) {
    finding.verdict = Verdict::kProblem;
    finding.means = absl::StrCat("TensorHub's kernels need CUDA ", CudaVersion(kLeastCudaVersion),
                                 ": weights in GPU memory cannot be published or received");
    finding.advice = "update the driver to 580 or later";
    return finding;
  }
  finding.means = "weights may be in GPU memory";
  return finding;
}

Finding CheckMemoryOfOthers(const ProcessFacts& process) {
  Finding finding = {.check = "process-memory", .verdict = Verdict::kNote};
  finding.means = "processes of this host send each other weights over TCP, with two copies";
  if (process.read_memory_error != 0) {
    finding.found =
        absl::StrCat("the kernel refuses process_vm_readv: ", strerror(process.read_memory_error));
    finding.advice =
        "allow process_vm_readv in the container's seccomp profile, or give it "
        "CAP_SYS_PTRACE (--cap-add SYS_PTRACE)";
    return finding;
  }
  const int scope = process.yama_scope.value_or(0);
  if (scope >= kYamaNobody) {
    finding.found = absl::StrCat("kernel.yama.ptrace_scope is ", scope, ": nobody may");
    finding.advice =
        "set it to 0 where it is set at boot (/etc/sysctl.d), and reboot: a running "
        "kernel does not go back";
    return finding;
  }
  if (scope >= kYamaParents && !process.may_trace_others) {
    finding.found = absl::StrCat("kernel.yama.ptrace_scope is ", scope);
    finding.advice = "sysctl kernel.yama.ptrace_scope=0, or give the readers CAP_SYS_PTRACE";
    return finding;
  }
  finding.verdict = Verdict::kOk;
  finding.found = scope == 0 ? "processes of one user may read each other's memory"
                             : "this process may read others' memory (CAP_SYS_PTRACE)";
  finding.means = "weights move within the host with one copy";
  return finding;
}

Finding CheckSharedMemory(const MemoryFacts& memory) {
  Finding finding = {.check = "shared-memory", .verdict = Verdict::kNote};
  finding.means = "engines and collectives beside TensorHub may fail for want of shared memory";
  finding.advice =
      "enlarge it: mount -o remount,size=16G /dev/shm; --shm-size for a container; an emptyDir of "
      "medium Memory in Kubernetes";
  if (!memory.shared_memory.has_value()) {
    finding.found = "there is no /dev/shm";
    return finding;
  }
  const FileSystemSize& size = *memory.shared_memory;
  finding.found = absl::StrCat("/dev/shm has ", FormatBytes(size.total_bytes), ", ",
                               FormatBytes(size.free_bytes), " free");
  if (size.total_bytes < kLeastSharedMemoryBytes) return finding;
  if (size.free_bytes < kLeastSharedMemoryBytes) {
    finding.advice = "remove what dead processes have left there (ls -l /dev/shm), or enlarge it";
    return finding;
  }
  finding.verdict = Verdict::kOk;
  finding.means = "there is room for engines and collectives beside TensorHub";
  finding.advice.clear();
  return finding;
}

Finding CheckHugePages(const MemoryFacts& memory) {
  Finding finding = {.check = "huge-pages"};
  const std::string& own = memory.transparent_huge_pages;
  const std::string& shared = memory.shared_huge_pages;
  if (own.empty()) {
    finding.verdict = Verdict::kNote;
    finding.found = "the kernel has no transparent huge pages";
    finding.means = "memory consists of small pages: filling and registering it takes longer";
    finding.advice = "nothing on this kernel";
    return finding;
  }
  finding.found = absl::StrCat("transparent huge pages: ", own,
                               "; of shared memory: ", shared.empty() ? "not shown" : shared);
  std::vector<std::string> commands;
  if (own == "never") {
    commands.push_back("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  }
  if (shared.empty() || shared == "never" || shared == "deny") {
    commands.push_back("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  }
  if (commands.empty()) {
    finding.means = "TensorHub's arenas, which are shared memory, take them";
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.means = own == "never"
                      ? "memory consists of small pages: filling and registering it takes longer"
                      : "arenas, which are shared memory, consist of small pages: filling and "
                        "registering them takes longer";
  finding.advice = absl::StrCat("as root: ", absl::StrJoin(commands, "; "));
  return finding;
}

Finding CheckOpenFiles(const ProcessFacts& process) {
  Finding finding = {.check = "open-files"};
  finding.advice =
      "raise it: ulimit -n 65536; LimitNOFILE= in a systemd unit; --ulimit nofile for a "
      "container";
  if (!process.open_files.has_value()) {
    finding.verdict = Verdict::kNote;
    finding.found = "the limit cannot be read";
    finding.means = "if it is low, connections are refused";
    return finding;
  }
  const Limit limit = *process.open_files;
  finding.found = limit.soft == kUnlimited
                      ? "no limit"
                      : absl::StrCat("at most ", limit.soft, " files and connections a process");
  if (limit.soft < kLeastOpenFiles) {
    finding.verdict = Verdict::kProblem;
    finding.means = "a source that many read from runs out of them, and its readers go elsewhere";
  } else if (limit.soft < kGoodOpenFiles && limit.hard >= kGoodOpenFiles) {
    finding.means = "enough for a worker; a server raises its own to the hard limit";
    finding.advice.clear();
  } else if (limit.soft < kGoodOpenFiles) {
    finding.verdict = Verdict::kNote;
    finding.means = "enough for a worker; a server takes no more workers than the hard limit";
  } else {
    finding.means = "enough for workers and server";
    finding.advice.clear();
  }
  return finding;
}

Finding CheckClockSource(const ClockFacts& clock) {
  Finding finding = {.check = "clock-source"};
  const std::string& source = clock.source;
  const bool slow = source == "hpet" || source == "acpi_pm" || source == "jiffies" ||
                    source == "refined-jiffies" || source == "xen";
  finding.found = source.empty() ? "not shown by the kernel" : source;
  if (slow) {
    finding.verdict = Verdict::kNote;
    finding.means =
        "reading the time is a system call or slower: transfers of small segments suffer";
    finding.advice =
        "see in dmesg why the kernel does not trust the processor's counter (tsc); on a "
        "virtual machine choose the hypervisor's own clock (kvm-clock)";
    return finding;
  }
  finding.means = "reading the time is cheap";
  if (source.empty()) finding.means = "nothing is known against it";
  return finding;
}

Finding CheckClockSynchronisation(const ClockFacts& clock) {
  Finding finding = {.check = "clock-synchronisation"};
  if (clock.synchronised.value_or(false)) {
    finding.found =
        absl::StrCat("synchronised, within ", clock.max_error_us.value_or(0) / 1000, " ms");
    finding.means = "times in events and logs of several hosts can be compared";
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.found =
      clock.synchronised.has_value() ? "the clock is not synchronised" : "the kernel does not say";
  finding.means =
      "times in events and logs of several hosts cannot be compared; leases are not "
      "concerned, they go by each host's own clock";
  finding.advice = "run chrony or systemd-timesyncd on the host";
  return finding;
}

}  // namespace th::doctor
