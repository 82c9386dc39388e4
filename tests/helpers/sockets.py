"""List the addresses that a process and its children listen on."""

from ipaddress import ip_address

import psutil


def open_to_others(pid: int) -> list[tuple[str, str]]:
    """The name of a process and the address, for each that other machines could reach."""
    addresses = []
    process = psutil.Process(pid)
    for process_or_child in (process, *process.children(recursive=True)):
        try:
            sockets = process_or_child.net_connections("inet")
            name = " ".join(process_or_child.cmdline()).strip()
        except psutil.Error:  # has ended meanwhile
            continue
        for socket in sockets:
            address = ip_address(socket.laddr.ip) if socket.status == psutil.CONN_LISTEN else None
            if address is not None and not (getattr(address, "ipv4_mapped", None) or address).is_loopback:
                addresses.append((name, f"{socket.laddr.ip}:{socket.laddr.port}"))
    return addresses
