"""In which order a bench runs. Pure.

Every round runs every contender once in every setting that it runs in, so that what changes on the machine meanwhile changes all of them.
Odd rounds go backwards: nobody is always the one after the slowest.
"""


def rounds(settings, contenders, count):
    """(round, setting, contender) of every run, in order. All runs of a setting in one round are neighbours."""
    for number in range(count):
        for setting in settings:
            there = [contender for contender in contenders if contender.runs_in(setting)]
            for contender in there if number % 2 == 0 else reversed(there):
                yield number, setting, contender
