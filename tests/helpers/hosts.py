"""Hosts on one machine, for tests of clusters: each has processes, network, disk and name of its own.

A host is a set of Linux namespaces that a first process holds open. `/tmp`, which has the home and the cache,
is a disk of its own in memory. Hosts are joined by a switch, a bridge in a network namespace that nothing
else can reach, so addresses cannot collide with those of the machine or of another test. This needs root.

Nothing is left: when the process of a test ends, even by SIGKILL, the kernel kills the first process of each
host and with it all others, and removes interfaces and mounts with the namespaces.
As a program it is the gate before an object store, which logs requests, and refuses or delays them.
"""

import compileall
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import psutil

MARK = "automl-hosts-"  # with the id of the test's process, in the command line of each first process
TOOLS = ("ip", "mount", "nsenter", "setpriv", "unshare")
HOLD = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child"]
NAMESPACES = ["--mount", "--uts", "--net", "--pid"]
PATIENCE = 180.0  # seconds for whatever is waited for
DISK = 600  # megabytes of a host's disk

# The first process of a host. Arguments: its name, megabytes of its disk, folders that it sees below hidden
# ones. `/etc/hosts` is as Debian writes it. A shell that waits also reaps orphans.
FIRST = r"""
set -e
name=$1 size=$2; shift 2
hostname "$name"
mount -t tmpfs tmpfs /mnt
for hidden in /dev/shm /tmp; do
  new=/mnt/$(basename $hidden); mkdir "$new"; mount -t tmpfs -o size=${size}m,mode=1777 tmpfs "$new"
  for folder in "$@"; do case $folder in $hidden/*)
    seen=$new/${folder#$hidden/}; mkdir -p "$seen"; mount --rbind -o ro "$folder" "$seen";; esac; done
done
mount --move /mnt/shm /dev/shm
mount --move /mnt/tmp /tmp
umount /mnt
mkdir /tmp/home
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$name" > /tmp/home/.hosts
mount --bind /tmp/home/.hosts /etc/hosts
ip link set lo up
echo ready
while :; do sleep 1000000 & wait $!; done
"""


def why_not() -> str | None:
    """Return why this machine can make no hosts, or None."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "hosts need root on Linux"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"hosts need the program {missing[0]}"
    script = (
        "mount -t tmpfs tmpfs /mnt && ip link add s0 type bridge && ip link add v0 type veth peer name v1"
    )
    command = ["unshare", *NAMESPACES, "--fork", "--mount-proc", "sh", "-c", script]
    tried = subprocess.run(command, capture_output=True, text=True)
    return f"hosts need namespaces: {tried.stderr.strip()}" if tried.returncode else None


def until(condition: Callable[[], object], what: str, patience: float = PATIENCE, every: float = 0.2) -> None:
    """Wait until the condition is true. Raise TimeoutError with `what` after `patience` seconds."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {patience:g} s")
        time.sleep(every)


class Lab:
    """Hosts joined by a switch. Use as a context. All may read the folders `shared`, which have programs."""

    def __init__(self, shared: Sequence[Path | str]) -> None:
        self.shared = sorted({str(Path(folder).resolve()) for folder in shared})
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> "Lab":
        end_leftovers()
        self.switch, self.switch_pid = hold(["--net"], "echo ready; exec sleep infinity")
        self.wire("link", "add", "switch", "type", "bridge")
        self.wire("link", "set", "switch", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for host in self.hosts.values():
            host.kill()
        self.switch.kill()
        self.switch.wait()

    def wire(self, *arguments: object) -> None:
        """Run `ip` in the switch."""
        run_ip(self.switch_pid, *arguments)

    def add(self, name: str, disk: int = DISK) -> "Host":
        """Return a new host. Its address ends with its number, from 1 in the order of `add`."""
        host = self.hosts[name] = Host(self, name, len(self.hosts) + 1, disk)
        host.start()
        return host


class Host:
    """A host. `start` and `kill` are those of its plug: a started one has an empty disk."""

    def __init__(self, lab: Lab, name: str, number: int, disk: int) -> None:
        self.lab, self.name, self.disk = lab, name, disk
        self.address, self.plug = f"10.213.77.{number}", f"plug{number}"
        self.environment: dict[str, str] = {}
        self.entered: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        options = [*NAMESPACES, "--mount-proc"]
        self.holder, self.pid = hold(options, FIRST, self.name, str(self.disk), *self.lab.shared)
        self.lab.wire("link", "add", self.plug, "type", "veth", "peer", "name", "eth0", "netns", self.pid)
        self.lab.wire("link", "set", self.plug, "master", "switch", "up")
        run_ip(self.pid, "address", "add", f"{self.address}/24", "dev", "eth0")
        run_ip(self.pid, "link", "set", "eth0", "up")

    @property
    def runs(self) -> bool:
        return self.holder.poll() is None

    def kill(self) -> None:
        """End all its processes at once, and lose its disk. Other hosts hear nothing, as without power."""
        if self.runs:
            below = self.processes()
            self.lab.wire("link", "del", self.plug)
            self.thaw()
            os.kill(self.pid, signal.SIGKILL)
            self.holder.wait()
            psutil.wait_procs(below, timeout=30)
            while self.entered:
                self.entered.pop().wait(30)

    def cut(self) -> None:
        """Take its network away."""
        self.lab.wire("link", "set", self.plug, "down")

    def join(self) -> None:
        """Give its network back."""
        self.lab.wire("link", "set", self.plug, "up")

    def fill(self) -> None:
        """Fill its disk."""
        with suppress(OSError), self.path("/tmp/filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 20))

    def freeze(self) -> None:
        """Stop all its processes, until `thaw`."""
        stopped: set[int] = set()
        while new := [process for process in self.processes() if process.pid not in stopped]:
            for process in new:
                stopped.add(process.pid)
                with suppress(psutil.Error):
                    process.suspend()

    def thaw(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.resume()
        for entered in self.entered:  # nsenter stops with what it has started
            entered.send_signal(signal.SIGCONT)

    def path(self, inside: str) -> Path:
        """Return the path by which this process finds a file of the host."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def popen(self, *arguments: object, log: str | None = None) -> subprocess.Popen[str]:
        """Start a program in the home of the host. Its output goes to the file `log` there, or to a pipe."""
        inside = ["nsenter", f"--target={self.pid}", *NAMESPACES, "sh", "-c", 'cd && exec "$@"', "sh"]
        base = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        process = subprocess.Popen(
            [*inside, *map(str, arguments)],
            env={**base, "HOME": "/tmp/home", **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if log is None else self.path(f"/tmp/home/{log}").open("w"),
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.entered.append(process)
        return process

    def run(self, *arguments: object, patience: float = 60) -> str:
        """Return the output of a program that ends well."""
        process = self.popen(*arguments)
        output, _ = process.communicate(timeout=patience)
        assert process.returncode == 0, f"{self.name}: {output}"
        return output

    def processes(self, pattern: str = "") -> list[psutil.Process]:
        """Return its processes whose command lines match, without the first."""
        matches, mine = [], os.readlink(f"/proc/{self.pid}/ns/pid")
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != self.pid and os.readlink(f"/proc/{process.pid}/ns/pid") == mine:
                    name = " ".join(process.cmdline()) or process.name()
                    matches += [process] if re.search(pattern, name) else []
        return matches


def hold(namespaces: Sequence[str], script: str, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start the first process of namespaces. Return what ends with it, and its id, once it is ready."""
    holder = subprocess.Popen(
        [*HOLD, *namespaces, "bash", "-c", script, f"{MARK}{os.getpid()}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n", "a namespace was not made"
    return holder, int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text())


def run_ip(pid: int, *arguments: object) -> None:
    """Run `ip` in the network of a process."""
    command = ["nsenter", f"--target={pid}", "--net", "ip", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)


def end_leftovers() -> None:
    """Kill the first processes of tests that are gone, should the kernel have left any."""
    for process in psutil.process_iter(["cmdline"]):
        for argument in process.info["cmdline"] or ():
            owner = argument.removeprefix(MARK)
            if owner != argument and owner.isdecimal() and not psutil.pid_exists(int(owner)):
                process.kill()


def make_python(folder: Path, names: set[str], **scripts: str) -> None:
    """Make an environment in `folder`, with links to files and folders of this one's packages by name.

    `scripts` has programs, each with the module of its `main`.
    """
    venv.create(folder)
    target = next((folder / "lib").glob("python*/site-packages"))
    for name in names:
        (target / name).symlink_to(packages_folder() / name)
    for name, module in scripts.items():
        script = folder / "bin" / name
        script.write_text(f"#!{folder}/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        script.chmod(0o755)


def compile_packages(names: Sequence[str]) -> None:
    """Write missing bytecode of packages. Hosts cannot, and would compile them in each process."""
    for name in names:
        compileall.compile_dir(packages_folder() / name, quiet=2, workers=2)


def packages_folder() -> Path:
    return Path(psutil.__file__).parents[1]


def find_required(requirement: str) -> set[str]:
    """Return the names in the folder of packages of a package with extras, and of all that it requires."""
    waiting, seen, names = [requirement], set(), set()
    while waiting:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", waiting.pop()).groups()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        with suppress(PackageNotFoundError):
            package = distribution(name)
            names |= {Path(file).parts[0] for file in package.files or ()} - {".."}
            for line in package.requires or ():
                required, _, condition = line.partition(";")
                extra = re.search(r"extra\s*==\s*['\"](.+?)['\"]", condition)
                if extra is None or extra[1] in (extras or "").split(","):
                    waiting.append(required.strip())
    return names


def main(port: str, target: str, folder: str) -> None:
    """Forward connections from `port` to the port `target`, as the file `mode` in `folder` says.

    It holds `open`, `refuse` (503 to each request) or `slow`. Each request is a line of the file `requests`
    there: time, address, method, path and mode.
    """
    mode = Path(folder, "mode")
    mode.write_text("open")
    refusal = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    def forward(client: socket.socket, source: str) -> None:
        with client, socket.create_connection(("127.0.0.1", int(target))) as store:
            threading.Thread(target=pump, args=(store, client), daemon=True).start()
            pump(client, store, source)

    def pump(near: socket.socket, far: socket.socket, source: str = "") -> None:
        with suppress(OSError):
            while data := near.recv(1 << 16):
                now, request = mode.read_text(), re.match(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP", data)
                if source and request is not None:
                    print(time.time(), source, request[1].decode(), request[2].decode(), now, file=log)
                if source and now == "refuse":
                    near.sendall(refusal)
                    near.shutdown(socket.SHUT_WR)
                    near.settimeout(5)
                    while near.recv(1 << 16):
                        pass
                    break
                if now == "slow":
                    time.sleep(1 if request is not None else 0.05)
                far.sendall(data)
        for side in (near, far):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    with (
        Path(folder, "requests").open("a", buffering=1) as log,
        socket.create_server(("", int(port))) as server,
    ):
        while True:
            client, (source, _) = server.accept()
            threading.Thread(target=forward, args=(client, source), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
