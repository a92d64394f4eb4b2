"""GPU use through NVIDIA's management library, which the driver brings along: a call costs far less than nvidia-smi."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Self

_MOST_PROCESSES = 256
_INSUFFICIENT_SIZE = 7


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    # nvmlProcessInfo_v2_t, which nvmlDeviceGetComputeRunningProcesses_v3 fills.
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The GPUs of this machine; :meth:`open` answers None where there is no driver or no GPU."""

    def __init__(self, library: Any, devices: Sequence[Any]) -> None:
        self._library = library
        self._devices = devices

    @classmethod
    def open(cls) -> Self | None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2():
                return None
        except (OSError, AttributeError):
            return None
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            if not library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
                devices.append(device)
        return cls(library, devices) if devices else None

    def read(self, pids: Sequence[int] | None) -> tuple[float, int] | None:
        """See :class:`hotfire.runtime.observe.samples.Gpus`. What a GPU does not tell (under MIG) counts as nothing."""
        percent, used = 0.0, 0
        for device in self._devices:
            if pids is not None and not set(pids) & self._processes(device):
                continue
            utilization, memory = _Utilization(), _Memory()
            if not self._library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization)):
                percent += utilization.gpu
            if not self._library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
                used += memory.used
        return percent, used

    def _processes(self, device: Any) -> set[int]:
        count = ctypes.c_uint(_MOST_PROCESSES)
        found = (_Process * _MOST_PROCESSES)()
        function = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if function is None or function(device, ctypes.byref(count), found) not in (
            0,
            _INSUFFICIENT_SIZE,
        ):
            return set()
        return {one.pid for one in found[: min(count.value, _MOST_PROCESSES)]}
