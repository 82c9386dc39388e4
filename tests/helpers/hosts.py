"""Hosts on one machine, for tests of clusters: each has processes, network, disk and name of its own.

A host is a set of Linux namespaces that a first process holds open. `/tmp`, which has the home and the cache, is a
disk of its own in memory. Hosts are joined by a switch, a bridge in a network namespace that nothing else can reach,
so addresses cannot collide with those of the machine or of another test. All need root, and no daemon.

Nothing can be left: when the process of a test ends, even by SIGKILL, the kernel kills the first process of each host
and with it all others, and removes interfaces and mounts with the namespaces.

`python hosts.py gate` is what stands before an object store: it logs requests, and refuses or delays them.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import psutil

MARK = "automl-hosts-"  # with the id of the test's process, in the command line of each first process
NETWORK = "10.213.77"
TOOLS = ("ip", "mount", "nsenter", "setpriv", "unshare")
HOLD = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child"]
NAMESPACES = ["--mount", "--uts", "--net", "--pid"]
PATIENCE = 180.0  # seconds for whatever is waited for
DISK = 600  # megabytes of a host's disk

# The first process of a host. Arguments: its name, megabytes of its disk, folders that it sees below hidden ones.
FIRST = """
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
printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n' "$name" > /tmp/home/.hosts  # as Debian writes it
mount --bind /tmp/home/.hosts /etc/hosts
ip link set lo up
echo ready
while :; do sleep 1000000 & wait $!; done  # a shell that waits also reaps orphans
"""


def why_not() -> str | None:
    """Return why this machine can make no hosts, or None."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "hosts need root on Linux"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"hosts need the program {missing[0]}"
    script = "mount -t tmpfs tmpfs /mnt && ip link add s0 type bridge && ip link add v0 type veth peer name v1"
    tried = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "--mount-proc", "sh", "-c", script], capture_output=True, text=True
    )
    return f"hosts need namespaces: {tried.stderr.strip()}" if tried.returncode else None


def until(condition: Callable[[], object], what: str, patience: float = PATIENCE, every: float = 0.2) -> None:
    """Wait until the condition is true. Raise TimeoutError with `what` after `patience` seconds."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {patience:g} s")
        time.sleep(every)


class Lab:
    """Hosts joined by a switch. Use as a context.

    shared: folders with programs that all hosts may read.
    """

    def __init__(self, shared: Sequence[Path]) -> None:
        self.shared = sorted({str(Path(folder).resolve()) for folder in shared})
        self.hosts: dict[str, Host] = {}
        self.mark = f"{MARK}{os.getpid()}"

    def __enter__(self) -> "Lab":
        end_leftovers()
        self.switch = subprocess.Popen(
            [*HOLD, "--net", "bash", "-c", "echo ready; exec sleep infinity", self.mark],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.switch_pid = _first(self.switch)
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
        _run("nsenter", f"--target={self.switch_pid}", "--net", "ip", *map(str, arguments))

    def add(self, name: str, disk: int = DISK) -> "Host":
        """Return a new host. Its address ends with its number, from 1 in the order of `add`."""
        host = self.hosts[name] = Host(self, name, len(self.hosts) + 1, disk)
        host.start()
        return host


class Host:
    """A host. `start` and `kill` are those of its plug: a started one has an empty disk."""

    def __init__(self, lab: Lab, name: str, number: int, disk: int) -> None:
        self.lab, self.name, self.number, self.disk = lab, name, number, disk
        self.address, self.plug = f"{NETWORK}.{number}", f"plug{number}"
        self.environment: dict[str, str] = {}
        self.holder: subprocess.Popen[bytes] | None = None
        self.entered: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        script = [*HOLD, *NAMESPACES, "--mount-proc", "bash", "-c", FIRST, self.lab.mark]
        self.holder = subprocess.Popen(
            [*script, self.name, str(self.disk), *self.lab.shared],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.pid = _first(self.holder)
        ours = ("type", "veth", "peer", "name", "eth0", "netns", self.pid)
        self.lab.wire("link", "add", self.plug, *ours)
        self.lab.wire("link", "set", self.plug, "master", "switch", "up")
        inside = ("nsenter", f"--target={self.pid}", "--net", "ip")
        _run(*inside, "address", "add", f"{self.address}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")

    def kill(self) -> None:
        """End all its processes at once, and lose its disk."""
        if self.holder is not None and self.holder.poll() is None:
            below = self.processes()
            self.thaw()
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.holder.wait()
            psutil.wait_procs(below, timeout=30)

    def cut(self) -> None:
        """Take its network away."""
        self.lab.wire("link", "set", self.plug, "down")

    def join(self) -> None:
        """Give its network back."""
        self.lab.wire("link", "set", self.plug, "up")

    def fill(self) -> None:
        """Fill its disk."""
        with self.path("/tmp/filler").open("wb") as filler, suppress(OSError):
            while True:
                filler.write(bytes(1 << 20))
                filler.flush()

    def empty(self) -> None:
        """Take away what `fill` has written."""
        self.path("/tmp/filler").unlink()

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

    def command(self, *arguments: object) -> list[str]:
        """Return the command that runs `arguments` on the host, in its home."""
        inside = ["nsenter", f"--target={self.pid}", *NAMESPACES, "sh", "-c", 'cd && exec "$@"', "sh"]
        return [*inside, *map(str, arguments)]

    def popen(self, *arguments: object, log: str | None = None, **options: object) -> subprocess.Popen[str]:
        """Start a program on the host. Its output goes to the file `log` in the home, or to a pipe."""
        base = {name: os.environ[name] for name in ("PATH", "LANG", "OMP_NUM_THREADS") if name in os.environ}
        target = subprocess.PIPE if log is None else self.path(f"/tmp/home/{log}").open("w")
        process = subprocess.Popen(
            self.command(*arguments), env={**base, "HOME": "/tmp/home", **self.environment}, text=True,
            stdin=subprocess.DEVNULL, stdout=target, stderr=subprocess.STDOUT, **options,
        )  # type: ignore[call-overload] # fmt: skip
        self.entered.append(process)
        return process

    def run(self, *arguments: object, patience: float = 500) -> str:
        """Return the output of a program that ends well."""
        process = self.popen(*arguments)
        output, _ = process.communicate(timeout=patience)
        assert process.returncode == 0, f"{self.name}: {output}"
        return output

    def processes(self, pattern: str = "") -> list[psutil.Process]:
        """Return its processes whose command lines match, without the first."""
        found = []
        mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if os.readlink(f"/proc/{process.pid}/ns/pid") != mine or process.ppid() == self.holder.pid:
                    continue
                if re.search(pattern, " ".join(process.cmdline()) or process.name()):
                    found.append(process)
        return found


def _first(holder: subprocess.Popen[bytes]) -> int:
    """Return the id of the process that a holder has started, once it is ready."""
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n", "a namespace was not made"
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    return int(children.read_text())


def _run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def end_leftovers() -> list[int]:
    """Kill the first processes of tests that are gone, should the kernel have left any. Return their ids."""
    ended = []
    for process in psutil.process_iter(["cmdline"]):
        for argument in process.info["cmdline"] or ():
            owner = argument.removeprefix(MARK)
            if argument.startswith(MARK) and owner.isdecimal() and not psutil.pid_exists(int(owner)):
                with suppress(psutil.Error):
                    process.kill()
                    ended.append(process.pid)
    return ended


# -- programs


def make_python(folder: Path, packages: Sequence[str] | None, without: Sequence[str] = ()) -> Path:
    """Make an environment in `folder` with packages of this one: all, or some with what they require.

    Files are links. Returns its `python`.
    """
    import venv

    venv.create(folder)
    here = Path(psutil.__file__).parents[1]
    target = next((folder / "lib").glob("python*/site-packages"))
    names = {path.name for path in here.iterdir()} if packages is None else _closure(packages)
    for name in names:
        if name not in without and "attention_automl" not in name and (here / name).exists():
            (target / name).symlink_to(here / name)
    for script in ("ray", "mlflow"):
        text = f"#!{folder}/bin/python\nimport sys\nfrom {SCRIPTS[script]}\nsys.exit(main())\n"
        (folder / "bin" / script).write_text(text)
        (folder / "bin" / script).chmod(0o755)
    return folder / "bin" / "python"


SCRIPTS = {"ray": "ray.scripts.scripts import main", "mlflow": "mlflow.cli import cli as main"}


def _closure(packages: Sequence[str]) -> set[str]:
    """Return what packages and their requirements have in the folder of packages."""
    open_names, seen, names = [*packages], set(), set()
    while open_names:
        requirement = open_names.pop()
        name, _, extra = re.match(r"([\w.-]+)(\[([\w,-]+)\])?", requirement).groups()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        with suppress(PackageNotFoundError):
            found = distribution(name)
            names |= {Path(file).parts[0] for file in found.files or () if Path(file).parts[0] != ".."}
            for line in found.requires or ():
                condition = line.partition(";")[2]
                wanted = re.search(r"extra\s*==\s*['\"](.+?)['\"]", condition)
                if wanted is None or wanted[1] in (extra or "").split(","):
                    open_names.append(line.partition(";")[0].strip())
    return names


# -- the gate before an object store


def main(port: str, target: str, folder: str) -> None:
    """Forward connections from `port` to the port `target`, as the file `mode` in `folder` says.

    It holds `open`, `refuse` (503 to each request) or `slow`. Each request is a line of the file `requests` there:
    time, address, method and path.
    """
    mode, log = Path(folder, "mode"), Path(folder, "requests").open("a", buffering=1)
    mode.write_text("open")
    server = socket.create_server(("", int(port)), backlog=100)

    def forward(client: socket.socket, source: str) -> None:
        with client, socket.create_connection(("127.0.0.1", int(target))) as store, suppress(OSError):
            threading.Thread(target=pump, args=(store, client), daemon=True).start()
            pump(client, store, source)

    def pump(near: socket.socket, far: socket.socket, source: str | None = None) -> None:
        with suppress(OSError):
            while data := near.recv(1 << 16):
                request = re.match(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP", data) if source else None
                now = mode.read_text()
                if request is not None:
                    print(time.time(), source, request[1].decode(), request[2].decode(), now, file=log)
                if now == "refuse" and source is not None:
                    near.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    near.shutdown(socket.SHUT_WR)
                    near.settimeout(5)
                    while near.recv(1 << 16):
                        pass
                    return
                if now == "slow":
                    time.sleep(1 if request is not None else 0.05)
                far.sendall(data)
        for side in (near, far):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    while True:
        client, (source, _) = server.accept()
        threading.Thread(target=forward, args=(client, source), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
