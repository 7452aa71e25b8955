"""The resident set of a process: two figures of Linux that exec resets.

(Not `ru_maxrss`: it survives exec, so a child starts with its parent's peak.)
"""

from pathlib import Path


class Resident:
    """Resident bytes now and at the peak (`VmRSS` and `VmHWM`)."""

    def __init__(self, process="self"):
        """Raises `OSError` or `KeyError` if the process has ended."""
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        figures = dict(line.split(":", 1) for line in lines)
        self.now, self.peak = (int(figures[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
