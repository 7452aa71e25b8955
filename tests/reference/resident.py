"""What of a process is resident: two of Linux's own figures, which are of the program it runs now and of no other.

(`ru_maxrss` would not do: it survives exec, so a child begins with what its parent had.)
"""

from pathlib import Path


class Resident:
    """Bytes that are resident now, and that were at the most (`VmRSS` and `VmHWM`)."""

    def __init__(self, process="self"):
        """Raises `OSError` or `KeyError` if there is no such process any more."""
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        figures = dict(line.split(":", 1) for line in lines)
        self.now, self.peak = (int(figures[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
