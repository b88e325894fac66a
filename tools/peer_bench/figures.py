"""What measured rounds come to: medians, spreads, and ratios of pairs that were measured in the same round. Pure."""
import dataclasses
import statistics

OURS = "ours"


@dataclasses.dataclass(frozen=True)
class Sample:
    """One run of one contender. `ours_seconds` is ours in the same round and setting, None where that failed;
    `cpu_*` is None where it is not known."""
    seconds: float
    bytes: int
    holder_cpu_seconds: float = None
    readers_cpu_seconds: float = None
    ours_seconds: float = None
    ours_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all contenders of a table have alike."""
    readers: int
    congestion: str = ""  # empty: nothing crosses TCP

    def title(self):
        readers = "1 reader" if self.readers == 1 else "%d readers" % self.readers
        return readers + (", " + self.congestion if self.congestion else "")


def ratio_to_ours(sample):
    """Our rate over this contender's, in the same round: above 1 ours is faster. None without ours."""
    if sample.ours_seconds is None:
        return None
    return (sample.ours_bytes / sample.ours_seconds) / (sample.bytes / sample.seconds)


def cpu_per_gb(samples, readers, field):
    """The median processor seconds of one side for each GB that a reader received. None where one is not known."""
    values = [getattr(sample, field) for sample in samples]
    if not values or any(value is None for value in values):
        return None
    return statistics.median(value / (sample.bytes * readers / 1e9) for value, sample in zip(values, samples))


def summed(first, second):
    return None if first is None or second is None else first + second


def row(setting, contender, samples, failures):
    """The JSON object of one contender in one setting. `contender` has its name, title, version, note and whether the
    bytes are compared; `failures` are the texts of runs that failed."""
    result = {"peer": contender["name"], "title": contender["title"], "version": contender["version"],
              "readers": setting.readers, "congestion": setting.congestion, "rounds": len(samples),
              "verified": bool(samples) and contender["verified"], "note": contender["note"], "failures": failures}
    if not samples:
        return result
    seconds = [sample.seconds for sample in samples]
    ratios = [ratio for ratio in map(ratio_to_ours, samples) if ratio is not None]
    holder = cpu_per_gb(samples, setting.readers, "holder_cpu_seconds")
    readers = cpu_per_gb(samples, setting.readers, "readers_cpu_seconds")
    result.update(bytes=samples[0].bytes, last_reader_seconds=statistics.median(seconds), seconds_min=min(seconds),
                  seconds_max=max(seconds), last_reader_seconds_of_rounds=seconds,
                  gbytes_per_s=samples[0].bytes / statistics.median(seconds) / 1e9,
                  ratio=statistics.median(ratios) if ratios else None, ratio_min=min(ratios, default=None),
                  ratio_max=max(ratios, default=None), cpu_seconds_per_gb=summed(holder, readers),
                  holder_cpu_seconds_per_gb=holder, readers_cpu_seconds_per_gb=readers)
    return result
