#!/usr/bin/env bash
# Takes the kernel and the modules of the machine for tests out of Debian's kernel package. Run by debian_repository in the
# root of @soft_roce_kernel, whose package is below unpacked/.
set -euo pipefail

modules=(
  virtio_pci virtio_console virtio_rng 9pnet_virtio 9p overlay # the machine's devices and files
  veth bridge sch_tbf sch_netem                                # its network, and its rates and delays
  crc32_generic rdma_rxe ib_uverbs rdma_ucm                    # Soft-RoCE (which asks for crc32 only once it runs)
)
/usr/bin/python3 take_kernel.py unpacked . "${modules[@]}"
/usr/bin/python3 cpio_archive.py modules.cpio modules=modules
rm -r unpacked modules take_kernel.py cpio_archive.py
