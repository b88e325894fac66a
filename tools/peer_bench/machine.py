"""What a figure has to have beside it: the machine that it was measured on, and whether it was idle."""
import os
import platform

# A load average above this many processes for each core means that others compute beside the bench.
BUSY_LOAD_PER_CORE = 0.25


def cpu_model_in(cpuinfo):
    """Of the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return "unknown processor"


def memory_gib_in(meminfo):
    """Of the text of /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / (1 << 20), 1)
    return 0.0


def is_busy(load, cores):
    return load > BUSY_LOAD_PER_CORE * cores


def text_of(path, otherwise=""):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return otherwise


def describe():
    """The JSON object; `load_average` is of the last minute."""
    cores = len(os.sched_getaffinity(0))
    load = round(os.getloadavg()[0], 2)
    return {"cpu": cpu_model_in(text_of("/proc/cpuinfo")), "cores": cores, "kernel": platform.release(),
            "memory_gib": memory_gib_in(text_of("/proc/meminfo")), "load_average": load, "busy": is_busy(load, cores),
            "congestion_control": text_of("/proc/sys/net/ipv4/tcp_congestion_control", "unknown").strip()}


def sentence(machine):
    text = "%s, %d cores, %.1f GiB, Linux %s, congestion control %s; load average at the start %.2f" % (
        machine["cpu"], machine["cores"], machine["memory_gib"], machine["kernel"], machine["congestion_control"],
        machine["load_average"])
    return text + (" (**not idle**: other work took part of the processor, so the figures are only indicative)"
                   if machine["busy"] else " (idle)")
