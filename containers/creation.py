"""A container as the SDK describes one."""

from __future__ import annotations

from typing import Any

from hotfire.containers.values import Creation, Joined


def host_config(client: Any, wanted: Creation) -> Any:
    from docker.types import DeviceRequest, Mount, Ulimit

    limits = wanted.limits
    gpus = DeviceRequest(count=limits.gpus, capabilities=[["gpu"]])
    values: dict[str, Any] = {
        "mounts": [
            Mount(
                target=bind.target,
                source=bind.source,
                type="volume" if bind.volume else "bind",
                read_only=bind.read_only,
                no_copy=bind.volume,
            )
            for bind in wanted.binds
        ],
        "init": wanted.init,
        "shm_size": limits.shm_bytes,
        "ulimits": [
            Ulimit(name=name, soft=value, hard=value) for name, value in limits.ulimits.items()
        ],
        "nano_cpus": round(limits.cpus * 1e9) if limits.cpus else None,
        "mem_limit": limits.memory_bytes,
        "devices": [f"{device}:{device}:rwm" for device in limits.devices],
        "device_requests": [gpus] if limits.gpus else None,
        "cap_add": list(limits.capabilities) or None,
        # Nothing restarts a container of a training job (contract 1.1).
        "restart_policy": {"Name": "no"},
    }
    if wanted.shares_network_of:
        values["network_mode"] = f"container:{wanted.shares_network_of}"
    elif wanted.joined:
        values["network_mode"] = wanted.joined.network
        values["extra_hosts"] = dict(wanted.joined.others)
    else:
        values["network_mode"] = "none"
    return client.create_host_config(**values)


def networking(client: Any, joined: Joined | None) -> Any:
    if joined is None:
        return None
    endpoint = client.create_endpoint_config(
        aliases=list(joined.aliases), ipv4_address=joined.address
    )
    return client.create_networking_config({joined.network: endpoint})
